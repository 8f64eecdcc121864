"""The embedded pairs at a real model's cost: wider and deeper, and still the same function.

New feed-forward units, heads and layers have output weights of zero; a larger d_model is padded with
zeros. T5's gets the rows of the real vocabulary, whose logits are 0 and never the largest. So the widened model
writes the same text with the same acceptance, at the price of its size.
"""

import dataclasses
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from families.loading import weight_shapes
from model import T5

# The shapes of real models, and the embedded model as it is: for a draft of t5-large's size, about as
# cheap as t5-small is for t5-11b.
SHAPES: dict[str, dict[str, Any]] = {
    "demo": {},
    "t5-small": dict(d_model=512, num_heads=8, d_ff=2048, num_layers=6, vocab_size=32_128),
    "t5-base": dict(d_model=768, num_heads=12, d_ff=3072, num_layers=12, vocab_size=32_128),
    "t5-large": dict(d_model=1024, num_heads=16, d_ff=4096, num_layers=24, vocab_size=32_128),
    "t5-3b": dict(d_model=1024, num_heads=32, d_ff=16384, num_layers=24, vocab_size=32_128),
}
# Of the decoder-only pair, whose heads stay as wide, and whose vocabulary as small, as they are.
CAUSAL_SHAPES: dict[str, dict[str, Any]] = {
    "demo": {},
    "llama-60m": dict(hidden_size=512, intermediate_size=1536, num_hidden_layers=20),
    "llama-700m": dict(hidden_size=1536, intermediate_size=4096, num_hidden_layers=28),
}


def widen(model: T5, shape: str, d_kv: int = 64) -> T5:
    """`model` in one of SHAPES. Logits are equal up to rounding, and 0 for what is not in its vocabulary."""
    if not SHAPES[shape]:
        return model
    config = dataclasses.replace(
        model.config,
        **SHAPES[shape],
        d_kv=d_kv,
        num_decoder_layers=SHAPES[shape]["num_layers"],
    )
    small = dict(tree_flatten(model.parameters()))
    wide = T5(config)
    weights = {}
    for name, size in weight_shapes(wide).items():
        weight = small.get(name, mx.zeros((0,) * len(size)))
        if ".attention." in name or ".cross_attention." in name:
            weight = _widen_heads(weight, model.config.d_kv, d_kv, name.endswith("out.weight"))
        elif name.endswith("norm.weight"):
            weight = weight * _norm_scale(name, model, config)
        weights[name] = _pad(weight, size)
    wide.load_weights(list(weights.items()))
    mx.eval(wide.parameters())
    return wide


def widen_llama(model: Any, shape: str) -> nn.Module:
    """mlx-lm's Llama in one of CAUSAL_SHAPES, in float32. Logits are equal up to rounding."""
    args = model.args
    changes = dict(CAUSAL_SHAPES[shape])
    hidden = changes.get("hidden_size", args.hidden_size)
    head_dim = args.head_dim or args.hidden_size // args.num_attention_heads
    sharing = args.num_attention_heads // args.num_key_value_heads  # heads per key
    keys = -(-hidden // head_dim // sharing)
    narrower = args.hidden_size / hidden  # how much smaller the mean square is
    build: Any = type(model)
    wide = build(
        dataclasses.replace(
            args,
            **changes,
            num_attention_heads=keys * sharing,
            num_key_value_heads=keys,
            head_dim=head_dim,
            rms_norm_eps=args.rms_norm_eps * narrower,
            layer_types=None,  # one per layer, which it makes
        )
    )
    small = dict(tree_flatten(model.parameters()))
    weights = {}
    for name, size in weight_shapes(wide).items():
        weight = small.get(name, mx.zeros((0,) * len(size))).astype(mx.float32)
        if name.endswith("norm.weight"):
            weight = weight * narrower**0.5
        weights[name] = _pad(weight, size)
    wide.load_weights(list(weights.items()))
    mx.eval(wide.parameters())
    return wide


def _pad(weight: mx.array, size: tuple[int, ...]) -> mx.array:
    return mx.pad(weight, [(0, new - old) for old, new in zip(weight.shape, size, strict=True)])


def _norm_scale(name: str, model: T5, config) -> float:
    """The zeros in a wider vector lower its root mean square. After the decoder's last norm the
    scaling by d_model**-0.5, where there is one, makes up for that."""
    if name == "decoder.norm.weight" and config.scale_decoder_outputs:
        return 1.0
    return (model.config.d_model / config.d_model) ** 0.5


def _widen_heads(weight: mx.array, d_kv: int, wider: int, is_output: bool) -> mx.array:
    """Pad every head's width, on axis 1 of the output projection, on axis 0 of the others."""
    if weight.size == 0:
        return weight
    axis = int(is_output)
    heads = weight.shape[axis] // d_kv
    split = list(weight.shape)
    split[axis : axis + 1] = [heads, d_kv]
    pad = [(0, 0)] * len(split)
    pad[axis + 1] = (0, wider - d_kv)
    padded = mx.pad(weight.reshape(split), pad)
    return padded.reshape(*weight.shape[:axis], heads * wider, *weight.shape[axis + 1 :])
