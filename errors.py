"""The one exception that every part raises for what a user gave."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


class InputError(ValueError):
    """What the user gave cannot be used. The message is one line: what is wrong, what to do."""

    def __str__(self) -> str:
        text = super().__str__()[:9999]  # which may quote a hostile file's names
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """InputErrors from here name `path`, or a file in it."""
    try:
        yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from None
