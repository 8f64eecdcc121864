"""Documents read and written in a process of their own, with limits of time and memory."""

import pickle
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from apps.documents import read
from apps.documents.document import Document
from speculative.common.errors import InputError

SECONDS = 30
MEMORY = 2 << 30  # bytes; Linux alone keeps to it
_POLL = 0.2  # seconds between two calls of `check`


def read_apart(path: Path, data: bytes, check: Callable[[], object]) -> Document:
    """As `documents.read`, within the limits, as later `write`. check: called meanwhile; what it raises gives it up."""
    ask = partial(_call, check, path, data)
    return Document(ask(), ask)


def _call(check: Callable[[], object], *arguments: Any) -> Any:
    """The result of `_answer` for these arguments in another process."""
    command = [sys.executable, "-m", "apps.documents.apart"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    answer = None
    end = time.monotonic() + SECONDS
    with ExitStack() as stack:
        # A file: `communicate` goes on reading after a timeout, but not writing to a pipe (Python 3.11).
        given = stack.enter_context(TemporaryFile())
        pickle.dump(arguments, given)
        given.seek(0)
        pipes |= {"stdin": given, "cwd": Path(__file__).parents[2]}
        process = stack.enter_context(subprocess.Popen(command, **pipes))
        try:
            while answer is None:
                with suppress(subprocess.TimeoutExpired):
                    answer, _ = process.communicate(timeout=_POLL)
                if answer is None and time.monotonic() > end:
                    raise InputError("the document takes too long to read")
                check()
        finally:
            process.kill()
    if not answer:
        raise InputError("the document cannot be read, or not in so little memory and time")
    result = pickle.loads(answer)
    if isinstance(result, InputError):
        raise result
    return result


def _answer(path: Path, data: bytes, *texts: Any) -> Any:
    """A document's passages or, with texts and more of `write`'s, it written."""
    document = read(path, data)
    if not texts:
        return document.passages
    return document.write(*texts)


def main() -> None:
    with suppress(ValueError, OSError):  # macOS takes some limits only in part
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        result = _answer(*pickle.load(sys.stdin.buffer))
    except InputError as error:
        result = error
    pickle.dump(result, sys.stdout.buffer)


if __name__ == "__main__":
    main()
