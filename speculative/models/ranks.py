"""Ranks: processes that run one model together, started by mlx.launch and connected by mx.distributed.

All must take the same decisions, or they wait for each other forever: rank 0 alone reads prompts, its tokens and its clock
decide, and a step that fails on one rank fails on all. When a rank ends, mlx.launch ends the others; until then MLX's ring
(0.32) may return sums without it, so each exchange carries a tag.

Each rank holds a part of the attention heads and feed-forward units, and all other weights; each block ends with one sum over
the ranks (tensor parallelism, Shoeybi et al. 2019, arXiv 1909.08053).
"""

import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.metadata import version
from itertools import chain, islice
from math import gcd
from pathlib import Path
from typing import TypeVar, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.nn.layers.distributed import shard_inplace, shard_linear
from mlx.utils import tree_flatten, tree_map_with_path

from speculative.checkpoints.tensors import to_mlx
from speculative.checkpoints.weights import Quantization
from speculative.common.errors import InputError

T = TypeVar("T")

LOST = "lost the connection to another rank: it has ended, or its machine is off the network"
_LINES = 64  # lines of a prompt file that are read and shared at a time
_GRACE = 3.0  # seconds: ranks may notice the same mistake at different times
# Whether a layer's outputs or inputs are split, by the last part of its name. The bias is [buckets, heads].
_OUTPUTS, _INPUTS = ("query", "key", "value", "gate", "up"), ("out", "down")


class Ranks:
    """The processes that run a model together. All must call every method, in the same order."""

    def __init__(self, group: mx.distributed.Group | None = None):
        """group: from `mx.distributed.init()`; None: a single process."""
        self.group = group
        self.rank = group.rank() if group else 0
        self.size = group.size() if group else 1
        self._exchanges = 0

    def share(self, x: mx.array) -> mx.array:
        """Rank 0's x, an array of integers; stays on the device."""
        # Multiply instead of choosing: every rank must compute x, since that takes sums over ranks.
        mine = x * int(self.rank == 0)
        return mx.distributed.all_sum(mine, group=self.group) if self.size > 1 else x

    def broadcast(self, x: mx.array | float) -> np.ndarray:
        """Rank 0's x, on the host: numbers of up to 32 bits. InputError if a rank did not take part."""
        if self.size == 1:
            return np.array(x)
        x = mx.array(x)
        if x.dtype == mx.float32:
            return self.broadcast(x.view(mx.int32)).view(np.float32)
        return self._sum(x.astype(mx.int32) * int(self.rank == 0))

    def _sum(self, x: mx.array) -> np.ndarray:
        """The sum over ranks of x, int32, of which at each place only one may be other than 0. In the upper 32 of 64 bits each
        rank adds the number of this exchange, as a tag."""
        self._exchanges = self._exchanges % 2**20 + 1
        tag = mx.array(self._exchanges << 32, mx.int64)
        low = x.astype(mx.uint32).astype(mx.int64)  # the same bits
        total = np.array(mx.distributed.all_sum(low + tag, group=self.group))
        if (total >> 32 != self.size * self._exchanges).any():
            raise InputError(LOST)
        return total.astype(np.uint32).view(np.int32)

    def gather(self, text: str) -> list[str]:
        """The texts of all ranks, in order."""
        if self.size == 1:
            return [text]
        data = np.frombuffer(text.encode() + b"\0", np.uint8)  # at least one byte
        lengths = np.zeros(self.size, np.int32)
        lengths[self.rank] = len(data)
        parts = np.zeros((self.size, self._sum(mx.array(lengths)).max()), np.int32)
        parts[self.rank, : len(data)] = data
        parts = self._sum(mx.array(parts)).astype(np.uint8)
        return [part.tobytes().rstrip(b"\0").decode() for part in parts]

    def together(self, step: Callable[[], T]) -> T:
        """This rank's step(). If it raises InputError or OSError on one rank, all ranks raise InputError."""
        if self.size == 1:
            return step()
        result = None
        error = ""
        try:
            result = step()
        except (InputError, OSError) as raised:
            error = str(raised) or type(raised).__name__
        errors = self.gather(error)
        for rank, error in enumerate(errors):
            if error:
                raise InputError(error if len({*errors}) == 1 else f"rank {rank}: {error}")
        return cast(T, result)

    def lines(self, file: Callable[[], Iterable[bytes]]) -> Iterator[bytes]:
        """The lines of the file that rank 0 opens with file(), read as needed."""
        if self.size == 1:
            return iter(file())
        lines = self.together(lambda: iter(file()) if self.rank == 0 else iter(()))

        def next_lines() -> list[bytes]:
            mine = self.together(lambda: [line.hex() for line in islice(lines, _LINES)])
            return [*map(bytes.fromhex, self.gather(" ".join(mine))[0].split())]

        return chain.from_iterable(iter(next_lines, []))

    def check_same(self, **values: str) -> None:
        """InputError, with the name of the first, if a value differs between a rank and rank 0."""
        first, *others = (json.loads(text) for text in self.gather(json.dumps(values)))
        for rank, other in enumerate(others, 1):
            different = [name for name in first | other if other.get(name) != first.get(name)]
            if different:
                name = different[0].replace("_", " ")
                fault = f"rank {rank} has a different {name} from rank 0"
                raise InputError(f"the ranks disagree: {fault}")

    def check_folder(self, folder: Path, *packages: str) -> None:
        """InputError if the ranks have other files in a model's folder, or other versions of MLX or `packages`."""

        def sums() -> dict[str, str]:
            same = {f"version_of_{name}": version(name) for name in ("mlx", *packages)}
            for path in folder.iterdir():
                if path.name == "config.json":  # without where the checkpoint was
                    raw = json.loads(path.read_text(encoding="utf-8"))
                    for name in ("converted_from", "converted_state"):
                        raw.pop(name, None)
                    same[path.name] = json.dumps(raw, sort_keys=True)
                elif path.suffix in (".json", ".npz", ".safetensors"):
                    same[path.name] = _end(path)
            return dict(sorted(same.items()))

        self.check_same(**self.together(sums))


def _end(path: Path) -> str:
    """A file's size, and the checksum of its last MiB, where an npz file has the checksums of its arrays."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 2**20))
        return f"{size} {zlib.crc32(file.read()):08x}"


ALONE = Ranks()


@contextmanager
def session() -> Iterator[Ranks]:
    """The ranks of a command, which mlx.launch may have started. Only rank 0 prints; all exit together."""
    hosts = os.environ.get("MLX_HOSTFILE")
    # For a single process mlx.launch writes an empty file, which MLX rejects.
    if "MLX_RANK" not in os.environ or (hosts and not Path(hosts).read_text().strip()):
        yield ALONE
        return
    try:
        ranks = Ranks(mx.distributed.init(strict=True))
    except (RuntimeError, ValueError) as error:
        raise InputError(f"the ranks cannot connect: {error}") from None
    nowhere = open(os.devnull, "w") if ranks.rank else None  # noqa: SIM115
    try:
        with redirect_stdout(nowhere or sys.stdout), redirect_stderr(nowhere or sys.stderr):
            yield ranks
            ranks.broadcast(0.0)  # nobody exits before rank 0 has printed everything
    except (InputError, SystemExit, KeyboardInterrupt) as error:
        if ranks.rank == 0:
            raise
        # All ranks fail the same way, and mlx.launch ends all once one ends: let rank 0 report first.
        time.sleep(_GRACE)
        raise SystemExit(error.code if isinstance(error, SystemExit) else 1) from None
    except RuntimeError as error:
        if "[ring]" in str(error) or "[jaccl]" in str(error):  # MLX noticed the loss
            raise InputError(LOST) from None
        raise


def shard(model: nn.Module, group: mx.distributed.Group) -> None:
    """Reduce each layer of a T5 to this rank's shard, in place; unevaluated weights take no memory."""

    def shard_layer(name: str, layer: nn.Module) -> nn.Module:
        if "relative_bias" in name:
            shard_inplace(layer, lambda path, weight: 1, group=group)
            return layer
        last = name.rpartition(".")[2]
        if last in _OUTPUTS:
            return shard_linear(layer, "all-to-sharded", group=group)
        return shard_linear(layer, "sharded-to-all", group=group) if last in _INPUTS else layer

    layers = tree_map_with_path(shard_layer, model.leaf_modules(), is_leaf=nn.Module.is_module)
    model.update_modules(layers)


def load_shard(model: nn.Module, arrays: Mapping[str, np.ndarray], rank: int) -> None:
    """Load this rank's parts of the arrays into a model from `shard`; no other part is read."""
    weights = []
    for name, parameter in dict(tree_flatten(model.parameters())).items():
        weight = to_mlx(_part(arrays[name], parameter.shape, rank))
        if weight.dtype == mx.float16 and ".out." in name:
            # One rank's part of a sum may overflow float16 even if the sum does not.
            weight = weight.astype(mx.float32)
        weights.append((name, weight))
    model.load_weights(weights)


def _part(array: np.ndarray, shape: tuple[int, ...], rank: int) -> np.ndarray:
    """The rank's part of `array`, of this shape: a slice along the axis in which the shapes differ."""
    index = (
        slice(None) if part == whole else slice(rank * part, (rank + 1) * part)
        for part, whole in zip(shape, array.shape, strict=True)
    )
    return np.ascontiguousarray(array[tuple(index)])  # MLX would keep two copies of a view


def check_ranks(model: nn.Module, quantization: Quantization | None, size: int) -> None:
    """InputError if the model cannot be split among `size` ranks."""
    heads, units, widths = [], [], []
    for _, module in model.named_modules():
        if "key" in module:
            heads.append(len(module.key.weight) // module.head_width)
            widths.append(len(module.query.weight))
        if "up" in module:
            units.append(len(module.up.weight))
    parts = f"{gcd(*heads)} attention heads and {gcd(*units)} feed-forward units"
    divides = all(count % size == 0 for count in heads + units)
    if quantization:
        group = quantization.group_size
        parts += f", quantized in groups of {group},"
        # Input widths of the layers split along them: no group may span two ranks.
        divides &= all(n // size % group == 0 for n in widths + units if n % group == 0)
    if not divides:
        raise InputError(f"{parts} cannot be split among {size} ranks")
