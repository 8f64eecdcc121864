"""The embedded pairs: models to load, converted on first use to mlx_models/ in the current folder; held-out examples of their
tasks, with correct answers (from demo/training/tasks.py); and the pairs at the cost of real models: wider and deeper, but
still computing the same function. New units, heads, layers, columns and vocabulary rows are zeros, and a logit of 0 is never
the largest."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from model import T5
from speculative.checkpoints.folder import MODELS, WEIGHTS, is_outdated
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.models.causal import CausalModel
from speculative.models.conversion import convert

DEMO = Path(__file__).resolve().parent
SHORT_KINDS = ("number", "sentence", "repair")
KINDS = (*SHORT_KINDS, "paragraph")
FILE = DEMO / "examples.jsonl"
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


def default_dtype() -> str:
    """16 bits on a GPU, but not float16, in which T5 overflows; float32 on a processor, where MLX is slow in 16 bits."""
    return "bfloat16" if mx.default_device() == mx.gpu else "float32"


def demo_model(role: str) -> Path:
    """The converted folder of the embedded `role`: "target" or "draft", or either after "speech/"."""
    output = MODELS / f"demo-{role.replace('/', '-')}"
    if not (output / WEIGHTS).exists() or is_outdated(output):
        reporter.note(f"converting the demo {role} model to {output}")
        convert(str(DEMO / role), output, dtype=default_dtype(), exist_ok=True)
    return output


@dataclasses.dataclass(frozen=True)
class Example:
    kind: str  # one of KINDS
    prompt: str
    answer: str


def examples(per_kind: int, kinds: Sequence[str] = SHORT_KINDS) -> list[Example]:
    """The first `per_kind` examples of each kind. InputError if there are fewer."""
    stored = [Example(**json.loads(line)) for line in FILE.read_text("utf-8").splitlines()]
    by_kind = [[e for e in stored if e.kind == kind] for kind in kinds]
    count = min(map(len, by_kind))
    if per_kind > count:
        raise InputError(f"the demo has only {count} examples of each kind, not {per_kind}")
    return [example for of_kind in by_kind for example in of_kind[:per_kind]]


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
    head_dim = args.head_dim or args.hidden_size // args.num_attention_heads
    sharing = args.num_attention_heads // args.num_key_value_heads  # heads per key
    keys = -(-hidden // head_dim // sharing)
    narrower = args.hidden_size / hidden  # factor by which the mean square shrinks
    wide = dataclasses.replace(
        args,
        **CAUSAL_SHAPES[shape],
        num_attention_heads=keys * sharing,
        num_key_value_heads=keys,
        head_dim=head_dim,
        rms_norm_eps=args.rms_norm_eps * narrower,
        layer_types=None,  # one per layer; the model fills it in
    )

    def change(name: str, weight: mx.array) -> mx.array:
        return weight * narrower**0.5 if name.endswith("norm.weight") else weight

    return _filled(type(model)(wide), model, change)


def _filled(wide: Any, small: Any, change: Callable[[str, mx.array], mx.array]) -> Any:
    """`wide` with the weights of `small`, passed through `change` and padded with zeros."""
    known = dict(tree_flatten(small.parameters()))
    weights = []
    dtype = next(iter(known.values())).dtype
    places: dict[str, mx.array] = dict(tree_flatten(wide.parameters()))
    for name, place in places.items():
        weight = change(name, known[name]) if name in known else mx.zeros((0,) * place.ndim, dtype)
        pad = [(0, new - old) for old, new in zip(weight.shape, place.shape, strict=True)]
        weights.append((name, mx.pad(weight, pad)))
    wide.load_weights(weights)
    mx.eval(wide.parameters())
    return wide
