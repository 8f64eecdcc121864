"""Prompts, and a model's text side: all that stands between its prompts and texts, and its tokens."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from tokenizers import Encoding, Tokenizer

from speculative.common.errors import InputError, first_line
from speculative.step.options import TOKENS
from speculative.text.generation import GenerationDefaults
from speculative.text.languages import LONGEST, NAME, Languages, filled, tag_of
from speculative.text.translation_prompt import TranslationPrompt

Codes = tuple[str | None, str | None]  # of the source's and the target's language


@dataclass(frozen=True)
class Prompt:
    """A prompt to decode.

    content: a text; a chat's messages, each with `role` and `content`, for the model's chat template; or the ids of all
        tokens that the model reads
    reference: a text that the output will probably resemble: drafts are copied from it
    template_kwargs: arguments for the chat template, such as enable_thinking
    """

    content: Any
    reference: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_text(self) -> bool:
        return isinstance(self.content, str)

    @property
    def is_chat(self) -> bool:
        content = self.content
        return bool(content) and not self.is_text and all(isinstance(x, Mapping) for x in content)

    @property
    def user_text(self) -> str:
        """The text, or the last that the user wrote in a chat; "" if there is none."""
        if not self.is_chat:
            return self.content if self.is_text else ""
        texts = [each.get("content") for each in self.content if each.get("role") == "user"]
        return texts[-1] if texts and isinstance(texts[-1], str) else ""

    @property
    def begun(self) -> str:
        """A chat's last message if the answer goes on with it, since it is the assistant's; else ""."""
        last = self.content[-1] if self.is_chat else {}
        begins_anew = self.template_kwargs.get("add_generation_prompt", False)
        goes_on = self.template_kwargs.get("continue_final_message", not begins_anew)
        is_answer = goes_on and last.get("role") == "assistant"
        return str(last.get("content") or "") if is_answer else ""


def check_prompt(prompt: Any) -> Prompt:
    """The prompt as a `Prompt`; InputError if it is empty, or neither valid text nor messages nor token ids."""
    checked = prompt if isinstance(prompt, Prompt) else Prompt(prompt)
    content = checked.content
    reference = checked.reference
    if reference is not None and not isinstance(reference, str):
        raise InputError(f"the reference is {type(reference).__name__}, not text")
    try:
        json.dumps((content, reference), ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise InputError("the prompt is not valid Unicode text") from None
    is_list = isinstance(content, (list, tuple))
    is_listed = is_list and (checked.is_chat or TOKENS.accepts(content))
    if not (checked.is_text or is_listed):
        raise InputError(f"the prompt is {type(content).__name__}, not text, messages or token ids")
    if not content or (checked.is_text and not content.strip()):
        raise InputError("the prompt is empty")
    return checked


class Encoded(NamedTuple):
    text: str  # the user's
    tokens: list[int]  # what the model reads
    prefix: list[int] | None = None  # what the row begins with; None: the model's own prefix
    source_lang: str | None = None  # the model's codes; None: none was asked for
    target_lang: str | None = None
    begun: str = ""  # the beginning of the text, if the user gave it
    # The part of the tokens with a prompt that is a text, and where the user's text begins in that text
    encoding: Encoding | None = None
    begin: int = 0

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The characters of the user's text in each token; of the other tokens, none or some outside it."""
        assert self.encoding is not None
        ids = self.encoding.ids
        first = next(i for i in range(len(self.tokens)) if self.tokens[i : i + len(ids)] == ids)
        inner = [(a - self.begin, b - self.begin) for a, b in self.encoding.offsets]
        return [(0, 0)] * first + inner + [(0, 0)] * (len(self.tokens) - first - len(ids))


@dataclass(frozen=True)
class ChatTemplate:
    """apply: transformers' and mlx-lm's `apply_chat_template`; jinja: the template's text; thinking, calling: the marks
    before and after what the model thinks, and before and after its calls of tools."""

    apply: Callable[..., str]
    jinja: str = ""
    thinking: tuple[str, str] | None = None
    calling: tuple[str, str] | None = None

    def render(self, prompt: Prompt) -> str:
        """The text that the template makes of a chat, with the special tokens. InputError if it refuses the messages."""
        goes_on = bool(prompt.begun)
        arguments = {"add_generation_prompt": not goes_on, "continue_final_message": goes_on}
        arguments |= {**prompt.template_kwargs, "tokenize": False}
        try:
            text = self.apply([dict(message) for message in prompt.content], **arguments)
        except Exception as error:  # templates may raise any class
            refused = f"the chat template refuses these messages: {first_line(error)}"
            raise InputError(refused) from None
        if prompt.user_text.strip() not in text:
            warnings.warn("the chat template leaves out or changes the user's text", stacklevel=2)
        return text

    @cached_property
    def call_marks(self) -> tuple[str, str, str] | None:
        """What the model writes before, between and after calls of tools, as the template renders earlier ones; "" between
        if they are not JSON there, {"name": ..., "arguments": ...}. None if it knows no tools or marks no calls."""
        call = {"name": "f", "arguments": {"a": 1}}
        calls = [{"id": f"call0000{i}", "type": "function", "function": call} for i in range(2)]
        tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}

        def rendered(tools: Any = (tool,), **answer: Any) -> str:
            turns = [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "", **answer},
            ]
            return self.apply(turns, tools=tools, tokenize=False, add_generation_prompt=False)

        try:
            before, after = rendered(content="ANSWER").split("ANSWER")
            if rendered(None, content="ANSWER").startswith(before):
                return None
            _, written = rendered(tool_calls=calls).split(before)
            start, between, end = written.removesuffix(after).split(json.dumps(call))
        except Exception:  # templates may raise any class
            return self.calling and (self.calling[0], "", self.calling[1])
        return (start.lstrip(), between, end) if start.strip() else None

    def thinks(self, prompt: str, begun: str) -> bool:
        """Whether the answer goes on inside what the model thinks. prompt: the end of the rendered prompt; begun: the
        beginning of the answer, if the user gave it."""
        if self.thinking is None:
            return False
        start, end = self.thinking
        last = begun or prompt.rstrip()[-len(start) :]
        return last.rfind(start) > last.rfind(end)


@dataclass(frozen=True)
class TextSide:
    """A model's tokenizers, languages, defaults and chat template.

    source_tokenizer: of prompts, if it is another than that of texts; None: `tokenizer`
    languages: None if there are none to choose
    hidden: special tokens that a text does not show, besides end and padding
    bos: what a rendered chat template begins with: not to be added again
    start_token: what the decoder of an encoder-decoder model begins with
    translation: how to ask a model with a chat template for a translation
    """

    tokenizer: Tokenizer
    source_tokenizer: Tokenizer | None = None
    languages: Languages | None = None
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    hidden: frozenset[int] = frozenset()
    chat: ChatTemplate | None = None
    bos: str = ""
    start_token: int | None = None
    translation: TranslationPrompt | None = None

    @property
    def prompt_tokenizer(self) -> Tokenizer:
        return self.source_tokenizer or self.tokenizer

    def encode(
        self,
        prompt: Prompt,
        source_lang: str | None = None,
        target_lang: str | None = None,
        prompt_template: str | None = None,
    ) -> Encoded:
        """The tokens of a prompt, a text, a chat's messages or tokens already.

        With a language or a prompt template, a text and each of the user's messages become the model's prompt for
        their translation; without, tokens and prefix are as in transformers. InputError for a language that is unknown,
        missing or cannot be chosen, and for messages without a chat template.
        """
        if not (prompt.is_text or prompt.is_chat):
            if source_lang or target_lang or prompt_template:
                fault = "source_lang, target_lang and prompt_template are not for token ids"
                raise InputError(fault)
            return Encoded(self.prompt_tokenizer.decode(prompt.content), list(prompt.content))
        codes = self.resolve_languages(source_lang, target_lang, prompt_template)
        text = prompt.user_text
        read = prompt
        if prompt.is_chat and self.start_token is not None and not self.chat:
            if not text.strip():
                raise InputError("the chat has no text of the user's, which is the prompt")
            read = Prompt(text)  # an encoder-decoder model reads one
        asks = any(codes) or prompt_template is not None
        if asks:
            read = self._asking(read, codes, prompt_template)
        if read.is_chat:
            encoding = self._rendered(read)
            return Encoded(text, encoding.ids, None, *codes, prompt.begun, encoding)
        begin = read.content.rfind(text)
        if asks and self.languages and self.languages.source and not self.chat:
            tokens, prefix, encoding = self._framed(self.languages, read.content, codes)
            return Encoded(text, tokens, prefix, *codes, prompt.begun, encoding, begin)
        # A rendered template may come as a text.
        special = not (self.bos and read.content.startswith(self.bos))
        encoding = self.prompt_tokenizer.encode(read.content, add_special_tokens=special)
        return Encoded(text, encoding.ids, None, *codes, prompt.begun, encoding, begin)

    def _asking(self, prompt: Prompt, codes: Codes, prompt_template: str | None) -> Prompt:
        """The prompt with one for its translation in place of each text of the user's, if the model is told in words."""
        translation = TranslationPrompt((prompt_template,)) if prompt_template else self.translation
        content = prompt.content
        if translation is None:
            if prompt.is_chat or self.languages is None or self.languages.source:
                return prompt
            words = self.languages.codes.get(codes[1] or "", "")
            return replace(prompt, content=f"{words}{content}")
        if prompt.is_text and prompt_template:
            return replace(prompt, content=translation.content(content, *codes))
        messages = [{"role": "user", "content": content}] if prompt.is_text else content
        messages = [dict(message) for message in messages]
        for message in messages:
            if message.get("role") == "user" and isinstance(message.get("content"), str):
                message["content"] = translation.content(message["content"], *codes)
        arguments = {"enable_thinking": False, **prompt.template_kwargs}
        return replace(prompt, content=messages, template_kwargs=arguments)

    def _rendered(self, prompt: Prompt) -> Encoding:
        if self.chat is None:
            raise InputError("this model has no chat template")
        if self.languages and prompt.user_text:
            raise InputError("target_lang: the chat template has to be told both languages")
        return self.tokenizer.encode(self.chat.render(prompt), add_special_tokens=False)

    def _framed(
        self, languages: Languages, text: str, codes: Codes
    ) -> tuple[list[int], list[int] | None, Encoding]:
        """The tokens that the model reads and those that a row begins with, in its layout, and those of the text alone."""
        encoding = self.prompt_tokenizer.encode(text, add_special_tokens=False)
        source, target = (languages.codes.get(code or "") for code in codes)
        named = {"start": self.start_token, "source": source, "target": target}
        parts = {name: [token] for name, token in named.items() if isinstance(token, int)}
        parts["text"] = encoding.ids
        # Without a source language use the tokenizer's, without a target language the model's.
        tokens = filled(languages.source, parts) or self.prompt_tokenizer.encode(text).ids
        return tokens, filled(languages.prefix, parts) or None, encoding

    def resolve_languages(
        self, source_lang: str | None, target_lang: str | None, template: str | None = None
    ) -> Codes:
        """The model's own codes for languages given by code or name; None stays None. template: the user's prompt for
        translating. InputError for a language that is unknown or cannot be chosen."""
        languages = self.languages

        def code_of(option: str, name: str | None) -> str | None:
            if not name:
                return None
            if languages is None and not (self.translation or template):
                missing = "this model has no languages to choose from"
                raise InputError(f"{option}: {missing}; prompt_template can name them")
            if languages is None or (template and not languages.source):  # the prompt may name any
                if not NAME.fullmatch(name):
                    raise InputError(f"{option}: no language {name[:LONGEST]!r}")
                return tag_of(name) or name
            return languages.find(option, name)

        return code_of("source_lang", source_lang), code_of("target_lang", target_lang)

    def default_languages(self, prefix: Sequence[int]) -> Codes:
        """The codes of the languages that the model translates from and to when not told; None: unknown, or none.
        prefix: the model's, of an empty prompt."""
        if self.languages is None:
            return None, None
        by_token = {token: code for code, token in self.languages.codes.items()}
        read = self.prompt_tokenizer.encode("").ids
        source = next((by_token[t] for t in read if t in by_token), self.languages.reads)
        only = next(iter(by_token.values())) if len(by_token) == 1 else None
        return source, next((by_token[t] for t in prefix if t in by_token), only)

    def prompt_format(
        self,
        system_prompt: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        ignore_chat_template: bool = False,
        prefill: str | None = None,
    ) -> "PromptFormat":
        """InputError for settings of a chat template if none is in use."""
        has_template = self.chat is not None and not ignore_chat_template
        begins = prefill and self.start_token is None
        if not has_template and (begins or (system_prompt, template_kwargs) != (None, None)):
            settings = "a system prompt, a template's setting and the beginning of an answer"
            raise InputError(f"{settings} need a chat template, and none is in use")
        return PromptFormat(system_prompt, template_kwargs or {}, has_template, prefill)


@dataclass(frozen=True)
class PromptFormat:
    """Puts texts into the chat template. Without one, or if it is not to be used, a prompt stays as it is."""

    system_prompt: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    has_template: bool = False  # whether a chat template is in use
    prefill: str | None = None  # the beginning of the answer

    @property
    def first_messages(self) -> list[dict[str, Any]]:
        if self.system_prompt is None:
            return []
        return [{"role": "system", "content": self.system_prompt}]

    def prompt(self, content: Any) -> Any:
        """A text as the user's first message. Anything else stays as it is."""
        prompt = content if isinstance(content, Prompt) else Prompt(content)
        if not prompt.is_text or not (self.has_template or self.prefill):
            return content
        messages = [*self.first_messages, {"role": "user", "content": prompt.content}]
        if self.prefill:
            messages.append({"role": "assistant", "content": self.prefill})
        return Prompt(messages, prompt.reference, self.template_kwargs)
