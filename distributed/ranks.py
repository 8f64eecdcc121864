"""Ranks: processes that run one model together, started by mlx.launch, talking by mx.distributed.

What every rank does must follow from what all of them know, or they wait for each other for ever.
So prompts are read by rank 0 alone, its tokens and its clock count, and a step that fails on one rank
fails on all.

A rank that dies is not always reported by MLX's ring (0.32): a sum that it has no part in may come back
wrong, and one of the next ones never. Hence a tag on what ranks exchange, and a watch on the connections.
"""

import json
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from errors import InputError

T = TypeVar("T")

LOST = "lost another rank: it has ended, or its machine is off the network"
_LINES = 64  # of a prompt file, read and passed on at a time
_GRACE = 3.0  # seconds: ranks may find the same mistake one after the other
_LAST_WORD = 1.0  # seconds after SIGTERM: to see why, or to finish what is being printed


class RankLost(InputError):
    """Another rank has ended; what the ranks computed since is wrong."""


class Ranks:
    """This process among those that run a model together. Every method is called by all of them, in
    the same order; with one rank, each does the obvious thing at no cost."""

    def __init__(self, group: mx.distributed.Group | None = None):
        """group: that of `mx.distributed.init()`; None: this process is alone."""
        self.group = group
        self.rank, self.size = (group.rank(), group.size()) if group else (0, 1)
        self._exchanges = 0

    # Tokens and times

    def share(self, x: mx.array) -> mx.array:
        """x, an array of integers, as rank 0 has it; stays on the device."""
        # A product, not a choice: x is computed on every rank, with the sums that it takes.
        mine = x * int(self.rank == 0)
        return mx.distributed.all_sum(mine, group=self.group) if self.size > 1 else x

    def broadcast(self, x: mx.array | float) -> Any:
        """x as rank 0 has it, on the host: numbers of up to 32 bits, or one float.

        Raises RankLost where a rank did not take part.
        """
        if self.size == 1:
            return np.array(x)
        if isinstance(x, float):
            halves = self.broadcast(mx.array(np.array([x]).view(np.int32)))
            return halves.view(np.float64)[0]
        if x.dtype == mx.float32:
            return self.broadcast(x.view(mx.int32)).view(np.float32)
        return self._sum(x.astype(mx.int32) * int(self.rank == 0))

    def _sum(self, x: mx.array) -> np.ndarray:
        """The ranks' sum of x, int32, which no more than one of them has other than 0 at a place.

        In the upper half of 64 bits each rank adds the number of this exchange.
        """
        self._exchanges = self._exchanges % 2**20 + 1
        tag = mx.array(self._exchanges << 32, mx.int64)
        low = x.astype(mx.uint32).astype(mx.int64)  # the same bits
        total = np.array(mx.distributed.all_sum(low + tag, group=self.group))
        if (total >> 32 != self.size * self._exchanges).any():
            raise RankLost(LOST)
        return total.astype(np.uint32).view(np.int32)

    # Texts and steps

    def gather(self, text: str) -> list[str]:
        """Every rank's text, in the order of ranks."""
        if self.size == 1:
            return [text]
        data = np.frombuffer(text.encode(), np.uint8)
        lengths = np.zeros(self.size, np.int32)
        lengths[self.rank] = len(data)
        lengths = self._sum(mx.array(lengths))
        parts = np.zeros((self.size, max(lengths.max(), 1)), np.int32)
        parts[self.rank, : len(data)] = data
        parts = self._sum(mx.array(parts))
        return [
            part[:length].astype(np.uint8).tobytes().decode()
            for part, length in zip(parts, lengths, strict=True)
        ]

    def together(self, step: Callable[[], T]) -> T:
        """This rank's step(). Where it is InputError or OSError on one rank, all raise InputError."""
        if self.size == 1:
            return step()
        result: Any = None
        error = ""
        try:
            result = step()
        except (InputError, OSError) as raised:
            error = str(raised) or type(raised).__name__
        errors = self.gather(error)
        if any(errors):
            rank, error = next((r, e) for r, e in enumerate(errors) if e)
            raise InputError(error if errors == [error] * self.size else f"rank {rank}: {error}")
        return result

    def in_turn(self, step: Callable[[], T]) -> T:
        """This rank's step(), when the ranks before it have done theirs. Errors: as `together`."""
        results: list[Any] = [
            self.together(step if rank == self.rank else lambda: None) for rank in range(self.size)
        ]
        return results[self.rank]

    def from_first(self, step: Callable[[], object]) -> Any:
        """What step() returns on rank 0, which must fit into JSON. Errors: as `together`."""
        result = self.together(step if self.rank == 0 else lambda: None)
        if self.size == 1:
            return result
        return json.loads(self.gather(json.dumps(result))[0])

    def lines(self, file: Callable[[], Iterable[bytes]]) -> Iterator[bytes]:
        """The lines of the file that rank 0 opens by file(), read as they are needed."""
        if self.size == 1:
            return iter(file())
        lines = self.together(lambda: iter(file()) if self.rank == 0 else iter(()))
        return self._shared_lines(lines)

    def _shared_lines(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        def read() -> list[str]:
            return [line.decode("latin-1") for line in islice(lines, _LINES)]

        while chunk := self.from_first(read):
            yield from (line.encode("latin-1") for line in chunk)

    def check_same(self, **values: str) -> None:
        """InputError, which names the first, where a rank has another value than rank 0."""
        all_values = [json.loads(text) for text in self.gather(json.dumps(values))]
        for rank, others in enumerate(all_values):
            for name, value in all_values[0].items():
                if others[name] != value:
                    name = name.replace("_", " ")
                    raise InputError(
                        f"the ranks disagree: rank {rank} has another {name} than rank 0"
                    )


ALONE = Ranks()


# ---------------------------------------------------------------------------------------------
# A command as several processes


@contextmanager
def session() -> Iterator[Ranks]:
    """The ranks of a command that mlx.launch may have started; alone where it has not.

    Only rank 0 prints, unless something happens to another rank alone. When a rank ends without the
    others, they end as well, with one line on stderr and exit code 1. All leave together.
    """
    if not _launched():
        yield ALONE
        return
    group, sockets = _connect()
    ranks, watch = Ranks(group), _Watch(sockets)
    try:
        with _quiet(ranks.rank > 0):
            yield ranks
            ranks.broadcast(0.0)  # nobody leaves before rank 0 has printed everything
    except (InputError, SystemExit, KeyboardInterrupt) as error:
        if ranks.rank == 0 or isinstance(error, RankLost):
            raise
        # All ranks fail alike, and mlx.launch ends all as soon as one has: rank 0 says why, first.
        watch.wait_for_end(_GRACE)
        sys.exit(error.code if isinstance(error, SystemExit) else 1)
    except RuntimeError as error:
        if "[ring]" in str(error):  # MLX noticed
            raise RankLost(LOST) from None
        raise
    finally:
        watch.stop()


def _launched() -> bool:
    """Whether this process is one of several. (One alone gets an empty file, which MLX rejects.)"""
    hostfile = os.environ.get("MLX_HOSTFILE")
    one = hostfile is not None and not Path(hostfile).read_text().strip()
    return "MLX_RANK" in os.environ and not one


def _connect() -> tuple[mx.distributed.Group, list[socket.socket]]:
    """The group, and the connections to this rank's neighbours."""
    before = _open_files()
    try:
        group = mx.distributed.init(strict=True)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"the ranks found no connection: {error}") from None
    sockets = []
    for number in _open_files() - before:
        # Not what is no socket, nor one that MLX left open when the neighbour was not there yet.
        with suppress(OSError):
            connection = socket.socket(fileno=os.dup(number))
            connection.getpeername()
            sockets.append(connection)
    return group, sockets


def _open_files() -> set[int]:
    return {int(file.name) for file in Path("/dev/fd").iterdir()}


@contextmanager
def _quiet(quiet: bool) -> Iterator[None]:
    if not quiet:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


class _Watch:
    """Ends the process when a neighbour has closed its connection, for MLX would wait for ever.

    mlx.launch ends all ranks by SIGTERM at once when one has ended: the watch has the last word then,
    too. (Python's own handlers have to wait for MLX.)
    """

    def __init__(self, sockets: list[socket.socket]):
        self._sockets = sockets
        for connection in sockets:
            _keep_alive(connection)
        self._stopped, self._ended = False, threading.Event()
        self._lock = threading.Lock()  # whoever has it has the last word
        self._signals, signalled = socket.socketpair()
        signalled.setblocking(False)
        signal.set_wakeup_fd(signalled.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)  # the watch hears of it
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        terminated = closed = math.inf  # when SIGTERM came, and when a neighbour's end was seen
        while True:
            heard, now = self._is_terminated(), time.monotonic()
            if heard:
                terminated = min(terminated, now)
            if closed == math.inf and any(map(_is_closed, self._sockets)):
                closed = now
                self._ended.set()
            with self._lock:
                is_late = max(closed, terminated) < math.inf or now > closed + _GRACE
                if is_late and not self._stopped:
                    name = Path(sys.argv[0]).name
                    print(f"{name}: {LOST}", file=sys.__stderr__, flush=True)
                    os._exit(1)
            if now > terminated + _LAST_WORD:
                os._exit(128 + signal.SIGTERM)

    def _is_terminated(self) -> bool:
        """Whether SIGTERM comes within a tenth of a second."""
        heard, _, _ = select.select([self._signals], [], [], 0.1)
        return bool(heard) and signal.SIGTERM in self._signals.recv(64)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True

    def wait_for_end(self, seconds: float) -> None:
        """Wait until a neighbour has ended, which is no mishap any more."""
        self.stop()
        self._ended.wait(seconds)


def _keep_alive(connection: socket.socket) -> None:
    """Have the system close the connection, too, when the other machine is off the network: within
    20 s. What a system does not know is left out."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = dict(TCP_KEEPIDLE=5, TCP_KEEPALIVE=5, TCP_KEEPINTVL=5, TCP_KEEPCNT=3)
    for name, value in (options | dict(TCP_USER_TIMEOUT=20_000)).items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:  # open, and nothing has come
        return False
    except OSError:
        return True
