"""Prompts, checked."""

from dataclasses import dataclass, replace
from typing import Any

from errors import InputError
from speculative.options import TOKENS


@dataclass(frozen=True)
class Prompt:
    """A prompt, and a text that its output will probably resemble: drafts are copied from it."""

    text: Any  # a text, or the ids of all tokens that the model reads
    reference: str | None = None
    tokens: list[int] | None = None  # set by `check_prompt`, if there is no text


def check_prompt(prompt: Any) -> Prompt:
    """The prompt as a `Prompt`; InputError if it is empty, or neither valid text nor token ids."""
    found = prompt if isinstance(prompt, Prompt) else Prompt(prompt)
    if isinstance(found.text, (list, tuple)) and TOKENS.accepts(found.text):
        found = replace(found, text="", tokens=[*found.text])
    for name, text in (("prompt", found.text), ("reference", found.reference or "")):
        if not isinstance(text, str):
            wanted = "text" if name == "reference" else "text or a list of token ids"
            raise InputError(f"the {name} is {type(text).__name__}, not {wanted}")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"the {name} is not valid Unicode text") from None
    if not (found.tokens or found.text.strip()):
        raise InputError("the prompt is empty")
    return found
