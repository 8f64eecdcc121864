"""Another library's way to decode: tokens of prompts -> tokens of their texts, each with its end token."""

from collections.abc import Callable, Container, Iterable, Sequence

TokenPrompts = Sequence[list[int]]
OtherWay = Callable[[TokenPrompts], list[list[int]]]


def until_end(tokens: Iterable[int], ends: Container[int]) -> list[int]:
    """The tokens of a text, including its end token."""
    text = []
    for token in tokens:
        text.append(token)
        if token in ends:
            break
    return text
