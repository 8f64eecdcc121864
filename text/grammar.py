"""Grammars for a tokenizer: compiled by llguidance (https://github.com/guidance-ai/llguidance) from a JSON schema, a
regular expression, or a grammar in Lark or GBNF."""

import json
import re
from collections.abc import Container, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from textwrap import shorten
from typing import Any

from tokenizers import Tokenizer

from errors import InputError
from speculative.grammar import Matcher
from speculative.options import FORMS, Options
from text.tokenizer import byte_characters

CONTEXT = 8  # tokens that may matter to the tokenization of the next
# As Python's json.dumps writes it, and models are used to. With free white space almost nothing would be forced.
STYLE: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammars:
    """Makes matchers from options. It is also the tokenizer that llguidance asks for."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, config: Any, hidden: Container[int]):
        """config: the model's; hidden: tokens without text."""
        self._tokenizer, self._config, self._hidden = tokenizer, config, hidden
        self._compiled = lru_cache(32)(self._compile)

    def matcher(self, options: Options) -> Matcher | None:
        """A matcher for the form that the options ask for, if any. Raises InputError if it cannot be compiled, or
        llguidance is not installed."""
        for name in FORMS:
            if (form := getattr(options, name)) is not None:
                text = form if isinstance(form, str) else json.dumps(form, ensure_ascii=False)
                return self._compiled(name, text).copy()
        return None

    @cached_property
    def ready(self) -> Any:
        """llguidance's tokenizer, which takes a second to make for 150,000 tokens."""
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError:
            what = "output in a given form needs llguidance"
            raise InputError(f"{what}: pip install -r requirements-grammar.txt") from None
        self.eos_token_id, *_ = ends = list(self._config.eos_token_ids)
        self._is_byte_level = b'"ByteLevel"' in self._tokenizer.decoder.__getstate__()
        self.tokens = self._texts()
        self.special_token_ids = [token for token, text in enumerate(self.tokens) if not text]
        # SentencePiece drops the space before a text's first word.
        word = next((i for i, text in enumerate(self.tokens) if re.match(rb" \w", text)), None)
        dropped = word is not None and not self._tokenizer.decode([word]).startswith(" ")
        self._space = " " if dropped else ""
        return LLTokenizer(TokenizerWrapper(self), eos_token=ends)

    def _texts(self) -> list[bytes]:
        """The bytes of each token; none of one without text."""
        added, found = self._tokenizer.get_added_tokens_decoder(), []
        byte_of = {character: byte for byte, character in byte_characters().items()}
        for token in range(self._config.vocab_size):
            piece = self._tokenizer.id_to_token(token)
            if piece is None or token in self._hidden or (token in added and added[token].special):
                found.append(b"")
            elif self._is_byte_level and token not in added:
                found.append(bytes(byte_of[character] for character in piece))
            elif byte := re.fullmatch("<0x([0-9A-F]{2})>", piece):
                found.append(bytes.fromhex(byte[1]))
            else:
                found.append(piece.replace("▁", " ").encode())
        return found

    def _compile(self, name: str, form: str) -> Matcher:
        ready = self.ready
        from llguidance import LLMatcher
        from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

        try:
            if name == "grammar":
                answer = {"lark_grammar": any_to_lark(form)}
            elif name == "regex":
                (answer,) = json.loads(LLMatcher.grammar_from_regex(form))["grammars"]
            else:
                source = LLMatcher.grammar_from_json_schema(form, overrides=STYLE)
                (answer,) = json.loads(source)["grammars"]
            # Forcing allows only the usual tokens of a forced text, which must have exactly its bytes then.
            plain = self._is_byte_level and form.isascii() and not re.search(r"\\[uUxX]", form)
            lossless = plain and self._tokenizer.decode(self(form)) == form
            head = "" if lossless else '%llguidance {"no_forcing": true}\n'
            outer = {"lark_grammar": f"{head}start: {json.dumps(self._space)} @answer"}
            text = json.dumps({"grammars": [outer, answer | {"name": "answer"}]})
            engine = LLMatcher(ready, text, log_level=0)
            if engine.is_error():
                raise ValueError(engine.get_error())
        except (ValueError, RecursionError, GbnfToLarkError) as error:
            reason = shorten(str(error), 300, placeholder=" ...")
            raise InputError(f"{name}: {reason}") from None
        return Matcher(engine, self._usual)

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _usual(self, text: Sequence[int], new: bytes) -> list[int]:
        """The tokens with which a text usually goes on in these bytes."""
        before = b"".join(self.tokens[token] for token in text[-CONTEXT:])
        found = self((before + new).decode(errors="ignore").removeprefix(self._space))
        sizes = [*accumulate(len(self.tokens[token]) for token in reversed(found))]
        if len(new) in sizes:
            return found[-1 - sizes.index(len(new)) :]
        return self(new.decode(errors="ignore"))
