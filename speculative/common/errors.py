"""The one exception that every part raises for a user's mistake."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


class InputError(ValueError):
    """Something the user gave cannot be used. The message is one line: what is wrong, what to do."""

    def __str__(self) -> str:
        text = super().__str__()[:9999]  # may quote names from a hostile file
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Let every InputError raised inside name `path`, or a file in it."""
    try:
        yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from None
