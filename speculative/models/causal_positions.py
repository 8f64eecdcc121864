"""Positions and windows of a decoder-only model as transformers reads them: mlx-lm's model files read fewer keys."""

import math
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from speculative.common.errors import InputError
from speculative.models.causal_check import mlx_lm_cache

# Rope types; the second ones are left to mlx-lm as they are
_TYPES = ("default", "dynamic", "linear", "llama3", "yarn", "longrope", "su")
_MLX_LMS = ("proportional", "mrope", "deepseek_yarn", "telechat3-yarn")


def _yarn(p: Mapping, D: int) -> tuple[mx.array, float]:
    """Positions per radian of each pair of D dimensions [D / 2], and the factor for queries and keys (Peng et al. 2023, arXiv
    2309.00071). mlx-lm's lack `truncate` and `attention_factor`."""
    periods = p["rope_theta"] ** (np.arange(0, D, 2) / D)
    original = p["original_max_position_embeddings"]

    def dimension(turns: float) -> float:
        return D * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(p["rope_theta"]))

    def size(mscale: float) -> float:
        return 1 + 0.1 * mscale * math.log(max(p["factor"], 1))

    first, last = dimension(p.get("beta_fast") or 32), dimension(p.get("beta_slow") or 1)
    if p.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, D - 1)
    scaled = np.clip((np.arange(D // 2) - first) / (last - first or 0.001), 0, 1)
    factor = size(1)
    if p.get("mscale") and p.get("mscale_all_dim"):
        factor = size(p["mscale"]) / size(p["mscale_all_dim"])
    periods = periods / (1 - scaled + scaled / p["factor"])
    return mx.array(periods.astype(np.float32)), p.get("attention_factor") or factor


def _rope(p: dict, dims: int, traditional: bool) -> nn.Module:
    """mlx-lm's rotary positions of a type, with what transformers reads besides."""
    from mlx_lm.models.rope_utils import initialize_rope

    # Dynamic and longrope as they are for the original length: `max_positions` ends texts there.
    kind = {"dynamic": "default", "su": "longrope"}.get(p["rope_type"], p["rope_type"])
    settings = p | {"type": kind, "long_factor": p.get("short_factor")}
    longest = p["factor"] * p["original_max_position_embeddings"]
    rope: Any = initialize_rope(dims, p["rope_theta"], traditional, settings, longest)
    if kind == "longrope":
        rope._scale = p.get("short_mscale") or p.get("attention_factor") or rope._scale
    elif kind == "yarn":
        rope._freqs, rope.mscale = _yarn(p, dims)
    return rope


def text_config(raw: Mapping) -> dict:
    """The values for the text model of a config.json."""
    return {**raw, **(raw.get("text_config") or {})}


def _parameters(text: Mapping) -> dict[str, dict]:
    """Rope parameters by type of layer, or under "" for all layers. InputError for an unknown rope type."""
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    by_type = {key: value for key, value in rope.items() if isinstance(value, Mapping)}
    longest = text.get("max_position_embeddings") or 0
    parameters: dict[str, dict] = {}
    for layer_type, values in (by_type or {"": rope}).items():
        p = {key: value for key, value in values.items() if value is not None}
        if by_type:
            p.pop("truncate", None)  # transformers looks for it beside the types only
        p["rope_type"] = kind = p.get("rope_type") or p.get("type") or "default"
        if kind not in _TYPES + _MLX_LMS:
            known = ", ".join(_TYPES + _MLX_LMS)
            raise InputError(f"rope type {kind} is unknown; there are {known}")
        original = text.get("original_max_position_embeddings") or longest
        original = p.setdefault("original_max_position_embeddings", original)
        p["factor"] = float(p.get("factor") or (longest / original if original else 1))
        for key in ("rope_theta", "partial_rotary_factor"):
            p.setdefault(key, text.get(key))
        parameters[layer_type] = p
    return parameters


def flatten_rope_keys(raw: Mapping) -> dict:
    """The config.json with the values of `rope_parameters` also under the keys that mlx-lm reads."""
    config = dict(raw)
    if isinstance(raw.get("text_config"), Mapping):
        config["text_config"] = flatten_rope_keys(raw["text_config"])
    types = raw.get("layer_types") or []
    if "full_attention" in types:
        config.setdefault("sliding_window_pattern", types.index("full_attention") + 1)
    ropes = _parameters(raw)
    if not raw.get("rope_parameters"):
        return config
    p = ropes.get("full_attention") or next(iter(ropes.values()))
    theta, part = p["rope_theta"], p["partial_rotary_factor"]
    local = ropes.get("sliding_attention", {}).get("rope_theta")
    values = dict(rope_theta=theta, partial_rotary_factor=part, rope_local_base_freq=local)
    values |= dict(rotary_emb_base=theta, rotary_pct=part)  # GPT-NeoX's names
    config |= {key: value for key, value in values.items() if value is not None}
    scaling = None if p["rope_type"] == "default" else p | {"type": p["rope_type"]}
    return config | {"rope_scaling": scaling}


def max_positions(raw: Mapping) -> int | None:
    """The number of tokens that a text may have, according to config.json; None if it does not say."""
    text = text_config(raw)
    keys = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "model_max_length")
    stated = next((text[key] for key in keys if type(text.get(key)) is int), None)
    for p in _parameters(text).values():
        original = p["original_max_position_embeddings"]
        if stated and p["rope_type"] in ("longrope", "su"):
            stated = min(stated, original)
        elif stated and p["rope_type"] == "yarn":  # some state what it was before the scaling
            stated = max(stated, int(original * p["factor"]))
    return stated


def set_positions(model: nn.Module, raw: Mapping) -> None:
    """Give a model's layers the rotary positions and windows of its config.json if theirs differ."""
    text = text_config(raw)
    _set_ropes(model, text)
    pattern = _PATTERNS.get(str(text.get("model_type")), ())
    types = text.get("layer_types") or pattern * len(model.layers)
    window: Any = text.get("sliding_window")
    for layer, cache, layer_type in zip(model.layers, mlx_lm_cache(model), types, strict=False):
        slides = window and layer_type == "sliding_attention"
        if slides and not getattr(cache, "max_size", None) and "self_attn" in layer:
            layer.self_attn = Windowed(layer.self_attn, window)


_PATTERNS: dict[str, tuple[str, ...]] = {  # of layer types, where config.json does not say
    **dict.fromkeys("mistral mixtral phi3 phimoe starcoder2".split(), ("sliding_attention",)),
    "gemma2": ("sliding_attention", "full_attention"),
}
_ROPES = ("RoPE", "Llama3RoPE", "YarnRoPE", "SuScaledRoPE", "DynamicNTKScalingRoPE")


def _set_ropes(model: nn.Module, text: Mapping) -> None:
    ropes = _parameters(text)
    types = text.get("layer_types") or [""] * len(model.layers)
    found: list[tuple[nn.Module, str, dict]] = []  # module, attribute, parameters
    for layer, layer_type in zip(model.layers, types, strict=False):
        p = ropes.get("") or ropes.get(layer_type) or {}
        for module in layer.modules() if p else ():
            names = [key for key, rope in module.items() if type(rope).__name__ in _ROPES]
            found += [(module, key, p) for key in names]
    if "" in ropes:  # in layers that mlx-lm scales, or, where it knows no rope types, in all
        found = [x for x in found if getattr(x[0][x[1]], "scale", None) != 1] or found
    head = text.get("head_dim") or text.get("hidden_size", 0) // text.get("num_attention_heads", 1)
    for module, key, p in found:
        rope: Any = module[key]
        dims = getattr(rope, "dim", None) or rope.dims
        base = getattr(rope, "base", None)
        if dims == head and text.get("model_type") == "glm":
            # mlx-lm's file for glm rotates all dimensions.
            dims = int(dims * (p["partial_rotary_factor"] or 1))
        p = p | {"rope_theta": ("" in ropes and base) or p["rope_theta"] or 10000.0}
        here = [getattr(rope, name, None) for name in ("dims", "base", "scale")]
        is_right = p["rope_type"] == "default" and here == [dims, p["rope_theta"], 1]
        if p["rope_type"] in _TYPES and not is_right:
            module[key] = _rope(p, dims, getattr(rope, "traditional", False))


class Windowed(nn.Module):
    """Attention with a sliding window that mlx-lm's model file lacks."""

    def __init__(self, attention: nn.Module, window: int):
        super().__init__()
        self.attention = attention
        self._window = window

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        as_array = isinstance(mask, mx.array)
        mask = cache.make_mask(x.shape[1], return_array=as_array, window_size=self._window)
        return self.attention(x, mask, cache)
