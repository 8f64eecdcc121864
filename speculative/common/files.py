"""Files and folders that appear whole or not at all, and journals of work that may be interrupted.

What is unfinished is in a hidden file beside its output, whose name is always the same: the next run replaces what a
killed one has left. A link stands for what it points to.
"""

import fcntl
import filecmp
import json
import os
import shutil
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from speculative.common.errors import InputError


def followed(path: Path) -> Path:
    """What a link points to; any other path, made absolute."""
    return Path(os.path.realpath(path))


def hidden(path: Path, ending: str) -> Path:
    """The file beside `path` that belongs to it. With a number: a long name is cut."""
    path = followed(path)
    number = zlib.crc32(os.fsencode(path.name))
    return path.parent / f".{path.name[:50]}.{number:08x}.{ending}"


def check_free(path: Path, force: bool) -> None:
    """InputError if `path` is there, unless `force`, or cannot be replaced."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file")
    if path.exists() and not force:
        raise InputError(f"{path} already exists; --force replaces it")


class Busy(InputError):
    """Another run is writing it."""


def lock(file: Any, path: Path, wait: bool = False) -> None:
    """Keep other runs off `path` until `file` is closed. Busy if one is writing it, unless `wait`."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Busy(f"{path}: another run is writing it") from None
    except OSError:
        pass  # a file system without locks


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Keep other runs off a folder, as `lock` does. It is made and, if it stays empty, removed."""
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder, os.O_RDONLY)
    try:
        lock(file, folder, wait)
        yield
        with suppress(OSError):
            folder.rmdir()
    finally:
        os.close(file)


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
    without `force` if something else is there by then."""
    target = followed(path)
    partial = hidden(path, "partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with naming_file(path, partial):
            yield partial
            if not partial.is_dir():
                if not (target.is_file() and filecmp.cmp(partial, target, shallow=False)):
                    check_free(path, force)
            elif target.exists():
                shutil.rmtree(target)
            partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):
            partial.unlink()


class Journal:
    """The finished work of a run, by key, for the next one if it is interrupted. A line each: the key, a checksum, and the
    entry as JSON. A line that was cut off or damaged does not count."""

    def __init__(self, output: Path):
        """InputError if another run is writing the output."""
        self.output = output
        self._path = hidden(output, "journal")
        with naming_file(output, self._path):
            self._file = open(self._path, "a+b", buffering=0)  # noqa: SIM115 (`close` does)
        lock(self._file, output)
        self._places = defaultdict[str, list[tuple[int, int]]](list)  # by key: sizes, offsets
        self._size = 0
        with self._path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    key = line.partition(b" ")[0].decode(errors="replace")
                    self._places[key].append((len(line), self._size))
                    self._size += len(line)
        self._file.truncate(self._size)
        self.has_entries = bool(self._places)  # of an earlier run

    def take(self, key: str) -> Any:
        """The first entry of an earlier run that was not taken; None: there is none."""
        while self._places[key]:
            line = os.pread(self._file.fileno(), *self._places[key].pop(0))
            checksum, _, data = line.partition(b" ")[2].partition(b" ")
            if checksum == _checksum(data):
                return json.loads(data)
        return None

    def append(self, key: str, entry: Any) -> None:
        """Add what is finished. After an OSError, such as a full disk's, nothing more can be added."""
        data = json.dumps(entry).encode() + b"\n"
        line = b" ".join([key.encode(), _checksum(data), data])
        with naming_file(self.output, self._path):
            while line:
                written = self._file.write(line)
                self._size += written
                line = line[written:]

    def remove(self) -> None:
        """Forget it: the output is written."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave it to the next run, if there is something in it. Nothing can be taken any more."""
        self._places.clear()
        if not self._size:
            self.remove()
        self._file.close()


def _checksum(data: bytes) -> bytes:
    return b"%08x" % zlib.crc32(data)
