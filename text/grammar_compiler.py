"""Grammars for a tokenizer: a JSON schema, a regular expression, Lark or GBNF, compiled by llguidance."""

import json
import re
import threading
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from itertools import accumulate
from textwrap import shorten
from typing import Any

from tokenizers import Tokenizer

from common.errors import InputError
from speculative.grammar import LOOKAHEAD, Matcher
from speculative.options import FORMS, Options
from text.tokenizer import is_byte_level, token_bytes

CONTEXT = 8  # tokens that may matter to the tokenization of the next
# As Python's json.dumps writes it, and models are used to. With free white space almost nothing would be forced.
STYLE: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
STACK = 512 << 20  # bytes: the compiler recurses from rule to rule; 5,000 rules overflow 8 MB
_STACK_SIZE = threading.Lock()  # Python has one size for all new threads


class Grammars:
    """Makes matchers from options. It is also the tokenizer that llguidance asks for."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, config: Any, hidden: Container[int]):
        """config: the model's; hidden: tokens without text."""
        self._tokenizer = tokenizer
        self._config = config
        self._hidden = hidden
        self._compiled = lru_cache(32)(self._attempt)

    def matcher(self, options: Options) -> Matcher | None:
        """A matcher for the form that the options ask for, if any. InputError if it cannot be compiled."""
        for name in FORMS:
            form = getattr(options, name)
            if form is not None:
                text = form if isinstance(form, str) else json.dumps(form, ensure_ascii=False)
                compiled = self._compiled(name, text)
                if isinstance(compiled, BaseException):
                    raise compiled
                return compiled.copy()
        return None

    def _attempt(self, name: str, form: str) -> Matcher | BaseException:
        """The matcher, or why there is none: some forms take seconds to be refused."""
        with ThreadPoolExecutor(1) as pool, _STACK_SIZE:
            before = threading.stack_size(STACK)
            compiling = pool.submit(self._compile, name, form)  # starts its thread
            threading.stack_size(before)
        return compiling.exception() or compiling.result()

    @cached_property
    def ready(self) -> Any:
        """llguidance's tokenizer, which takes a second to make for 150,000 tokens."""
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError:
            raise InputError(
                "output in a given form needs llguidance: pip install -r requirements-grammar.txt"
            ) from None
        ends = list(self._config.eos_token_ids)
        if not ends:
            raise InputError("the model names no end token, which a form needs: set eos_token_id")
        self.eos_token_id = ends[0]
        self._is_byte_level = is_byte_level(self._tokenizer)
        bytes_of = token_bytes(self._tokenizer, self._hidden)
        self.tokens = [bytes_of(token) for token in range(self._config.vocab_size)]
        self.special_token_ids = [token for token, text in enumerate(self.tokens) if not text]
        # SentencePiece drops the space before a text's first word.
        word = next((i for i, text in enumerate(self.tokens) if re.match(rb" \w", text)), None)
        dropped = word is not None and not self._tokenizer.decode([word]).startswith(" ")
        self._dropped_space = " " if dropped else ""
        return LLTokenizer(TokenizerWrapper(self), eos_token=ends)

    def _compile(self, name: str, form: str) -> Matcher:
        tokenizer = self.ready
        from llguidance import LLMatcher
        from llguidance.gbnf_to_lark import GbnfToLarkError

        try:
            grammars = json.dumps({"grammars": self._grammars(name, form)})
            engine = LLMatcher(tokenizer, grammars, log_level=0)
            if engine.is_error():
                raise ValueError(engine.get_error())
            if name == "json_schema":
                _check_warnings(engine.get_grammar_warnings())
            matcher = Matcher(engine, self._usual)
            if not matcher.goes_on(matcher.forced([], LOOKAHEAD)):
                raise ValueError("no text in the model's vocabulary fits it, or it is too complex")
        except (ValueError, RecursionError, GbnfToLarkError) as error:
            reason = shorten(str(error), 300, placeholder=" ...")
            if reason.startswith("panic"):
                reason = "llguidance cannot compile it"
            raise InputError(f"{name}: {reason}") from None
        return matcher

    def _grammars(self, name: str, form: str) -> list[dict]:
        """The form as llguidance's grammars, the first of which is the whole text's."""
        from llguidance import regex_to_lark
        from llguidance.gbnf_to_lark import any_to_lark

        if name == "grammar":
            answer = {"lark_grammar": any_to_lark(form)}
        elif name == "regex":
            regex = f"/{regex_to_lark(form, '')}/ & /{_writable(self.tokens)}/"
            answer = {"lark_grammar": f"start: TEXT\nTEXT: {regex}"}
        else:
            answer = _schema_grammar(form)
        # Forcing allows only the usual tokens of a forced text, which must have exactly its bytes.
        plain = self._is_byte_level and form.isascii() and not re.search(r"\\[uUxX]", form)
        lossless = plain and self._tokenizer.decode(self(form)) == form
        head = "" if lossless else '%llguidance {"no_forcing": true}\n'
        text = {"lark_grammar": f"{head}start: {json.dumps(self._dropped_space)} @answer"}
        return [text, answer | {"name": "answer"}]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _split(self, text: str) -> list[int]:
        """The tokens of a part of a text. A SentencePiece tokenizer would add a space before it and drop one at its end."""
        if self._is_byte_level:
            return self(text)
        return [token.id for token in self._tokenizer.model.tokenize(text.replace(" ", "▁"))]

    def _usual(self, text: Sequence[int], new: bytes) -> list[int]:
        """The tokens with which a text usually goes on in these bytes."""
        before = b"".join(self.tokens[token] for token in text[-CONTEXT:])
        tokens = self._split((before + new).decode(errors="ignore"))
        sizes = [*accumulate(len(self.tokens[token]) for token in reversed(tokens))]
        if len(new) in sizes:
            return tokens[-1 - sizes.index(len(new)) :]
        return self._split(new.decode(errors="ignore"))


def _schema_grammar(form: str) -> dict:
    """A JSON schema as a grammar."""
    from llguidance import LLMatcher

    json.loads(form, parse_int=_check_number, parse_float=_check_number)
    if '"minProperties"' in form and '"patternProperties"' in form:
        raise ValueError("minProperties with patternProperties: use required")
    style = STYLE | {"lenient": True}  # warns of what it does not support
    (grammar,) = json.loads(LLMatcher.grammar_from_json_schema(form, overrides=style))["grammars"]
    return grammar


def _check_warnings(warnings: Sequence[str]) -> None:
    """Raise ValueError for what llguidance does not support in a schema."""
    for warning in warnings:
        if warning.startswith("oneOf"):
            raise ValueError("the alternatives of oneOf may overlap; use anyOf")
        if not warning.startswith("Unknown format"):  # those are annotations
            raise ValueError(warning)


def _writable(tokens: Sequence[bytes]) -> str:
    """A regular expression for the texts that these tokens can write, as far as single characters say."""
    texts = {token.decode(errors="replace") for token in tokens}
    listed = "".join(f"\\x{{{ord(text):x}}}" for text in texts if len(text) == 1)
    if "\ufffd" in texts:  # there are tokens for parts of characters
        listed += r"\x{80}-\x{10ffff}"
    return f"[{listed}]*"


def _check_number(text: str) -> float:
    """The number. Raises ValueError for those near the end of 64 bits, with which llguidance overflows its stack."""
    if float(text) < -9.2e18:
        raise ValueError(f"{text} is below -9.2e18")
    return float(text)
