"""The one exception that every part raises for what a user gave, and the words for the system's."""

import os


class InputError(ValueError):
    """What the user gave cannot be used. The message is one line: what is wrong, what to do."""

    def __str__(self) -> str:
        text = super().__str__()[:9999]  # which may quote a hostile file's names
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def described(error: Exception) -> str:
    """The error in one line. A file's name is as the user wrote it, where pathlib has PosixPath('...')."""
    if isinstance(error, OSError) and isinstance(error.filename, os.PathLike):
        return f"[Errno {error.errno}] {error.strerror}: {os.fspath(error.filename)!r}"
    return str(error) or type(error).__name__
