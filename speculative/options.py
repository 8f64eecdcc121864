"""How to decode: the options of every way to generate, and their defaults."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from types import NoneType
from typing import Any

from errors import InputError
from speculative.processors import Processor

RULES = ("token", "block", "coupled")  # of sampling.py
DEFAULT_RULE = "coupled"  # the text does not depend on what is drafted, nor on how much
MAX_TOKENS = 512  # where neither the caller nor the checkpoint says
_FROM_0, _FROM_1 = "a whole number of 0 or more", "a whole number of 1 or more"


@dataclass(frozen=True)
class Options:
    """The keyword arguments of `generate`, `stream_generate` and `batch_generate`, and the one
    place of their defaults. A value out of range raises InputError."""

    num_draft: int | str = "auto"  # tokens drafted per step; 0: plain decoding; see schedule.py
    lookup: bool | None = None  # draft by copying from the source; None: see `copies`
    max_tokens: int | None = (
        None  # tokens generated at most, end of sequence included; see `filled`
    )
    temp: float = 0.0  # temperature; 0: greedy
    top_k: int = 0  # keep the top_k most probable tokens; 0: all
    top_p: float = 1.0  # keep the fewest tokens that hold this much probability
    min_p: float = 0.0  # keep tokens with this share of the best token's probability
    seed: int = 0  # the same seed gives the same text
    acceptance: str | Callable | None = None  # one of RULES, or a function; None: see `rule`
    source_lang: str | None = None  # of a model of several languages; None: the tokenizer's own
    target_lang: str | None = None  # None: the model's own
    delta: float = 0.0  # lenience: above 0 lossy, up to 1: accept everything

    # Of processors.py. None: as the checkpoint's generation_config.json has it, or else without.
    repetition_penalty: float | None = None  # 1: none
    repetition_context_size: int | None = None  # how many of the last tokens it looks at; None: all
    no_repeat_ngram_size: int | None = None  # no sequence of so many tokens twice; 0: any
    min_tokens: int | None = None  # tokens before the end of sequence
    logit_bias: Mapping[int, float] | None = None  # by token
    bad_words_ids: Sequence[Sequence[int]] | None = None  # sequences of tokens not to write
    suppress_tokens: Sequence[int] | None = None  # tokens not to write
    forced_bos_token_id: int | None = None  # the text's first token; -1: any
    forced_eos_token_id: int | None = None  # the last one that there is room for; -1: any
    processors: Sequence[Processor] = ()  # one's own, after these

    stop: str | Sequence[str] = ()  # the text ends before any of these
    logprobs: int | None = None  # tell tokens' log-probabilities, and those of so many of the best
    num_samples: int = 1  # texts of a prompt

    # Of beams.py; as above, None is what the checkpoint has, or else 1 and False.
    num_beams: int = 1  # above 1, the text of the highest score that so many beams find, undrafted
    length_penalty: float | None = None  # the score: log-probability / length ** length_penalty
    early_stopping: bool | str | None = None  # end with num_beams texts; "never": with the best

    def __post_init__(self):
        if self.num_draft != "auto":
            what = "a whole number of 0 or more, or auto"
            self._check("num_draft", Integral, what, lambda n: n >= 0)
        if not isinstance(self.lookup, (bool, NoneType)):
            raise InputError(f"lookup is {self.lookup!r}, neither True nor False")
        self._check("max_tokens", Integral, _FROM_1, lambda n: n >= 1, optional=True)
        self._check("temp", Real, "a number of 0 or more", lambda x: 0 <= x < math.inf)
        self._check("top_k", Integral, _FROM_0, lambda n: n >= 0)
        self._check("top_p", Real, "a number above 0, up to 1", lambda x: 0 < x <= 1)
        self._check("min_p", Real, "a number from 0 to 1", lambda x: 0 <= x <= 1)
        self._check("seed", Integral, "a whole number", lambda n: True)
        self._check("delta", Real, "a number from 0 to 1", lambda x: 0 <= x <= 1)
        for name in ("source_lang", "target_lang"):
            if not isinstance(getattr(self, name), (str, NoneType)):
                raise InputError(f"{name} is {getattr(self, name)!r}, not a language's code")
        if self.acceptance not in (None, *RULES) and not callable(self.acceptance):
            raise InputError(f"acceptance is {self.acceptance!r}, not one of {', '.join(RULES)}")
        self._check_controls()
        if self.delta and self.temp and self.rule != "token":
            raise InputError(
                f"delta has no meaning for the acceptance rule {self.rule}, only token"
            )

    def _check_controls(self) -> None:
        check = functools.partial(self._check, optional=True)
        check("repetition_penalty", Real, "a number above 0", lambda x: 0 < x < math.inf)
        check("repetition_context_size", Integral, _FROM_1, lambda n: n >= 1)
        for name in ("no_repeat_ngram_size", "min_tokens", "logprobs"):
            check(name, Integral, _FROM_0, lambda n: n >= 0)
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            check(name, Integral, "a token's id, or -1", lambda n: n >= -1)
        self._check("num_samples", Integral, _FROM_1, lambda n: n >= 1)
        bias, words = self.logit_bias, self.bad_words_ids
        if bias is not None and not (
            isinstance(bias, Mapping) and all(map(_is_token, bias)) and _all(bias.values(), Real)
        ):
            raise InputError(f"logit_bias is {bias!r}, not tokens' ids with a number each")
        if self.suppress_tokens is not None and not _are_tokens(self.suppress_tokens):
            raise InputError(f"suppress_tokens is {self.suppress_tokens!r}, not a list of ids")
        if words is not None and not (
            _all(words, Sequence) and all(map(_are_tokens, words)) and all(words)
        ):
            raise InputError(f"bad_words_ids is {words!r}, not a list of lists of ids")
        if not _all(self.processors, Callable):
            raise InputError(f"processors is {self.processors!r}, not a list of functions")
        if not (isinstance(self.stop, str) or _all(self.stop, str)) or "" in self.stops:
            raise InputError(f"stop is {self.stop!r}, not a text or a list of texts")
        self._check_beams()

    def _check_beams(self) -> None:
        self._check("num_beams", Integral, _FROM_1, lambda n: n >= 1)
        self._check("length_penalty", Real, "a number", math.isfinite, optional=True)
        early = self.early_stopping
        if not isinstance(early, (bool, NoneType)) and early != "never":
            raise InputError(f"early_stopping is {early!r}, not True, False or never")
        if self.num_beams == 1:
            if self.num_samples > 1 and self.temp == 0:
                raise InputError(
                    "num_samples above 1 needs temp above 0: greedy texts are all the same; or num_beams"
                )
            return
        if self.temp:
            raise InputError("num_beams above 1 needs temp 0: a beam search does not sample")
        if self.num_samples > self.num_beams:
            raise InputError(
                f"num_samples is {self.num_samples}; {self.num_beams} beams find as many texts at most"
            )
        for name, value in (("stop", self.stops), ("logprobs", self.logprobs is not None)):
            if value:
                raise InputError(f"{name} has no meaning with num_beams above 1")

    def _check(
        self, name: str, kind: type, what: str, accepts: Callable, optional: bool = False
    ) -> None:
        value = getattr(self, name)
        if optional and value is None:
            return
        if not isinstance(value, kind) or isinstance(value, bool) or not accepts(value):
            raise InputError(f"{name} is {value!r}, not {what}")

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end a text."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def copies(self, has_draft_model: bool) -> bool:
        """Whether drafts are copied, too. Where it is not said: beside a draft model, as often as that is
        measured to pay, which `auto` does; and not where delta would let copied tokens into the text."""
        if self.lookup is None:
            return has_draft_model and self.num_draft == "auto" and not self.delta
        return self.lookup

    def filled(self, defaults: Mapping[str, Any]) -> "Options":
        """With `defaults` for what is None."""
        known = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        return replace(self, **known) if known else self

    @property
    def rule(self) -> str | Callable:
        """The acceptance rule at temperature > 0: one of RULES, or a function as sampling.accept_block."""
        return self.acceptance or ("token" if self.delta else DEFAULT_RULE)

    @property
    def distribution(self) -> dict[str, float]:
        """What the tokens' distribution depends on: the arguments of `sampling.probabilities`."""
        return dict(temp=self.temp, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p)


def _all(values: object, kind: Any) -> bool:
    """Whether it is a list of such."""
    return isinstance(values, Iterable) and all(isinstance(value, kind) for value in values)


def _is_token(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _are_tokens(values: object) -> bool:
    return isinstance(values, Sequence) and all(map(_is_token, values))
