"""Adapters of PEFT's LoRA (Hu et al., arXiv 2106.09685), merged into the base's tensors block by block.

Files: https://huggingface.co/docs/peft/developer_guides/checkpoint. What one of several tied weights learned stays with its
own module, as in training; PEFT's own merge changes all of them.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from speculative.checkpoints.folder import (
    ADAPTER,
    MLX_LMS_ADAPTER,
    TOKENIZER_FILES,
    open_checkpoint,
    read_json,
)
from speculative.checkpoints.names import equal
from speculative.checkpoints.tensors import Tensor, Tensors, to_mlx, to_numpy
from speculative.common.errors import InputError

_WRAPPER = re.compile(r"^base_model\.model\.|\.(?:modules_to_save|token_adapter)(?=\.)")
# What the adapter was trained on, of which a file has what has grown with the vocabulary
_FROZEN = re.compile(r"(?:base_layer|original_module)\.((?:.+\.)?)(weight|bias)$")
_TOKENS = "trainable_tokens_delta"  # whole rows, in spite of the name
_WHOLE = {"weight", "bias", "frozen_weight", "frozen_bias"}
_PART = re.compile(
    rf"(.+?)\.(lora_[AB]\.weight|lora_B\.bias|lora_embedding_[AB]|{_TOKENS}|{'|'.join(_WHOLE)})"
)
_EMBEDDING = re.compile(
    r"(?:.*\.)?(?:shared|(?:encoder|decoder|text_model)\.embed_tokens|lm_head|lm_head\.out_proj|proj_out)"
)
_HEADS = {"whisper": "proj_out", "t5gemma": "lm_head.out_proj", "t5gemma2": "lm_head.out_proj"}
# Forms of LoRA that are more than the product of two matrices
_FORMS = ("use_dora", "use_qalora", "use_bdlora", "alora_invocation_tokens", "arrow_config")
_FORMS += ("layer_replication", "target_parameters", "kasa_config", "monteclora_config")
_STARTS = (None, True, False, "gaussian", "orthogonal", "eva")  # others change the base too
# The order of changes: the grown base, what was saved of several that are tied or of one alone, and what was added to them
_BASE, _TIED, _OWN, _LEARNED = range(4)


def base_of(adapter: Path) -> tuple[str, str | None]:
    """The name and the revision of the model that an adapter's folder is for. InputError for one that cannot be merged."""
    raw = read_json(adapter / ADAPTER)
    if (adapter / MLX_LMS_ADAPTER).exists():  # mlx-lm merges it
        return str(raw.get("model", "")), None
    kind = raw.get("peft_type")
    if kind != "LORA":
        raise InputError(f"{adapter}: only PEFT's LoRA can be merged, not {kind or 'this adapter'}")
    forms = [form for form in _FORMS if raw.get(form)]
    if raw.get("init_lora_weights") not in _STARTS:
        forms.append(f"init_lora_weights={raw['init_lora_weights']}")
    if forms:
        raise InputError(f"{adapter}: LoRA with {', '.join(forms)} cannot be merged")
    return str(raw.get("base_model_name_or_path") or ""), raw.get("revision")


@dataclass(frozen=True, kw_only=True)
class _Changed(Tensor):
    """A base's tensor, with a change(number of the first row, block) of its blocks in float32."""

    base: Tensor
    change: Callable[[int, np.ndarray], np.ndarray]

    def blocks(self) -> Iterator[np.ndarray]:
        start = 0
        for block in map(_as_float32, self.base.blocks()):
            yield self.change(start, block).reshape(-1, *self.shape[1:])
            start += len(block)

    def permuted(self, *axes: int) -> Tensor:
        shape = super().permuted(*axes).shape
        return replace(self, shape=shape, change=lambda *at: self.change(*at).transpose(axes))


def _changed(base: Tensor, change: Callable[[int, np.ndarray], np.ndarray]) -> Tensor:
    place = base.path, base.offset, base.dtype, base.shape, base.strides
    return _Changed(*place, base=base, change=change)


def _plus_product(up: Tensor, down: Tensor, scale: float, base: Tensor) -> Tensor:
    """A base's tensor [O, I] + scale x up [O, R] x down [R, I], or a convolution's [O, I, width] with up [O, R, 1]."""
    shape = up.shape[0], *down.shape[1:]
    if shape != base.shape:
        raise InputError(f"it changes {shape}, but the base has {base.shape}")

    def change(start: int, block: np.ndarray) -> np.ndarray:
        rows = _float32(up)[start : start + len(block)] * np.float32(scale)
        product = rows.reshape(len(rows), -1) @ _float32(down).reshape(down.shape[0], -1)
        return block + product.reshape(block.shape)

    return _changed(base, change)


def _plus_bias(bias: Tensor, scale: float, base: Tensor) -> Tensor:
    return _changed(base, lambda start, block: block + scale * _float32(bias)[start:][: len(block)])


def _with_rows(tokens: list[int], rows: Tensor, base: Tensor) -> Tensor:
    """A base's tensor [O, I] in which `rows` stand for those of `tokens`."""

    def change(start: int, block: np.ndarray) -> np.ndarray:
        at = np.array(tokens) - start
        here = (at >= 0) & (at < len(block))
        block[at[here]] = _float32(rows)[here]
        return block

    return _changed(base, change)


def _as_float32(array: np.ndarray) -> np.ndarray:
    return np.array(to_numpy(to_mlx(array).astype(mx.float32)))


def _float32(tensor: Tensor) -> np.ndarray:
    return np.concatenate([_as_float32(block) for block in tensor.blocks()])


def _with_size(size: int, bias: Tensor) -> Tensor:
    """A base's bias [1, V] for another number of tokens; as in transformers it is 0 for new ones."""

    def change(start: int, block: np.ndarray) -> np.ndarray:
        return np.pad(block[:, :size], [(0, 0), (0, max(0, size - block.shape[1]))])

    return replace(_changed(bias, change), shape=(1, size))


class _Change(NamedTuple):
    order: int
    name: str
    is_tied: bool  # embeddings that are tied to it change as well
    of: Callable[[Tensor], Tensor]


def merge(adapter: Path, base: Tensors, config: Mapping) -> tuple[dict[str, Tensor], dict]:
    """The base's tensors, the changed ones in float32, and its config.json with the size of a vocabulary that has grown."""
    raw = read_json(adapter / ADAPTER)
    modules: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in open_checkpoint(adapter, adapter=True).items():
        match = _PART.fullmatch(_FROZEN.sub(r"\1frozen_\2", _WRAPPER.sub("", name)))
        if not match:
            raise InputError(f"{adapter}: {name} cannot be merged")
        modules[match[1]][match[2]] = tensor
    has_embeddings = any(map(_EMBEDDING.fullmatch, modules))
    if has_embeddings:
        base = _untied(base, _HEADS.get(str(config.get("model_type")), "lm_head"))
    merged = dict(base)
    changes = chain.from_iterable(_changes(*each, base, raw, config) for each in modules.items())
    for change in sorted(changes, key=lambda change: change.order):
        name = _in_base(base, change.name)
        embeddings = _embeddings(base) if change.is_tied else []
        names = [n for n in embeddings if equal(base[n], base[name])] or [name]
        merged |= {name: change.of(merged[name]) for name in names}
    if not has_embeddings:
        return merged, dict(config)
    # Neither stack reads the shared one.
    merged = {name: x for name, x in merged.items() if not _is(name, "shared.weight")}
    sizes: dict[int, int] = {}
    for name in _embeddings(merged):
        before, now = base[name].shape[0], merged[name].shape[0]
        if sizes.setdefault(before, now) != now:
            listed = f"embeddings of {sizes[before]} and {now} tokens"
            raise InputError(f"{listed}: save the adapter with save_embedding_layers=True")
    for name, bias in merged.items():
        if _is(name, "final_logits_bias"):
            merged[name] = _with_size(sizes.get(bias.shape[-1], bias.shape[-1]), bias)

    def resized(part: dict) -> dict:
        now = (key for key, x in part.items() if key.endswith("vocab_size") and x in sizes)
        return part | {key: sizes[part[key]] for key in now}

    return merged, json.loads(json.dumps(config), object_hook=resized)


def _is(name: str, end: str) -> bool:
    """Whether the last parts of a module's or tensor's name are `end`; classes put different parts before."""
    return f".{name}".endswith(f".{end}")


def _in_base(base: Tensors, name: str) -> str:
    bare = {other: other.replace("text_model.", "") for other in base}  # in T5Gemma 2's class alone
    wanted = name.replace("text_model.", "")
    names = [other for other, end in bare.items() if _is(end, wanted) or _is(wanted, end)]
    if len(names) != 1:
        raise InputError(f"the adapter changes {name}, which its base does not have")
    return names[0]


def _embeddings(tensors: Tensors) -> list[str]:
    return [name for name in tensors if _EMBEDDING.fullmatch(name.removesuffix(".weight"))]


def _untied(base: Tensors, head: str) -> dict[str, Tensor]:
    """The base's tensors with an embedding for each stack and a head, which are the modules that PEFT changes."""
    tensors = dict(base)
    for name in _embeddings(base):
        if _is(name, "shared.weight"):
            for stack in ("encoder", "decoder"):
                tensors.setdefault(name.replace("shared", f"{stack}.embed_tokens"), base[name])
    if not any(_is(name, f"{head}.weight") for name in tensors):
        embedding = max(_embeddings(tensors), key=lambda name: "decoder" in name)
        tensors[f"{head}.weight"] = tensors[embedding]
    return tensors


def _changes(
    module: str, parts: Tensors, base: Tensors, raw: Mapping, config: Mapping
) -> Iterator[_Change]:
    weight = f"{module}.weight"
    is_own = any(f"{ending}." in f"{module}." for ending in raw.get("modules_to_save") or [])
    for kind in parts.keys() & _WHOLE:
        order = _TIED
        if is_own:
            order = _OWN
        if kind.startswith("frozen_"):
            order = _BASE
        name = f"{module}.{kind.removeprefix('frozen_')}"
        yield _Change(order, name, order != _OWN, partial(lambda new, base: new, parts[kind]))
    if _TOKENS in parts:
        tokens = raw["trainable_token_indices"]
        is_tied = config.get("tie_word_embeddings") is not False
        own = base[_in_base(base, weight)]
        is_shared = is_tied and all(equal(base[n], own) for n in _embeddings(base))
        if isinstance(tokens, dict) or (_is(module, "shared") and not is_shared):
            # PEFT's versions differ in which of the other modules get the rows.
            raise InputError(f"trainable_token_indices of {module}: not of a tied embedding")
        yield _Change(_LEARNED, weight, is_tied, partial(_with_rows, tokens, parts[_TOKENS]))
    if "lora_embedding_A" in parts:
        down, up = (parts[f"lora_embedding_{part}"].permuted(1, 0) for part in "BA")
        product = partial(_plus_product, up, down, _scale(module, up.shape[1], raw))
        yield _Change(_LEARNED, weight, False, product)
    if "lora_A.weight" in parts:
        down, up = parts["lora_A.weight"], parts["lora_B.weight"]
        scale = _scale(module, down.shape[0], raw)
        yield _Change(_LEARNED, weight, False, partial(_plus_product, up, down, scale))
        if "lora_B.bias" in parts:
            bias = partial(_plus_bias, parts["lora_B.bias"], scale)
            yield _Change(_LEARNED, f"{module}.bias", False, bias)


def _scale(module: str, rank: int, raw: Mapping) -> float:
    patterns = raw.get("alpha_pattern") or {}
    alphas = (x for name, x in patterns.items() if re.fullmatch(rf"(.*\.)?({name})", module))
    alpha = next(alphas, raw["lora_alpha"])
    return alpha / (sqrt(rank) if raw.get("use_rslora") else rank)


@contextmanager
def with_tokenizer_of(adapter: Path | None, base: Path) -> Iterator[Path]:
    """A folder with a base's files and, if there is an adapter with a tokenizer, those of that instead."""
    if adapter is None or not (adapter / "tokenizer_config.json").exists():
        yield base
        return
    files = [file for file in base.iterdir() if file.name not in TOKENIZER_FILES]
    files += [file for file in adapter.iterdir() if file.name in TOKENIZER_FILES]
    with TemporaryDirectory() as folder:
        for file in files:
            Path(folder, file.name).symlink_to(file.resolve())
        yield Path(folder)
