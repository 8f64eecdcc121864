"""Command-line helpers: a user's mistake is one line on stderr and an exit code."""

import argparse
import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from errors import InputError
from terminal import interrupts

USAGE_ERROR, INPUT_ERROR = 2, 1
_MOST = 10**9


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        words = message.partition("unrecognized arguments: ")[2].split()
        known = self._option_string_actions
        flags = [word.partition("=")[0] for word in words if word.startswith("--")]
        meant = [m for flag in flags for m in get_close_matches(flag, known, 1, 0.75)]
        hint = f"is {meant[0]} meant?" if meant else "see --help"
        if words and not flags and "--prompt" in known:
            hint = "a text goes behind --prompt"
        self.exit(USAGE_ERROR, one_line(f"{self.prog}: {message} ({hint})") + "\n")

    def print_help(self, file=None) -> None:
        print(self.format_help(), end="", file=file)  # argparse's own is silent when it cannot


def one_line(text: str) -> str:
    """The text, in which a name of a file, say, may have line breaks, on one line."""
    return " ".join(text.splitlines())


def name(text: str) -> str:
    """The type of an argument that names a file or a model."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def path(text: str) -> Path:
    return Path(name(text))


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # or more digits than Python reads
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a whole number") from None


def count(text: str) -> int:
    """The type of an argument that counts what memory has to hold, and is no option of decoding."""
    number = whole(text)
    if number > _MOST:
        raise argparse.ArgumentTypeError(f"{text[:20]} is more than {_MOST}")
    return number


def positive(text: str) -> int:
    number = count(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def run(main: Callable[[], None]) -> None:
    """Run a command's `main` and exit the process: errors of the user's in one line."""
    try:
        interrupts.no_more()
        _open_streams()
        try:
            main()
        finally:
            _flush()  # after --help, too
    except BrokenPipeError:  # whoever read our output has gone
        sys.exit(INPUT_ERROR)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(interrupts.INTERRUPTED)
    except Exception as error:
        if (message := _message(error)) is None:
            raise
        print(one_line(f"{Path(sys.argv[0]).name}: {message}"), file=sys.stderr)
        sys.exit(INPUT_ERROR)


def _open_streams() -> None:
    """Python has None for a stream that the caller closed: nothing to read, nowhere to complain."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        raise InputError("standard output is closed")


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        # Python would try again, and complain, while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _message(error: Exception) -> str | None:
    """What the user should know of the error; None: it is ours, and shows its traceback."""
    if isinstance(error, UnicodeEncodeError):
        character, encoding = error.object[error.start], error.encoding
        return (
            f"the output's encoding, {encoding}, has no {character!r}; PYTHONIOENCODING=utf-8 has"
        )
    # MLX raises RuntimeError: "[malloc] Unable to allocate ..."
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and "allocate" in str(error)
    ):
        return f"too little memory for so long a text, or so many side by side: {error}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) if isinstance(error, (InputError, OSError)) else None
