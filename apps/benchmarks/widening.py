"""The embedded pairs at the cost of real models: wider and deeper, but still computing the same function.

New units, heads, layers, columns and vocabulary rows are zeros, and a logit of 0 is never the largest.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from decoder import load
from demo.pair import DEMO, default_dtype, demo_model
from model import T5
from speculative.models.causal import CausalModel

# The shapes of real models; {}: the embedded model unchanged.
SHAPES: dict[str, dict[str, Any]] = {
    "demo": {},
    "t5-small": dict(d_model=512, num_heads=8, d_ff=2048, num_layers=6, vocab_size=32_128),
    "t5-base": dict(d_model=768, num_heads=12, d_ff=3072, num_layers=12, vocab_size=32_128),
    "t5-large": dict(d_model=1024, num_heads=16, d_ff=4096, num_layers=24, vocab_size=32_128),
    "t5-3b": dict(d_model=1024, num_heads=32, d_ff=16384, num_layers=24, vocab_size=32_128),
}
# For the decoder-only pair; the width of its heads and its vocabulary stay unchanged.
CAUSAL_SHAPES: dict[str, dict[str, Any]] = {
    "llama-demo": {},
    "llama-60m": dict(hidden_size=512, intermediate_size=1536, num_hidden_layers=20),
    "llama-700m": dict(hidden_size=1536, intermediate_size=4096, num_hidden_layers=28),
}


def widened_pair(sizes: Sequence[str]) -> tuple[Any, Any]:
    """The embedded pair widened to these sizes, in the type that people decode in on this device."""
    return widened(sizes[0]), widened(sizes[1], "draft")


def widened(size: str, role: str = "target") -> Any:
    """One of the pair, as `load` returns models."""
    causal = size in CAUSAL_SHAPES
    small, _ = load(DEMO / f"causal-{role}" if causal else demo_model(role))
    small.set_dtype(getattr(mx, default_dtype()))
    wide = widen(small, size)
    wide.text = small.text
    return wide


def widen(model: Any, shape: str) -> Any:
    """`model` widened to one of SHAPES or CAUSAL_SHAPES, in its type, with equal logits up to rounding."""
    if shape in CAUSAL_SHAPES:
        c = model.config
        wide = _widened_llama(model.model, shape)
        return CausalModel(wide, c.eos_token_ids, c.pad_token_id, c.max_positions)
    if not SHAPES[shape]:
        return model
    small = model.config
    layers = SHAPES[shape]["num_layers"]
    config = dataclasses.replace(small, **SHAPES[shape], d_kv=64, num_decoder_layers=layers)
    # Zeros lower a vector's root mean square. After the last norm, scaling by d_model**-0.5 makes up for that.
    scaled = {"decoder.norm.weight"} if config.scale_decoder_outputs else set()

    def change(name: str, weight: mx.array) -> mx.array:
        if ".attention." in name or ".cross_attention." in name:
            axis = int(name.endswith("out.weight"))
            heads = weight.swapaxes(0, axis).reshape(-1, small.d_kv, small.d_model)
            wider = mx.pad(heads, [(0, 0), (0, config.d_kv - small.d_kv), (0, 0)])
            return wider.reshape(-1, small.d_model).swapaxes(0, axis)
        if name.endswith("norm.weight") and name not in scaled:
            return weight * (small.d_model / config.d_model) ** 0.5
        return weight

    return _filled(T5(config), model, change)


def _widened_llama(model: Any, shape: str) -> nn.Module:
    """mlx-lm's Llama."""
    args = model.args
    hidden = CAUSAL_SHAPES[shape].get("hidden_size", args.hidden_size)
    sharing = args.num_attention_heads // args.num_key_value_heads  # heads per key
    keys = -(-hidden // args.head_dim // sharing)
    narrower = args.hidden_size / hidden  # factor by which the mean square shrinks
    wide = dataclasses.replace(
        args,
        **CAUSAL_SHAPES[shape],
        num_attention_heads=keys * sharing,
        num_key_value_heads=keys,
        rms_norm_eps=args.rms_norm_eps * narrower,
        layer_types=None,  # one per layer; the model fills it in
    )

    def change(name: str, weight: mx.array) -> mx.array:
        return weight * narrower**0.5 if name.endswith("norm.weight") else weight

    return _filled(type(model)(wide), model, change)


def _filled(wide: Any, small: Any, change: Callable[[str, mx.array], mx.array]) -> Any:
    """`wide` with the weights of `small`, passed through `change` and padded with zeros."""
    known = dict(tree_flatten(small.parameters()))
    places: dict[str, mx.array] = dict(tree_flatten(wide.parameters()))
    dtype = next(iter(known.values())).dtype
    weights = []
    for name, place in places.items():
        weight = change(name, known[name]) if name in known else mx.zeros((0,) * place.ndim, dtype)
        pad = [(0, new - old) for old, new in zip(weight.shape, place.shape, strict=True)]
        weights.append((name, mx.pad(weight, pad)))
    wide.load_weights(weights)
    mx.eval(wide.parameters())
    return wide
