"""Prompts, and a model's text side: all that stands between its prompts and texts, and its tokens."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tokenizers import Encoding, Tokenizer

from common.errors import InputError, first_line
from speculative.options import TOKENS
from text.generation import GenerationDefaults
from text.languages import Languages, tag_of
from text.translation_prompt import TranslationPrompt


@dataclass(frozen=True)
class Prompt:
    """What to decode.

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
        """Whether it is a chat's messages."""
        content = self.content
        return bool(content) and not self.is_text and all(isinstance(x, Mapping) for x in content)


def check_prompt(prompt: Any) -> Prompt:
    """The prompt as a `Prompt`; InputError if it is empty, or neither valid text nor messages nor token ids."""
    checked = prompt if isinstance(prompt, Prompt) else Prompt(prompt)
    content = checked.content
    reference = checked.reference
    if reference is not None and not isinstance(reference, str):
        raise InputError(f"the reference is {type(reference).__name__}, not text")
    for name, value in (("reference", reference), ("prompt", content)):
        try:
            json.dumps(value, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            raise InputError(f"the {name} is not valid Unicode text") from None
    is_list = isinstance(content, (list, tuple))
    is_listed = is_list and (checked.is_chat or TOKENS.accepts(content))
    if not (isinstance(content, str) or is_listed):
        raise InputError(f"the prompt is {type(content).__name__}, not text, messages or token ids")
    if not content or (isinstance(content, str) and not content.strip()):
        raise InputError("the prompt is empty")
    return checked


class Encoded(NamedTuple):
    """A prompt in tokens."""

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
    """apply: transformers' and mlx-lm's `apply_chat_template`; jinja: the template's text; thinking: the marks before
    and after what the model thinks."""

    apply: Callable[..., str]
    jinja: str = ""
    thinking: tuple[str, str] | None = None

    def render(self, messages: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
        """The prompt that the template makes of messages, with the special tokens. InputError if it refuses them.
        settings: further arguments of `apply`. A last message of the assistant's is continued."""
        goes_on = bool(begun_text(messages, settings))
        arguments = {"add_generation_prompt": not goes_on, "continue_final_message": goes_on}
        arguments |= {**settings, "tokenize": False}
        try:
            text = self.apply([dict(message) for message in messages], **arguments)
        except Exception as error:  # templates may raise any class
            reason = first_line(error)
            raise InputError(f"the chat template refuses these messages: {reason}") from None
        if last_text(messages).strip() not in text:
            warnings.warn("the chat template leaves out or changes the user's text", stacklevel=2)
        return text

    def thinks(self, prompt: str, begun: str) -> bool:
        """Whether the answer goes on inside what the model thinks. prompt: the end of the rendered prompt; begun: the
        beginning of the answer, if the user gave it."""
        if self.thinking is None:
            return False
        start, end = self.thinking
        last = begun or prompt.rstrip()[-len(start) :]
        return last.rfind(start) > last.rfind(end)


def last_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The last text that the user wrote; "" if there is none."""
    texts = [message.get("content") for message in messages if message.get("role") == "user"]
    return texts[-1] if texts and isinstance(texts[-1], str) else ""


def begun_text(messages: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    """The beginning of the answer: a last message of the assistant's, unless the settings of the chat template ask for a
    new one; "" if there is none."""
    last = messages[-1]
    begins_anew = settings.get("add_generation_prompt", False)
    goes_on = settings.get("continue_final_message", not begins_anew)
    return str(last.get("content") or "") if goes_on and last.get("role") == "assistant" else ""


@dataclass(frozen=True)
class TextSide:
    """A model's tokenizers, languages, defaults and chat template.

    source_tokenizer: of prompts, if it is another than that of texts; None: `tokenizer`
    languages: None if there are none to choose
    defaults: the settings of the checkpoint's generation_config.json
    hidden: special tokens that a text does not show, besides end and padding
    chat: None without a chat template
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

        With a language or a prompt template (see `Options`), a text and each of the user's messages become the model's
        prompt for their translation. Without a language the tokens follow the tokenizer's source language and the
        model's own prefix, as in transformers. InputError for a language that is unknown, missing or cannot be chosen,
        and for messages without a chat template.
        """
        read = self._as_one_text(prompt)
        if source_lang is None and target_lang is None and prompt_template is None:
            encoded = self._tokens(read)
        else:
            encoded = self._translation_tokens(read, source_lang, target_lang, prompt_template)
        if read is prompt:
            return encoded
        return encoded._replace(begun=begun_text(prompt.content, prompt.template_kwargs))

    def _as_one_text(self, prompt: Prompt) -> Prompt:
        """The prompt; of a chat for an encoder-decoder model, which reads one text, only the user's last."""
        if not prompt.is_chat or self.chat or self.start_token is None:
            return prompt
        text = last_text(prompt.content)
        if not text.strip():
            raise InputError("the chat has no text of the user's, which is the prompt")
        return Prompt(text)

    def _translation_tokens(
        self,
        prompt: Prompt,
        source_lang: str | None,
        target_lang: str | None,
        prompt_template: str | None,
    ) -> Encoded:
        """The tokens of the model's prompt for a translation."""
        if not (prompt.is_text or prompt.is_chat):
            raise InputError("source_lang, target_lang and prompt_template are not for token ids")
        text = prompt.content if prompt.is_text else last_text(prompt.content)
        codes = self.resolve_languages(source_lang, target_lang, prompt_template)
        asking = self._with_languages(prompt, codes, prompt_template)
        languages = self.languages
        if languages and not self.chat and (languages.source or not prompt_template):
            encoded = self._in_languages(languages, asking.content, *codes)
        else:
            encoded = self._tokens(asking)._replace(source_lang=codes[0], target_lang=codes[1])
        begin = encoded.begin + encoded.text.rfind(text)  # templates end with it
        return encoded._replace(text=text, begin=begin)

    def _with_languages(
        self, prompt: Prompt, codes: tuple[str | None, str | None], prompt_template: str | None
    ) -> Prompt:
        """The prompt with a prompt for its translation in place of each text of the user's, if that is how the model is
        told; nothing is thought first."""
        translation = TranslationPrompt((prompt_template,)) if prompt_template else self.translation
        if translation is None:
            return prompt
        if prompt.is_text and prompt_template:
            return replace(prompt, content=translation.content(prompt.content, *codes))
        content = (
            [{"role": "user", "content": prompt.content}] if prompt.is_text else prompt.content
        )
        messages = [dict(message) for message in content]
        for message in messages:
            if message.get("role") == "user" and isinstance(message.get("content"), str):
                message["content"] = translation.content(message["content"], *codes)
        arguments = {"enable_thinking": False, **prompt.template_kwargs}
        return replace(prompt, content=messages, template_kwargs=arguments)

    def _tokens(self, prompt: Prompt) -> Encoded:
        """The tokens of a prompt as it is."""
        content = prompt.content
        if prompt.is_text:
            # A rendered template may come as a text.
            special = not (self.bos and content.startswith(self.bos))
            encoding = self.prompt_tokenizer.encode(content, add_special_tokens=special)
            return Encoded(content, encoding.ids, encoding=encoding)
        if prompt.is_chat:
            if self.chat is None:
                raise InputError("this model has no chat template")
            if self.languages and last_text(content):
                missing = "the chat template has to be told both languages, and writes the prompt"
                raise InputError(f"target_lang: {missing}")
            text = self.chat.render(content, prompt.template_kwargs)
            encoding = self.tokenizer.encode(text, add_special_tokens=False)
            begun = begun_text(content, prompt.template_kwargs)
            last = last_text(content)
            begin = max(0, text.rfind(last))
            return Encoded(last, encoding.ids, begun=begun, encoding=encoding, begin=begin)
        return Encoded(self.prompt_tokenizer.decode(content), list(content))

    def _in_languages(
        self, languages: Languages, text: str, source_lang: str | None, target_lang: str | None
    ) -> Encoded:
        """The tokens of a text and, in the model's layout, of its languages."""
        if not languages.source:  # the model is told in words
            words = str(languages.codes.get(target_lang or "", ""))
            encoding = self.prompt_tokenizer.encode(f"{words}{text}")
            codes = source_lang, target_lang
            return Encoded(text, encoding.ids, None, *codes, encoding=encoding, begin=len(words))

        def token_of(code: str | None) -> list[int] | None:
            token = languages.codes.get(code or "")
            return [token] if isinstance(token, int) else None

        encoding = self.prompt_tokenizer.encode(text, add_special_tokens=False)
        parts = {
            "text": encoding.ids,
            "source": token_of(source_lang),
            "target": token_of(target_lang),
            "start": None if self.start_token is None else [self.start_token],
        }
        # Without a source language use the tokenizer's, without a target language the model's.
        tokens = languages.source_tokens(parts) or self.prompt_tokenizer.encode(text).ids
        prefix = languages.prefix_tokens(parts) or None
        return Encoded(text, tokens, prefix, source_lang, target_lang, encoding=encoding)

    def resolve_languages(
        self, source_lang: str | None, target_lang: str | None, template: str | None = None
    ) -> tuple[str | None, str | None]:
        """The model's own codes for languages given by code or name; None stays None. template: the user's prompt for
        translating. InputError for a language that is unknown or cannot be chosen."""
        given = {"source_lang": source_lang, "target_lang": target_lang}
        names = [option for option, name in given.items() if name]
        if not names:
            return None, None
        languages = self.languages
        if languages is None and not (self.translation or template):
            missing = "this model has no languages to choose from; prompt_template can name them"
            raise InputError(f"{' and '.join(names)}: {missing}")
        if languages is None or (template and not languages.source):  # the prompt may name any
            codes = [name and (tag_of(name) or name) for name in given.values()]
        else:
            codes = [name and languages.find(option, name) for option, name in given.items()]
        return codes[0], codes[1]

    def default_languages(self, prefix: Sequence[int]) -> tuple[str | None, str | None]:
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
        if prefill and not has_template and self.start_token is None:
            raise InputError(
                "the beginning of an answer needs a chat template: put it in the prompt"
            )
        if not has_template and (system_prompt is not None or template_kwargs is not None):
            missing = "none is in use" if self.chat else "this model has no chat template"
            raise InputError(f"a system prompt or a setting needs a chat template: {missing}")
        return PromptFormat(system_prompt, template_kwargs or {}, has_template, prefill)


@dataclass(frozen=True)
class PromptFormat:
    """How a text gets into the chat template. Without one, or if it is not to be used, a prompt stays as it is."""

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
