"""What was decoded of a sound, in a file: a run after one that was interrupted takes it from there, in the same order."""

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import read_array, write_array

from speculative.row import ORIGINS, Row
from speech.decoding import Decode
from speech.transcript import Call

Arrays = Sequence[np.ndarray]


class Journal:
    """Stands between a transcript and its `decode` and `call`: what is in the file is not done again, and what is done
    goes there."""

    def __init__(self, path: Path, key: int, decode: Decode, call: Call):
        """path: the file, made if it is missing; key: what texts depend on, or the file begins anew"""
        self._decode, self._call = decode, call
        self._file = path.open("a+b", buffering=0)
        self._file.seek(0)
        self._number = 0  # of the next entry
        (first,) = self._next(lambda: [np.array(key)])
        if first != key:
            self._file.truncate(0)
            self._number = 0
            self._next(lambda: [np.array(key)])

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def decode(self, rows: list[Row]) -> None:
        def decoded() -> Arrays:
            self._decode(rows)
            origins = [[ORIGINS.index(origin) for origin in row.origins] for row in rows]
            parts = zip(rows, origins, strict=True)
            return [np.array([row.generated, each, row.logprobs]) for row, each in parts]

        for row, (tokens, origins, logprobs) in zip(rows, self._next(decoded), strict=True):
            if row.finish_reason is None:
                row.tokens += tokens.astype(int).tolist()
                row.origins += [ORIGINS[origin] for origin in origins.astype(int)]
                row.logprobs += logprobs.tolist()
                row.finish_reason = "stop"

    def call(self, function: Callable[[], Any]) -> list[tuple[np.ndarray, np.ndarray]]:
        """function: returns pairs of arrays"""
        arrays = self._next(lambda: [array for pair in self._call(function) for array in pair])
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    def _next(self, make: Callable[[], Arrays]) -> Arrays:
        """The arrays of the next entry. If the file ends there, was cut off, or belongs to two runs at once, they come
        from `make` and are written."""
        self._number += 1
        start = self._file.tell()
        try:
            number, count = read_array(self._file)
            if number != self._number:
                raise ValueError
            return [read_array(self._file) for _ in range(count)]
        except ValueError:
            self._file.truncate(start)
        arrays = make()
        entry = io.BytesIO()
        for array in (np.array([self._number, len(arrays)]), *arrays):
            write_array(entry, array, allow_pickle=False)
        with suppress(OSError):  # a full disk, for example: what has no entry is decoded again
            if self._file.write(entry.getbuffer()) < len(entry.getbuffer()):
                self._file.truncate(start)
        self._file.seek(0, io.SEEK_END)
        return arrays
