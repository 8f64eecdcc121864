"""Prompts, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from errors import InputError
from speculative.options import TOKENS


@dataclass(frozen=True)
class Prompt:
    """What to decode.

    content: a text; a chat's messages, each with `role` and `content`, for the model's chat template; or the ids of all
        tokens that the model reads
    reference: a text that the output will probably resemble: drafts are copied from it
    template: arguments for the chat template, such as enable_thinking
    """

    content: Any
    reference: str | None = None
    template: Mapping[str, Any] = field(default_factory=dict)

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
    if checked.reference is not None:
        _check_text("reference", checked.reference)
    content = checked.content
    if isinstance(content, str):
        _check_text("prompt", content)
        if not content.strip():
            raise InputError("the prompt is empty")
    elif not isinstance(content, (list, tuple)) or not (checked.is_chat or TOKENS.accepts(content)):
        raise InputError(f"the prompt is {type(content).__name__}, not text, messages or token ids")
    elif not content:
        raise InputError("the prompt is empty")
    return checked


def _check_text(name: str, text: Any) -> None:
    if not isinstance(text, str):
        raise InputError(f"the {name} is {type(text).__name__}, not text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"the {name} is not valid Unicode text") from None
