"""Conversations: how a prompt gets into the model's chat template, and main.py --chat."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from decoder import Content, Options, SpeculativeDecoder
from errors import InputError
from terminal.display import Display
from terminal.summary import Summary
from text.prompts import Prompt
from text.text_side import TextSide


@dataclass(frozen=True)
class Conversation:
    """What the flags say about the chat template. Without one, or if it is not to be used, a prompt stays as it is."""

    system_prompt: str | None = None
    template: Mapping[str, Any] = field(default_factory=dict)  # arguments for the chat template
    in_use: bool = False

    @classmethod
    def of(
        cls,
        text: TextSide,
        system_prompt: str | None,
        template: Mapping[str, Any] | None,
        ignore_chat_template: bool,
    ) -> "Conversation":
        """InputError for settings of a chat template if none is in use."""
        in_use = text.chat is not None and not ignore_chat_template
        if not in_use and (system_prompt is not None or template is not None):
            missing = "none is in use" if text.chat else "this model has no chat template"
            raise InputError(f"a system prompt or a setting needs a chat template: {missing}")
        return cls(system_prompt, template or {}, in_use)

    @property
    def first(self) -> list[dict[str, Any]]:
        """The messages that it begins with."""
        if self.system_prompt is None:
            return []
        return [{"role": "system", "content": self.system_prompt}]

    def prompt(self, content: Content) -> Content:
        """A text as the user's first message. Anything else stays as it is."""
        prompt = content if isinstance(content, Prompt) else Prompt(content)
        if not (self.in_use and prompt.is_text):
            return content
        message = {"role": "user", "content": prompt.content}
        return Prompt([*self.first, message], prompt.reference, self.template)


def chat(
    decoder: SpeculativeDecoder,
    options: Options,
    conversation: Conversation,
    display: Display,
) -> None:
    """Answer what is typed on the terminal until /q or the end of the input. With a chat template the conversation goes
    on; otherwise each prompt stands alone."""
    messages = conversation.first
    for typed in _typed_lines():
        if typed == "/r":
            messages = conversation.first
            continue
        messages.append({"role": "user", "content": typed})
        prompt = Prompt(messages, template=conversation.template) if conversation.in_use else typed
        text = ""
        summary = Summary()
        try:
            for response in decoder.stream_generate(prompt, **vars(options)):
                print(display.text(response), end="", flush=True)
                text += response.text
            summary.add(response)
        except KeyboardInterrupt:
            pass
        except InputError as error:
            print(error, file=sys.stderr)
            messages.pop()
            continue
        print()
        messages.append({"role": "assistant", "content": text})
        summary.print(decoder, options, display.verbose)


def _typed_lines() -> Iterator[str]:
    """What is typed, without empty lines, until /q or the end of the input."""
    sign = ""
    if sys.stdin.isatty():
        import_module("readline")  # arrows in `input`
        sign = ">> "
        print("/r begins anew, /q ends, Ctrl-C stops an answer", file=sys.stderr)
    while True:
        try:
            line = input(sign).strip()
        except EOFError:
            return
        if line == "/q":
            return
        if line:
            yield line
