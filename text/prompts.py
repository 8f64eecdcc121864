"""Prompts, checked and turned into rows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from errors import InputError
from speculative.row import Row


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
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError(f"the {name} is not valid Unicode text")
    if not found.text.strip():
        raise InputError("the prompt is empty")
    return found


class Prompts:
    """Rows for prompts. Reads up to `window` prompts that are available and gives the longest first."""

    def __init__(self, prompts: Iterable, make: Callable[[Any], list[Row]], window: int):
        """make: makes the rows of a prompt."""
        self._prompts, self._make, self._window = enumerate(prompts), make, window
        self._ready = getattr(prompts, "ready", lambda: True)
        self._waiting: list[Row] = []  # the shortest first
        self._ended = False
        # unfinished row -> (index of its prompt, its index within the prompt)
        self.index: dict[Row, tuple[int, int]] = {}

    def take(self, count: int, wait: bool) -> list[Row]:
        if len(self._waiting) < count:
            self._read(wait and not self._waiting)
        return [self._waiting.pop() for _ in range(min(count, len(self._waiting)))]

    def _read(self, wait: bool) -> None:
        found = 0
        while found < self._window and not self._ended:
            if not (self._ready() or (wait and not found)):
                break
            new = next(self._prompts, None)
            self._ended = new is None
            if new:
                rows = self._make(new[1])
                self._waiting += rows
                self.index |= {row: (new[0], i) for i, row in enumerate(rows)}
                found += 1
        self._waiting.sort(key=lambda row: self.index[row], reverse=True)
        self._waiting.sort(key=lambda row: len(row.prompt))
