"""The memory that there is, and loading what fits in it."""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx

from speculative.checkpoints.folder import read_json
from speculative.common.errors import InputError
from speculative.common.reporting import gb, reporter

# Bytes that macOS recommends at most; only on Macs
GPU_LIMIT = "max_recommended_working_set_size"


def installed() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available() -> int:
    """Bytes that a model may use: what macOS recommends for its GPU or, elsewhere, the RAM."""
    return int(mx.device_info().get(GPU_LIMIT) or installed())


@contextmanager
def wired_memory() -> Iterator[None]:
    """On a Mac's GPU, keep as much memory as the system recommends from being paged out, as mlx-lm does."""
    limit = mx.device_info().get(GPU_LIMIT)
    if limit is None:
        yield
        return
    before = mx.set_wired_limit(int(limit))
    try:
        yield
    finally:
        mx.synchronize()
        mx.set_wired_limit(before)


def load_weights(name: str, folder: Path, weights: Mapping, load: Callable) -> dict[str, Any]:
    """load(weight) of each weight of the model in a folder, with a bar. InputError if memory does not suffice."""
    size = sum(weight.nbytes for weight in weights.values())
    used = mx.get_active_memory()
    if size + used > 0.9 * available():
        origin = read_json(folder / "config.json").get("converted_from", name)
        hint = f"for fewer bits see python convert.py --model {origin} --dry-run, for smaller models docs/models.md"
        free = gb(max(0, available() - used))
        message = f"{name} takes {gb(size)}, and {free} of memory are left for it"
        if size + used > installed():
            raise InputError(f"{message}; {hint}")
        warnings.warn(f"{message}: decoding may be slow; {hint}", stacklevel=3)
    loaded = {}
    with reporter.bar(f"loading {name}", size, "B", 2) as advance:
        for key, weight in weights.items():
            loaded[key] = load(weight)
            advance(weight.nbytes)
    return loaded
