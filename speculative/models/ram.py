"""The memory that there is, and that a model needs, by its config.json alone."""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.checkpoints.folder import read_json
from speculative.checkpoints.hub import gb
from speculative.checkpoints.weights import Quantization, stored_size
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.models.causal_check import mlx_lm_cache
from speculative.models.contract import Model
from speculative.models.encoder_decoder import EncoderDecoder

ROWS, TOKENS = 8, 512  # prompts of a batch, and the tokens of each prompt and of each output
# Bytes that macOS recommends at most; only on Macs
GPU_LIMIT = "max_recommended_working_set_size"
MACS = (8, 16, 24, 32, 64, 128)  # GB of RAM


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


def mac_for(needed: int) -> str:
    """The RAM of the smallest Mac whose GPU may use so many bytes: of up to 32 GB two thirds, of more three quarters (llama.cpp's logs)."""
    enough = [ram for ram in MACS if needed <= (2 / 3 if ram <= 32 else 3 / 4) * ram * 2**30]
    return f"{enough[0]} GB" if enough else f"over {MACS[-1]} GB"


def load_weights(
    name: str, folder: Path, weights: Mapping[str, Any], load: Callable[[Any], Any]
) -> dict[str, Any]:
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


def needed(model: Any, dtype: str) -> dict[int, int]:
    """Bits of the weights -> bytes of weights and caches to decode a batch, by shapes alone: nothing is computed."""
    model.set_dtype(getattr(mx, dtype))
    batch = _full_cache(model)
    forms = {16: None, 8: Quantization(bits=8), 4: Quantization(bits=4)}
    return {bits: batch + stored_size(model, dtype, form) for bits, form in forms.items()}


def _full_cache(model: Any) -> int:
    """Bytes of the caches of ROWS prompts of TOKENS tokens with outputs as long."""
    if not isinstance(model, Model):  # mlx-lm's own
        layers = mlx_lm_cache(model)
        model(mx.zeros((ROWS, 2 * TOKENS), mx.int32), cache=layers)
        return sum(layer.nbytes for layer in layers)
    count = TOKENS
    if isinstance(model, EncoderDecoder):
        cache = model.start([model.blank_prompt(TOKENS) for _ in range(ROWS)])
    else:
        assert model.new_cache is not None
        cache = model.new_cache(ROWS)
        count = 2 * TOKENS
    count = min(count, model.config.max_positions or count)
    positions = np.tile(np.arange(count, dtype=np.int32), (ROWS, 1))
    model.decode(mx.zeros(positions.shape, mx.int32), positions, cache)
    return sum(array.nbytes for array in cache.arrays)
