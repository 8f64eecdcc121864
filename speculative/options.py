"""How to decode: the options of every way to generate, and their defaults."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from types import NoneType

from errors import InputError
from speculative.sampling import RULES, Greedy, Sampler

DEFAULT_RULE = "coupled"  # the text does not depend on what is drafted, nor on how much


@dataclass(frozen=True)
class Options:
    """The keyword arguments of `generate`, `stream_generate` and `batch_generate`, and the one
    place of their defaults. A value out of range raises InputError."""

    num_draft: int | str = "auto"  # tokens drafted per step; 0: plain decoding; see schedule.py
    lookup: bool = False  # draft by copying from the source, before the draft model if there is one
    max_tokens: int = 512  # tokens generated at most, end of sequence included
    temp: float = 0.0  # temperature; 0: greedy
    top_k: int = 0  # keep the top_k most probable tokens; 0: all
    top_p: float = 1.0  # keep the fewest tokens that hold this much probability
    min_p: float = 0.0  # keep tokens with this share of the best token's probability
    seed: int = 0  # the same seed gives the same text
    acceptance: str | None = None  # a rule of sampling.RULES; None: see `rule`
    source_lang: str | None = None  # of a model of several languages; None: the tokenizer's own
    target_lang: str | None = None  # None: the model's own
    delta: float = 0.0  # lenience: above 0 lossy, up to 1: accept everything

    def __post_init__(self):
        if self.num_draft != "auto":
            what = "a whole number of 0 or more, or auto"
            self._check("num_draft", Integral, what, lambda n: n >= 0)
        if not isinstance(self.lookup, bool):
            raise InputError(f"lookup is {self.lookup!r}, neither True nor False")
        self._check("max_tokens", Integral, "a whole number of 1 or more", lambda n: n >= 1)
        self._check("temp", Real, "a number of 0 or more", lambda x: 0 <= x < math.inf)
        self._check("top_k", Integral, "a whole number of 0 or more", lambda n: n >= 0)
        self._check("top_p", Real, "a number above 0, up to 1", lambda x: 0 < x <= 1)
        self._check("min_p", Real, "a number from 0 to 1", lambda x: 0 <= x <= 1)
        self._check("seed", Integral, "a whole number", lambda n: True)
        self._check("delta", Real, "a number from 0 to 1", lambda x: 0 <= x <= 1)
        for name in ("source_lang", "target_lang"):
            if not isinstance(getattr(self, name), (str, NoneType)):
                raise InputError(f"{name} is {getattr(self, name)!r}, not a language's code")
        if self.acceptance not in (None, *RULES):
            raise InputError(f"acceptance is {self.acceptance!r}, not one of {', '.join(RULES)}")
        if self.delta and self.temp and self.rule != "token":
            raise InputError(
                f"delta has no meaning for the acceptance rule {self.rule}, only token"
            )

    def _check(self, name: str, kind: type, what: str, accepts: Callable) -> None:
        value = getattr(self, name)
        if not isinstance(value, kind) or isinstance(value, bool) or not accepts(value):
            raise InputError(f"{name} is {value!r}, not {what}")

    @property
    def rule(self) -> str:
        """The acceptance rule at temperature > 0."""
        return self.acceptance or ("token" if self.delta else DEFAULT_RULE)

    @property
    def distribution(self) -> dict[str, float]:
        """What the tokens' distribution depends on: the arguments of `sampling.probabilities`."""
        return dict(temp=self.temp, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p)

    def sampler(self, row_seeds: list[bytes], vocab_size: int) -> Greedy | Sampler:
        """What draws the tokens of rows with these seeds, for a target of so many vocabulary rows."""
        if self.temp == 0:
            return Greedy(self.delta)
        return Sampler(self.rule, row_seeds, vocab_size, self.delta, **self.distribution)
