"""Grammars for a tokenizer: compiled by llguidance (https://github.com/guidance-ai/llguidance) from a JSON schema, a
regular expression, or a grammar in its variant of Lark or in GBNF."""

import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from textwrap import shorten
from typing import Any

from tokenizers import Tokenizer

from errors import InputError
from speculative.grammar import Matcher
from speculative.options import FORMS, Options
from text.tokenizer import byte_characters

COMPILED = 32  # grammars to keep
CONTEXT = 8  # tokens of a text that the tokenization of the next may depend on
# As Python's json.dumps writes it, and models are used to. With free white space almost nothing would be forced.
STYLE: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammars:
    """Makes matchers from options."""

    def __init__(self, tokenizer: Tokenizer, size: int, ends: Sequence[int], hidden: Iterable[int]):
        """size: of the model's vocabulary; ends: its end tokens; hidden: tokens without text."""
        self._tokenizer, self._size, self._ends, self._hidden = tokenizer, size, ends, {*hidden}
        self._compiled = lru_cache(COMPILED)(self._compile)

    def matcher(self, options: Options) -> Matcher | None:
        """A matcher for the form that the options ask for, if any. Raises InputError if it cannot be compiled, or
        llguidance is not installed."""
        for name in FORMS:
            form = getattr(options, name)
            if form is not None:
                return self._compiled(
                    name, form if isinstance(form, str) else json.dumps(form)
                ).copy()
        return None

    @cached_property
    def warm(self) -> Any:
        """llguidance's tokenizer. Building it takes about a second for 150,000 tokens."""
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError:
            raise InputError(
                "output in a given form needs llguidance: pip install -r requirements-grammar.txt"
            ) from None
        return LLTokenizer(TokenizerWrapper(self), eos_token=list(self._ends))

    def _compile(self, name: str, form: str) -> Matcher:
        ready = self.warm
        from llguidance import LLMatcher, LLParserLimits
        from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

        try:
            if name == "grammar":
                inner = {"lark_grammar": any_to_lark(form)}
            elif name == "regex":
                (inner,) = json.loads(LLMatcher.grammar_from_regex(form))["grammars"]
            else:
                schema = json.loads(form)
                found = LLMatcher.grammar_from_json_schema(schema, overrides=STYLE)
                (inner,) = json.loads(found)["grammars"]
                form = json.dumps(schema, ensure_ascii=False)
        except (ValueError, RecursionError, GbnfToLarkError) as error:
            raise InputError(f"{name}: {_first_line(error)}") from None
        # Forcing allows only the usual tokens for a forced text, so these must have exactly its bytes.
        free = "" if self._comes_back(form) else '%llguidance {"no_forcing": true}\n'
        space = '" " ' if self._drops_a_space else ""
        outer = {"lark_grammar": f"{free}start: {space}@answer"}
        grammars = {"grammars": [outer, inner | {"name": "answer"}]}
        limits = LLParserLimits(verbose_errors=False)
        engine = LLMatcher(ready, json.dumps(grammars), log_level=0, limits=limits)
        matcher = Matcher(engine, self._usual)
        if engine.is_error():
            raise InputError(f"{name}: {_first_line(engine.get_error())}")
        allowed = matcher.allowed(())
        if allowed is None or not allowed.any():
            raise InputError(f"{name}: the model has no token with which such a text could begin")
        return matcher

    def _comes_back(self, form: str) -> bool:
        """Whether texts that a grammar forces are the same after encoding and decoding."""
        plain = form.isascii() and not re.search(r"\\[uUxX]", form)
        return self._is_byte_level and plain and self._decode(self._encode(form)) == form

    @cached_property
    def _decoder(self) -> str:
        state: bytes = self._tokenizer.decoder.__getstate__() if self._tokenizer.decoder else b""
        return state.decode()

    @property
    def _is_byte_level(self) -> bool:
        return '"ByteLevel"' in self._decoder

    @cached_property
    def _drops_a_space(self) -> bool:
        """Whether decoding drops the space before a text's first word, as SentencePiece does."""
        first = next((i for i, text in enumerate(self.tokens) if re.match(rb" \w", text)), None)
        return first is not None and not self._decode([first]).startswith(" ")

    # What llguidance asks of a tokenizer: see its TokenizerWrapper.

    bos_token_id = None

    @property
    def eos_token_id(self) -> int:
        return self._ends[0]

    @cached_property
    def tokens(self) -> list[bytes]:
        """The bytes of each token; none of tokens without text."""
        added = self._tokenizer.get_added_tokens_decoder()
        silent = {i for i, token in added.items() if token.special} | self._hidden
        by_character = {character: byte for byte, character in byte_characters().items()}

        def read(piece: str, token: int) -> bytes:
            if token in added:
                return piece.encode()
            if self._is_byte_level:
                return bytes(by_character[character] for character in piece)
            if found := re.fullmatch("<0x([0-9A-F]{2})>", piece):
                return bytes.fromhex(found[1])
            return piece.replace("▁", " ").encode()

        if not self._is_byte_level and "▁" not in self._decoder:
            raise InputError("output in a given form needs a byte-level or SentencePiece tokenizer")
        pieces = ((i, self._tokenizer.id_to_token(i)) for i in range(self._size))
        return [b"" if piece is None or i in silent else read(piece, i) for i, piece in pieces]

    @property
    def special_token_ids(self) -> list[int]:
        return [i for i, text in enumerate(self.tokens) if not text]

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False)

    def _usual(self, text: Sequence[int], new: bytes) -> list[int]:
        """See Matcher."""
        new = new.decode(errors="ignore").encode()  # characters may end later
        before = b"".join(self.tokens[token] for token in text[-CONTEXT:])
        whole = before + new
        known = whole.removeprefix(b" ") if self._drops_a_space else whole
        found = self._encode(known.decode(errors="ignore"))
        sizes = [len(self.tokens[token]) for token in found]
        ends = list(accumulate(sizes, initial=len(whole) - sum(sizes)))
        if len(before) in ends:
            return found[ends.index(len(before)) :]
        return self._encode(new.decode()) if self._is_byte_level else []


def _first_line(error: object) -> str:
    lines = str(error).splitlines()
    meant = [line for line in lines if line.startswith("error:")]  # of a regular expression's
    return shorten(" ".join([*lines[:1], *meant]), 300, placeholder=" ...")
