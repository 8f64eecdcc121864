"""Grammars for a tokenizer: a JSON schema, a regular expression, Lark or GBNF, compiled by llguidance."""

import json
import re
import threading
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from itertools import accumulate
from textwrap import shorten
from typing import Any

from tokenizers import Tokenizer

from speculative.common.errors import InputError
from speculative.drafters.forms import LOOKAHEAD, Matcher
from speculative.step.options import FORMS, Options
from speculative.text.schemas import STYLE, check, leave_out, schema_of_calls
from speculative.text.tokenizer import is_byte_level, token_bytes

CONTEXT = 8  # tokens that may matter to the tokenization of the next
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

    def matcher(self, options: Options) -> Matcher:
        """A matcher for the forms that the options ask for. InputError if they cannot be compiled."""
        names = ["tools", *FORMS]
        if options.tools and not options.tools["or_text"]:
            names = ["tools"]
        given = vars(options)
        forms = {name: given[name] for name in names if given[name] is not None}
        compiled = self._compiled(json.dumps(forms, ensure_ascii=False))
        if isinstance(compiled, BaseException):
            raise compiled
        return compiled.copy()

    def _attempt(self, forms: str) -> Matcher | BaseException:
        """The matcher, or why there is none: some forms take seconds to be refused. forms: by name, in JSON"""
        with ThreadPoolExecutor(1) as pool, _STACK_SIZE:
            before = threading.stack_size(STACK)
            compiling = pool.submit(self._compile, json.loads(forms))  # starts its thread
            threading.stack_size(before)
        return compiling.exception() or compiling.result()

    @cached_property
    def ready(self) -> Any:
        """llguidance's tokenizer, which takes a second to make for 150,000 tokens."""
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError:
            needed = "needs llguidance: pip install -r requirements-apps.txt"
            raise InputError(f"output in a given form {needed}") from None
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
        wrapped = TokenizerWrapper(self)
        names = map(self._tokenizer.id_to_token, range(len(self.tokens)))
        # Special tokens have to differ: llguidance knows them by their bytes.
        wrapped.tokens = [
            text or (name or f"<unnamed {i}>").encode()
            for i, (text, name) in enumerate(zip(self.tokens, names, strict=True))
        ]
        return LLTokenizer(wrapped, eos_token=ends)

    def _compile(self, forms: dict[str, Any]) -> Matcher:
        tokenizer = self.ready
        from llguidance import LLMatcher
        from llguidance.gbnf_to_lark import GbnfToLarkError

        name = next(iter(forms))
        try:
            grammars = json.dumps({"grammars": self._grammars(forms)})
            engine = LLMatcher(tokenizer, grammars, log_level=0)
            if engine.is_error():
                raise ValueError(engine.get_error())
            matcher = Matcher(engine, self._usual)
            if not matcher.goes_on(matcher.forced([], LOOKAHEAD)):
                raise ValueError("no text in the model's vocabulary fits it, or it is too complex")
        except (ValueError, RecursionError, GbnfToLarkError) as error:
            named, *_ = str(error).split("; following special tokens")
            reason = shorten(named, 300, placeholder=" ...")
            if reason.startswith("panic"):
                reason = "llguidance cannot compile it"
            raise InputError(f"{name}: {reason}") from None
        return matcher

    def _grammars(self, forms: dict[str, Any]) -> list[dict]:
        """The forms as llguidance's grammars, the first of which is the whole text's."""
        # Forcing allows only the usual tokens of a forced text, which must have exactly its bytes.
        written = "".join(map(str, forms.values()))
        plain = self._is_byte_level and written.isascii() and not re.search(r"\\[uUxX]", written)
        lossless = plain and self._tokenizer.decode(self(written)) == written
        head = "" if lossless else '%llguidance {"no_forcing": true}\n'
        space = json.dumps(self._dropped_space)
        if any(forms.get("tools", {}).get("marks", ())):  # which are tokens of their own
            space += "?"
        text = {"lark_grammar": f"{head}start: {space} @{next(iter(forms))}"}
        return [text, *(self._grammar(name, forms) | {"name": name} for name in forms)]

    def _grammar(self, name: str, forms: Mapping[str, Any]) -> dict:
        """One of the forms as a grammar."""
        from llguidance import LLMatcher, regex_to_lark
        from llguidance.gbnf_to_lark import any_to_lark

        form = forms[name]
        if name == "tools":
            texts = [f"@{other}" for other in forms if other != name]
            return {"lark_grammar": self._calls(form, texts)}
        if name == "grammar":
            return {"lark_grammar": any_to_lark(form)}
        if name == "regex":
            regex = f"/{regex_to_lark(form, '')}/ & /{_writable(self.tokens)}/"
            return {"lark_grammar": f"start: TEXT\nTEXT: {regex}"}
        schema = json.loads(form) if isinstance(form, str) else form
        if not isinstance(schema, dict):
            raise ValueError("a JSON schema is an object")
        text = json.dumps(schema)
        if '"minProperties"' in text and '"patternProperties"' in text:
            raise ValueError("minProperties with patternProperties: use required")
        leave_out(schema)
        check(schema)
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=STYLE)
        return json.loads(grammar)["grammars"][0]

    def _calls(self, tools: Mapping[str, Any], texts: list[str]) -> str:
        """Calls of tools, or a text, in Lark. texts: the rule of a text in a form; without, calls may follow a text"""
        start, between, end = map(self._lark, tools["marks"])
        mark, _, rest = start.partition(" ")
        rules = [
            f"call: %json {json.dumps(schema_of_calls(tools['functions']))}",
            f"calls: {rest} call {f'({between} call)*' * bool(between)} {end}",
            "TEXT: /(?s:.+)/",
        ]
        if texts or not tools["or_text"]:
            rules.append(f"start: {' | '.join([*texts, f'{mark} calls'])}")
        elif mark.startswith("<"):  # a token
            rules.append(f"start: {mark.replace('[', '[^')}* ({mark} calls)?")
        else:
            rules += ["start: TEXT? | head calls", f"head[lazy]: TEXT? {mark}"]
        return "\n".join(rules)

    def _lark(self, mark: str) -> str:
        """A mark in Lark: special tokens, other texts and white space."""
        added = self._tokenizer.get_added_tokens_decoder().items()
        rules = {token.content: f"<[{i}]>" for i, token in added if not self.tokens[i]}
        parts = re.split(f"({'|'.join(map(re.escape, rules))}|\\s+)", mark)
        return " ".join(rules.get(part, json.dumps(part)) for part in parts if part)

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


def _writable(tokens: Sequence[bytes]) -> str:
    """A regular expression for the texts that these tokens can write, as far as single characters say."""
    texts = {token.decode(errors="replace") for token in tokens}
    listed = "".join(f"\\x{{{ord(text):x}}}" for text in texts if len(text) == 1)
    if "\ufffd" in texts:  # there are tokens for parts of characters
        listed += r"\x{80}-\x{10ffff}"
    return f"[{listed}]*"
