"""Prompts, checked."""

from dataclasses import dataclass

from errors import InputError


@dataclass(frozen=True)
class Prompt:
    """A prompt, and a text that its output will probably resemble: drafts are copied from it."""

    text: str
    reference: str | None = None


def check_prompt(prompt: str | Prompt) -> Prompt:
    """The prompt as a `Prompt`; InputError if it is empty or not valid text."""
    found = prompt if isinstance(prompt, Prompt) else Prompt(prompt)
    for name, text in (("prompt", found.text), ("reference", found.reference or "")):
        if not isinstance(text, str):
            raise InputError(f"the {name} is {type(text).__name__}, not text")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"the {name} is not valid Unicode text") from None
    if not found.text.strip():
        raise InputError("the prompt is empty")
    return found
