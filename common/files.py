"""Files and folders that appear whole or not at all, and journals of work that may be interrupted.

What is unfinished is in a hidden file beside its output, whose name is always the same: the next run replaces what a
killed one has left.
"""

import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from common.errors import InputError


def hidden(path: Path, ending: str) -> Path:
    """The file beside `path` that belongs to it. With a number: a long name is cut."""
    number = zlib.crc32(os.fsencode(path.name))
    return path.parent / f".{path.name[:50]}.{number:08x}.{ending}"


def check_free(path: Path, force: bool) -> None:
    """InputError if `path` is there, unless `force`, or cannot be replaced."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file")
    if path.exists() and not force:
        raise InputError(f"{path} already exists; --force replaces it")


@contextmanager
def naming_file(path: Path, partial: Path) -> Iterator[None]:
    """Let OSErrors about `partial`, or about no file, as of a full disk, name `path`."""
    try:
        yield
    except OSError as error:
        if error.errno and str(partial) in f"{error.filename or partial} {error.filename2}":
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


@contextmanager
def replacing(path: Path, force: bool = True) -> Iterator[Path]:
    """Yields a path for a file or a folder that replaces `path` if nothing fails. OSErrors about it name `path`. InputError
    without `force` if that is there."""
    if not force:
        check_free(path, force)
    partial = hidden(path, "partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with naming_file(path, partial):
            yield partial
            if partial.is_dir() and path.exists():
                shutil.rmtree(path)
            partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):
            partial.unlink()


class Journal:
    """The finished work of a run, in JSON lines, for the next one if it is interrupted. The first line is the key, on which
    the others depend. A line that was cut off does not count."""

    def __init__(self, output: Path, key: str, force: bool = False):
        """InputError if another run is writing it, or had another key and has finished something, unless `force`."""
        self._output = output
        self._key = key
        self._path = hidden(output, "journal")
        with naming_file(output, self._path):
            self._file = open(self._path, "a+b", buffering=0)  # noqa: SIM115 (`close` does)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{output}: another run is writing it") from None
        except OSError:
            pass  # a file system without locks
        self._file.seek(0)
        lines = self._file.read().split(b"\n")[:-1]
        if lines[:1] != [json.dumps(key).encode()]:
            if lines[1:] and not force:
                other = "a run with another model, input or options was interrupted"
                raise InputError(f"{output}: {other}; repeat that one, or --force begins anew")
            lines = []
        self.entries = [json.loads(line) for line in lines[1:]]  # of earlier runs
        self._file.truncate(sum(len(line) + 1 for line in lines))
        self._is_empty = not lines

    def append(self, entry: Any) -> None:
        """Add what is finished. After an OSError, such as a full disk's, nothing more can be added."""
        values = [self._key, entry] if self._is_empty else [entry]
        data = "".join(f"{json.dumps(value)}\n" for value in values).encode()
        with naming_file(self._output, self._path):
            while data:
                data = data[self._file.write(data) :]
        self._is_empty = False

    def remove(self) -> None:
        """Forget it: the output is written."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave it to the next run, if there is something in it."""
        if self._is_empty:
            self.remove()
        self._file.close()
