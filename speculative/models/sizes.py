"""What a model will take of disk and memory, by its config.json alone."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.checkpoints.weights import DTYPES, Quantization, stored_size
from speculative.common.reporting import gb
from speculative.models import distilled
from speculative.models.causal_check import mlx_lm_cache
from speculative.models.contract import Model
from speculative.models.conversion import fetch_source, skeleton
from speculative.models.encoder_decoder import EncoderDecoder

ROWS, TOKENS = 8, 512  # prompts of a batch, and the tokens of each prompt and of each output
MACS = (8, 16, 24, 32, 64, 128)  # GB of RAM


def describe(model: str, revision: str | None = None) -> list[str]:
    """Lines about the bytes that a model takes. Of one on the hub only the config.json is downloaded."""
    lines = []

    def stop(folder: Path, size: int) -> None:
        lines.append(f"download: {gb(size)}")

    target, dtype = skeleton(fetch_source(model, revision, start=stop).folder)
    sizes = needed(target, dtype)
    lines.append(f"memory for {ROWS} prompts and outputs of {TOKENS} tokens:")
    for bits, size in sizes.items():
        lines.append(f"  in {bits} bits {gb(size)}, a Mac of {mac_for(size)}")
    if isinstance(target, EncoderDecoder):
        layer = distilled.own_weights(distilled.skeleton(target, [0])).values()
        size = sum(weight.size for weight in layer) * DTYPES[dtype].itemsize
        lines.append(f"a draft model of one layer, made by distill.py: {gb(size)} more")
    return lines


def mac_for(needed: int) -> str:
    """The RAM of the smallest Mac whose GPU may use so many bytes: of up to 32 GB two thirds, of more three quarters (llama.cpp's logs)."""
    enough = [ram for ram in MACS if needed <= (2 / 3 if ram <= 32 else 3 / 4) * ram * 2**30]
    return f"{enough[0]} GB" if enough else f"over {MACS[-1]} GB"


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
