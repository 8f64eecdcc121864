"""Small random decoder-only checkpoints as transformers saves them, and what transformers writes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers

from .causal_folders import write_tokenizer

ORIGINAL, WINDOW = 24, 7
COMMON = dict(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=96,
    sliding_window=None,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=1,
)
MORE: dict[str, dict] = {
    "mistral": dict(sliding_window=WINDOW),
    "qwen2": dict(use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "gemma2": dict(sliding_window=WINDOW, query_pre_attn_scalar=8),
    "gemma3_text": dict(
        sliding_window=WINDOW,
        query_pre_attn_scalar=8,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_hidden_layers=4,
        num_key_value_heads=1,
    ),
}
_OLD = dict(original_max_position_embeddings=ORIGINAL)
_YARN = _OLD | dict(rope_type="yarn", factor=4.0, rope_theta=300.0, beta_fast=1.3, beta_slow=0.3)
ROPES: dict[str, dict] = {
    "default": dict(rope_type="default", rope_theta=500.0),
    "linear": dict(rope_type="linear", factor=4.0, rope_theta=700.0),
    "dynamic": dict(rope_type="dynamic", factor=4.0, rope_theta=700.0),
    "llama3": _OLD
    | dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0)
    | dict(rope_theta=300.0),
    "yarn": _YARN,
    "yarn, not truncated": _YARN | dict(truncate=False),
    "yarn, mscale": _YARN | dict(mscale=0.7),
    "yarn, both mscales": _YARN | dict(mscale=0.7, mscale_all_dim=2.0),
    "yarn, attention_factor": _YARN | dict(attention_factor=1.3),
    "longrope": dict(original_max_position_embeddings=64)
    | dict(rope_type="longrope", rope_theta=300.0)
    | dict(short_factor=[1.0, 1.2, 1.5, 2.0], long_factor=[1.0, 2.0, 4.0, 8.0]),
}


def save(folder: Path, kind: str, rope: str, **changes) -> torch.nn.Module:
    """Save a checkpoint of the type `kind` whose positions are those of ROPES[rope]; the model."""
    torch.manual_seed(0)
    parameters = dict(ROPES[rope])
    if kind == "gemma3_text":
        local = dict(rope_type="default", rope_theta=90.0)
        parameters = dict(full_attention=parameters, sliding_attention=local)
    values = COMMON | MORE.get(kind, {}) | dict(rope_parameters=parameters) | changes
    if rope == "longrope" and kind == "phi3":
        values["original_max_position_embeddings"] = 64
    config = transformers.AutoConfig.for_model(kind, **values)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            norm, gemma = weight.dim() == 1 and "bias" not in name, "gemma" in kind
            scale = 0.2 if weight.dim() == 1 else weight.shape[-1] ** -0.5
            scale = (0.02 if gemma else 1.0) if "embed" in name else scale
            weight.normal_(1.0 if norm and not gemma else 0.0, scale)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def logits(model: torch.nn.Module, tokens: Sequence[int]) -> np.ndarray:
    """[T, V]"""
    with torch.no_grad():
        return model(torch.tensor([list(tokens)])).logits[0].numpy()


def greedy(model: torch.nn.Module, prompt: Sequence[int], max_tokens: int) -> list[int]:
    with torch.no_grad():
        tokens = torch.tensor([list(prompt)])
        output = model.generate(tokens, max_new_tokens=max_tokens, do_sample=False)
    return output[0, len(prompt) :].tolist()
