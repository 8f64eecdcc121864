"""The options of decoding, each declared once.

Flags (apps/cli/flags.py), request fields (apps/serving/requests.py), messages and the tables in docs/ all come from the
fields of `Options`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import partial
from numbers import Integral, Real
from typing import Any

from speculative.common.errors import InputError
from speculative.step.processors import Processor

AUTO = "auto"  # num_draft: the fastest number, by what steps have taken
COUPLED = "coupled"
RULES = ("token", "block", COUPLED)  # see sampling.ACCEPT
DEFAULT_RULE = COUPLED  # the same seed gives the same text, with any drafts
MAX_TOKENS = 512  # if neither the caller nor the checkpoint sets it
_BOOLS = dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True)
_BOOLS |= dict.fromkeys(("false", "f", "no", "n", "off", "0"), False)
MAX_NUMBER = 10**9  # below 2^31, the end of MLX's integers; logits times this stay finite


@dataclass(frozen=True)
class Values:
    kind: type  # int, float, str, bool, list or dict: the type in flags and JSON
    description: str  # "a text", for example
    accepts: Callable[[Any], bool]
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    read: Callable[[str], Any] | None = None  # from a text, or ValueError; None: the kind does

    def parse(self, text: str) -> Any:
        """The value that a flag's or a form's text means; the text itself if there is none, which `check_values` refuses."""
        if self.kind is bool:
            return _BOOLS.get(text.lower(), text)
        with suppress(ValueError):
            return (self.read or self.kind)(text)
        return text


class OptionError(InputError):
    def __init__(self, name: str, value: Any, values: Values):
        """name: as the one who gave the value calls the option."""
        super().__init__(f"{name} is {repr(value)[:100]}, not {values.description}")
        self.name = name
        self.value = value
        self.values = values


def integers(min_value: int, max_value: int = MAX_NUMBER) -> Values:
    description = f"a whole number from {min_value} to {max_value}"
    return Values(int, description, lambda n: _is(Integral, n) and min_value <= n <= max_value, "N")


def numbers(min_value: float, max_value: float = MAX_NUMBER) -> Values:
    description = f"a number from {min_value} to {max_value}"
    return Values(float, description, lambda x: _is(Real, x) and min_value <= x <= max_value, "X")


def _is(kind: type, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:  # in valid Unicode
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _is_word(value: Any) -> bool:
    return _are(_is_token, value) and 0 < len(value) <= 256


def _is_bias(token: Any, bias: Any) -> bool:
    return _is_token(token) and _is(Real, bias) and (bias == -math.inf or abs(bias) <= MAX_NUMBER)


def _is_text_or_texts(value: Any) -> bool:
    texts = [value] if isinstance(value, str) else value
    return _are(lambda text: text and _is_text(text), texts)


def _are_biases(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_bias, value, value.values()))


def _are(entry: Callable[[Any], bool], values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and all(map(entry, values))


# fmt: off
SWITCH = Values(bool, "True or False", lambda v: isinstance(v, bool))
ANY = Values(int, "a whole number", partial(_is, Integral), "N")
COUNT = integers(0)
SIZE = integers(1)
_is_token = COUNT.accepts
DRAFT = Values(int, f"{COUNT.description}, or auto", lambda v: v == AUTO or COUNT.accepts(v), "N", (AUTO,))
FRACTION = numbers(0, 1)
POSITIVE_FRACTION = Values(float, "a number above 0, up to 1", lambda x: x and FRACTION.accepts(x), "X")
REFERENCE = Values(str, "a text", _is_text, "TEXT/@FILE")
FORM = replace(REFERENCE, accepts=lambda v: isinstance(v, Mapping) or _is_text(v))
TEMPLATE = Values(str, "a text with {text} in it", lambda v: _is_text(v) and "{text}" in v, "TEXT/@FILE")
CODE = Values(str, "a language's code or name", _is_text, "LANGUAGE")
TEXTS = Values(list, "a non-empty text or a list of them", _is_text_or_texts, "TEXT")
RULE = Values(str, f"one of {', '.join(RULES)}", lambda v: callable(v) or v in RULES, f"{{{','.join(RULES)}}}", RULES)
EARLY = Values(str, "True, False or never", lambda v: isinstance(v, bool) or v == "never", None, ("never",))
TOKEN = Values(int, "a token's id, or -1", lambda v: v == -1 or _is_token(v), "ID")
TOKENS = Values(list, "a list of ids", partial(_are, _is_token), "JSON")
WORDS = Values(list, "a list of lists of ids", partial(_are, _is_word), "JSON")
BIASES = Values(dict, f"tokens' ids with a number each, from {-MAX_NUMBER} to {MAX_NUMBER} or -inf", _are_biases, "JSON")
# {"functions": with `parameters`, "marks": before, between, after calls, "or_text": bool}
CALLS = Values(dict, "functions with the marks of their calls", lambda v: isinstance(v, Mapping))
FUNCTIONS = Values(list, "a list of functions", lambda v: isinstance(v, Iterable) and all(map(callable, v)))
# fmt: on


@dataclass(frozen=True)
class Declared:
    values: Values
    help: str  # N or X, for example, stands for the value
    default: str  # in words
    flags: tuple[str, ...] | None = ()  # besides --name-of-the-field; None: no flag
    request: str | None = ""  # its name in a request; "": the field's; None: not allowed there
    served: int | None = None  # the largest number, or longest list, a request may ask for
    group: str = "sampling"  # heading in --help and docs


def option(default: Any, values: Values, help: str, words: str = "", **others: Any) -> Any:
    """A field of `Options`. words: its default in words, if the value does not say it."""
    declared = Declared(values, help, words or str(default), **others)
    return field(default=default, metadata={"declared": declared})


_drafting = partial(option, group="drafting")
_beams = partial(option, group="beams", request=None)
CHECKPOINT = "the checkpoint's"
_control = partial(option, None, words=CHECKPOINT, group="controls")
_form = partial(_control, FORM, words="none", request=None)
FORMS = ("json_schema", "regex", "grammar")  # options for the form of a text; at most one is given


@dataclass(frozen=True)
class Options:
    """The keyword arguments of `generate` and related functions. None leaves a value to the checkpoint or to the other
    options. Raises InputError for an invalid value."""

    # fmt: off
    num_draft: int | str = _drafting(AUTO, DRAFT, flags=("--num-draft-tokens",), served=64,
        help="draft tokens per step; 0: decode without drafts; auto: the fastest length, which may be zero")
    lookup: bool | None = _drafting(None, SWITCH, words="on with a draft model and --num-draft auto", request=None,
        help="prompt lookup: copy draft tokens from the prompt and from the output so far, which pays where an output repeats "
        "its prompt, as corrections do")
    reference: str | None = _drafting(None, REFERENCE, words="none",
        help="a text that the output will resemble, or @ and a file that holds it; draft tokens are copied from it")

    max_tokens: int | None = option(None, SIZE, "generate at most N tokens", f"{CHECKPOINT}, or {MAX_TOKENS}", flags=("-m",))
    temp: float = option(0.0, numbers(0), "sampling temperature; 0: greedy", flags=("--temperature",), request="temperature")
    top_k: int = option(0, COUNT, "sample only from the N most probable tokens; 0: all")
    top_p: float = option(1.0, POSITIVE_FRACTION, "sample only from the most probable tokens that together have probability X")
    min_p: float = option(0.0, FRACTION, "sample only from tokens at least X times as probable as the most probable one")
    seed: int | None = option(None, ANY, "random seed; the same seed gives the same text", "a new one", served=10**18)
    acceptance: str | Callable | None = option(None, RULE, words=f"{DEFAULT_RULE}, or token with --delta", request=None,  # noqa: RUF009
        help="how to accept draft tokens when sampling; each way keeps the target's distribution, so leave it alone unless you "
        "compare them")
    delta: float = option(0.0, FRACTION, request=None,
        help="accept more draft tokens, for speed, if the output may differ from the target's: 0 is exact, 1 accepts all")
    source_lang: str | None = option(None, CODE, words="the tokenizer's", flags=("--from",),
        help="language of the source: a code or a name, for a multilingual model")
    target_lang: str | None = option(None, CODE, words="the model's", flags=("--to",),
        help="language of the output: German, de or the model's own code")
    prompt_template: str | None = option(None, TEMPLATE, words="the model's", request=None,
        help="the prompt for a translation, or @ and a file that holds it: {text} stands for the text, {source} and {target} for "
        "the languages' English names")

    repetition_penalty: float | None = _control(numbers(1 / MAX_NUMBER), "penalise tokens already used; 1: off")
    repetition_context_size: int | None = _control(SIZE, "penalise only repeats of the last N tokens", words="all")
    no_repeat_ngram_size: int | None = _control(integers(0, 1024), "never generate the same N tokens twice; 0: off", served=64)
    min_tokens: int | None = _control(COUNT, "generate at least N tokens before an end token")
    logit_bias: Mapping[int, float] | None = _control(BIASES, words="none", served=1024,
        help='add to the logits of these token ids: {"1234": -5.0, "42": 2}')
    bad_words_ids: Sequence[Sequence[int]] | None = _control(WORDS, "token sequences never to generate: [[5], [6, 7]]", served=256)
    suppress_tokens: Sequence[int] | None = _control(TOKENS, "tokens never to generate: [5, 6]")
    forced_bos_token_id: int | None = _control(TOKEN,
        "the id of the token that every output begins with; for a language, use --target-lang instead; -1: any")
    forced_eos_token_id: int | None = _control(TOKEN, "the id of the token that ends an output cut off at its token limit; -1: any")
    processors: Sequence[Processor] = option((), FUNCTIONS, "your own logits processors, applied last", flags=None, request=None)
    stop: str | Sequence[str] = option((), TEXTS, "end the output before TEXT; may be repeated", "none", served=16, group="controls")
    stop_token_ids: Sequence[int] | None = _control(TOKENS, words="none", served=256,
        help="end the output before any of these tokens: [5, 6]")
    json_schema: str | Mapping | None = _form("a JSON schema: generate only JSON that fits it")
    regex: str | None = _form("a regular expression: generate only text that matches it whole")
    grammar: str | None = _form("a grammar in Lark or GBNF: generate only text that fits it")
    tools: Mapping | None = option(None, CALLS, "functions that the output calls or may call", "none", flags=None, request=None)
    logprobs: int | None = _control(COUNT, words="none", request=None, served=20,
        help="with --json: log-probabilities of each token and of the N most probable")
    num_samples: int = option(1, integers(1, 1024), request="n", served=64, group="controls",
        help="outputs per prompt; needs --temp or --num-beams")

    num_beams: int = _beams(1, integers(1, 64), "above 1: search with N beams, without drafts")
    length_penalty: float | None = _beams(None, numbers(-MAX_NUMBER), words=f"{CHECKPOINT}, or 1",
        help="rank beams by log-probability / length ** X")
    early_stopping: bool | str | None = _beams(None, EARLY, words=f"{CHECKPOINT}, or no",
        help="end the search, for speed, as soon as --num-beams outputs are finished; never: go on until no better one is possible")
    # fmt: on

    def __post_init__(self):
        check_values(self)
        if self.delta and self.temp and self.rule != "token":
            raise InputError(f"delta works only with the acceptance rule token, not {self.rule}")
        given = [name for name in (*FORMS, "delta") if getattr(self, name) not in (None, 0)]
        if self.tools is not None and self.delta:
            given = ["tools", "delta"]
        if len(given) > 1:
            raise InputError(f"{given[0]} cannot be used with {given[1]}")
        samples = self.num_samples
        beams = self.num_beams
        if samples > 1 and beams == 1 and self.temp == 0:
            raise InputError("num_samples above 1 needs temp above 0, or num_beams above 1")
        if samples > beams > 1:
            raise InputError(f"num_samples is {samples}, but {beams} beams give at most as many")
        if beams > 1 and self.temp:
            raise InputError("num_beams above 1 needs temp 0: beam search does not sample")
        for name in ("stop", "stop_token_ids", "logprobs"):
            if beams > 1 and getattr(self, name) not in (None, (), [], ""):
                raise InputError(f"{name} cannot be used with num_beams above 1")

    @classmethod
    def named(cls, given: Mapping[str, Any]) -> "Options":
        """Options from keyword arguments. TypeError for an unknown name, with the nearest one."""
        for name in set(given) - set(DECLARED):
            names = {declared.request or own: own for own, declared in DECLARED.items()}
            near = get_close_matches(name, names, 1, 0.5)
            hint = f"; did you mean {names[near[0]]}?" if near else ""
            raise TypeError(f"no option {name!r}{hint}")
        return cls(**given)

    def copies(self, has_draft_model: bool) -> bool:
        """Whether to draft by copying. If `lookup` does not say: beside a draft model with `auto`, which measures whether
        it pays; but not with delta, which would let copied tokens into the text."""
        if self.lookup is None:
            return has_draft_model and self.num_draft == AUTO and not self.delta
        return self.lookup

    @property
    def rule(self) -> str | Callable:
        """The acceptance rule at temperature > 0: one of RULES, or a function like sampling.accept_block."""
        return self.acceptance or ("token" if self.delta else DEFAULT_RULE)


def declared_in(kind: Any) -> dict[str, Declared]:
    return {f.name: f.metadata["declared"] for f in fields(kind) if f.metadata}


def check_values(options: Any) -> None:
    """Raise OptionError if a field of a dataclass has a value that its option does not accept."""
    for field_ in fields(options):
        value = getattr(options, field_.name)
        declared = field_.metadata.get("declared")
        if declared and value is not field_.default and not declared.values.accepts(value):
            raise OptionError(field_.name, value, declared.values)


DECLARED: dict[str, Declared] = declared_in(Options)
