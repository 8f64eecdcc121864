"""Small random Hugging Face checkpoints of every T5 variant, and their torch models."""

import json
import shutil
from functools import partial
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from helpers.programs import DEMO

# Raw config.json contents as the hub has them. Every dimension differs from every other.
SMALL = dict(
    vocab_size=61,
    d_model=24,
    d_kv=10,
    d_ff=40,
    num_heads=3,
    num_layers=2,
    pad_token_id=0,
    eos_token_id=1,
    decoder_start_token_id=0,
    layer_norm_epsilon=1e-6,
    relative_attention_num_buckets=12,
    relative_attention_max_distance=20,
)
UNSCALED = dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
VARIANTS = {
    "t5": SMALL | dict(model_type="t5"),
    "v1.1": SMALL | UNSCALED | dict(model_type="t5", num_decoder_layers=3),
    "ul2": SMALL | dict(model_type="t5", feed_forward_proj="gated-silu", d_kv=16),
    "mt5": SMALL | UNSCALED | dict(model_type="mt5", num_heads=5),
    # transformers 5.23 scales umT5's output whatever the flag says, so the flag is left out here.
    "umt5": SMALL | dict(model_type="umt5", feed_forward_proj="gated-gelu"),
    "byt5": SMALL | UNSCALED | dict(model_type="t5", num_layers=5, num_decoder_layers=2),
    "madlad": SMALL | UNSCALED | dict(model_type="t5", pad_token_id=1, eos_token_id=2),
}


def torch_model(raw: dict, seed: int = 0) -> torch.nn.Module:
    """A transformers model of the raw config with random weights, every one of them in play."""
    kind = getattr(transformers, f"{raw['model_type'].upper()}ForConditionalGeneration")
    torch.manual_seed(seed)
    model = kind(kind.config_class(**raw)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "relative_attention_bias" in name:
                weight.normal_()
            elif weight.dim() == 1:
                weight.normal_(1, 0.2)
            elif "shared" not in name and "lm_head" not in name:
                weight.normal_(0, weight.shape[1] ** -0.5)
        if not raw.get("tie_word_embeddings", True):
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    return model


def state_dict(model: torch.nn.Module, raw: dict) -> dict[str, torch.Tensor]:
    """The tensors under the names and with the aliases of checkpoints on the hub."""
    state = model.state_dict()
    del state["encoder.embed_tokens.weight"], state["decoder.embed_tokens.weight"]
    if raw.get("tie_word_embeddings", True):
        del state["lm_head.weight"]
    return {name: tensor.contiguous() for name, tensor in state.items()}


# How a file is written, and what one file, a shard, and the index of the shards are called.
_LEGACY = partial(torch.save, _use_new_zipfile_serialization=False)
FORMATS = {
    "safetensors": (save_file, "model.safetensors", "model-{:05}-of-{:05}.safetensors"),
    "zip": (torch.save, "pytorch_model.bin", "pytorch_model-{:05}-of-{:05}.bin"),
    "legacy": (_LEGACY, "pytorch_model.bin", "pytorch_model_{:05}-of-{:05}.bin"),
}


def save(folder: Path, raw: dict, state: dict, shards: int = 1, kind: str = "safetensors") -> Path:
    """Write a checkpoint folder in the hub's layout (without a tokenizer), in one of FORMATS."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    write, single, pattern = FORMATS[kind]
    if shards == 1:
        write(state, folder / single)
        return folder
    names, weight_map = sorted(state), {}
    for i in range(shards):
        file = pattern.format(i + 1, shards)
        part = {name: state[name] for name in names[i::shards]}
        write(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / f"{single}.index.json").write_text(json.dumps(index))
    return folder


def make_folder(path: Path, variant: str, shards=1, kind="safetensors", **changes) -> Path:
    """A random checkpoint that has the demo's tokenizer (and as many rows as that has pieces)."""
    raw = VARIANTS[variant] | {"vocab_size": 1024} | changes
    state = state_dict(torch_model(raw), raw)
    save(path, raw, state, shards, kind)
    for name in ("spiece.model", "tokenizer_config.json"):
        shutil.copyfile(DEMO / "target" / name, path / name)
    return path


def edit(folder: Path, **changes) -> None:
    """Change values of a folder's config.json; None removes one."""
    path = folder / "config.json"
    raw = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))
