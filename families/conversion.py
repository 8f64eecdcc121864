"""Converts Hugging Face checkpoints, downloaded where needed, to folders that are loaded."""

import json
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from filelock import FileLock

from checkpoints.adapters import base_of, merge, with_tokenizer_of
from checkpoints.folder import (
    ADAPTER,
    WEIGHTS,
    converted_path,
    is_adapter,
    is_outdated,
    missing,
    open_checkpoint,
    read_json,
    state_of,
)
from checkpoints.hub import fetch, gb
from checkpoints.quantization import Quantization
from checkpoints.weights import stored_size, write_weights
from common.errors import InputError, naming
from common.files import replacing
from common.reporting import reporter
from families import distilled, ram
from families.causal_loading import (
    convert_with_mlx_lm,
    fuse_with_mlx_lm,
    is_mlx_lm_folder,
    mlx_lm_skeleton,
    runs_in_mlx_lm,
)
from families.converted import build, weights_of
from families.registry import check_head, family_of
from text.generation import FILE as GENERATION
from text.generation import GenerationDefaults
from text.tokenizer import SOURCE_FILE
from text.tokenizer_files import fit_tokenizer
from transformer import EncoderDecoder

MOST = 20e9  # bytes that are downloaded or converted without asking


@dataclass(frozen=True)
class _Source:
    """What is converted: the folder of a checkpoint or, for an adapter, of its base."""

    name: str
    folder: Path
    adapter: Path | None = None
    base: str = ""

    def state(self) -> dict[str, Any]:
        """What a converted folder's config.json says of it."""
        if self.adapter is None:
            return {"converted_from": self.name, "converted_state": state_of(self.folder)}
        of_adapter = {"converted_from": self.name, "converted_state": state_of(self.adapter)}
        return of_adapter | {"adapter_base": self.base, "base_state": state_of(self.folder)}


def _fetch(
    model: str,
    revision: str | None = None,
    base: str | None = None,
    output: Path = Path(),
    size: Callable[[Path], int | None] = lambda folder: 0,
    start: Callable[[int], bool] = lambda size: True,
) -> _Source:
    """A checkpoint, or an adapter and its base, downloaded where needed. size, start: as for `fetch`."""
    folder = fetch(model, revision, output, size, start)
    if not is_adapter([path.name for path in folder.iterdir()]):
        if base:
            raise InputError(f"{model} is no adapter: it has no {ADAPTER}")
        return _Source(model, folder)
    named, revision = base_of(folder)
    try:
        found = fetch(base or named, None if base else revision, output, size, start)
    except InputError as error:
        hint = "--model BASE --adapter-path ADAPTER takes another"
        raise InputError(f"{model} is an adapter of {base or named}: {error} ({hint})") from None
    return _Source(model, found, folder, base or named)


def read_config(folder: Path) -> dict:
    """The raw config.json, with the token ids that transformers' `generate` would use."""
    raw = read_json(folder / "config.json")
    if "converted_from" in raw:
        raise InputError(f"{folder} is already converted; convert the checkpoint it was made from")
    if raw.get("model_type") == distilled.KIND:
        raise InputError(f"{folder} is a draft model, made by distill.py: use it as it is")
    check_head(raw)
    if (folder / GENERATION).exists():
        given = read_json(folder / GENERATION).items()
        raw |= {k: v for k, v in given if k.endswith("_token_id") and v is not None}
    return raw


def converted_size(
    folder: Path, dtype: str | None, quantization: Quantization | None = None
) -> int | None:
    """Bytes of the weights once converted, computed from the folder's config.json alone: the weights may be
    missing; None for a model that mlx-lm runs. InputError for a model that cannot be converted."""
    if runs_in_mlx_lm(read_json(folder / "config.json")):
        return None
    model, own_dtype = skeleton(folder)
    return stored_size(weights_of(model), dtype or own_dtype, quantization)


def skeleton(folder: Path) -> tuple[Any, str]:
    """The model of a config.json without its weights, and the type that conversion gives them."""
    if runs_in_mlx_lm(read_json(folder / "config.json")):
        return mlx_lm_skeleton(folder), "bfloat16"
    with naming(folder):
        raw = read_config(folder)
        family = family_of(raw)
        model = family.model(family.config.from_hub(raw, None))
    return model, family.dtype


def convert(
    model: str,
    output: Path | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    force: bool = False,
    exist_ok: bool = False,
    quantization: Quantization | None = None,
    base: str | None = None,
) -> Path:
    """Convert `model`, a hub id or a folder, and return the converted folder.

    `model` may be an adapter, which is merged into the model that it names or, if given, `base`.

    The default output is mlx_models/<last part of the name>, the default dtype the family's. The output appears
    complete or not at all. If it exists, raise InputError, unless `force` (replace it) or `exist_ok` (keep it, unless the
    checkpoint has changed since).
    Weights are converted in blocks, so memory does not grow with the checkpoint.
    """
    output = output or converted_path(model)
    output.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(output.parent / f".{output.name}.lock"):  # waits for another conversion
        if output.exists() and exist_ok and not is_outdated(output):
            return output
        if output.exists() and not (force or exist_ok):
            raise InputError(f"{output} already exists; --force replaces it")
        if output.exists() and not (output / WEIGHTS).exists() and not is_mlx_lm_folder(output):
            raise InputError(f"{output} is not a converted model; --force does not replace it")
        with replacing(output) as new:
            size = partial(converted_size, dtype=dtype, quantization=quantization)
            source = _fetch(model, revision, base, output, size)
            if not runs_in_mlx_lm(read_json(source.folder / "config.json")):
                new.mkdir()
                _write(source, new, dtype, quantization)
            elif source.adapter and (dtype or quantization):
                raise InputError(f"{model}: mlx-lm fuses an adapter in its base's type and bits")
            elif source.adapter:
                fuse_with_mlx_lm(source.folder, source.adapter, new)
            else:
                convert_with_mlx_lm(source.folder, new, dtype or "bfloat16", quantization)
    return output


def describe(model: str, revision: str | None = None) -> list[str]:
    """What a model takes, in lines. Of one on the hub only the config.json is downloaded."""
    lines = []

    def stop(size: int) -> bool:
        lines.append(f"download: {gb(size)}")
        return False

    target, dtype = skeleton(_fetch(model, revision, start=stop).folder)
    sizes = ram.needed(target, dtype)
    lines.append(f"memory for {ram.ROWS} prompts and outputs of {ram.TOKENS} tokens:")
    for bits, size in sizes.items():
        lines.append(f"  in {bits} bits {gb(size)}, a Mac of {ram.mac_for(size)}")
    if isinstance(target, EncoderDecoder):
        layer = distilled.own_weights(distilled.skeleton(target, [0]))
        size = stored_size(layer, dtype, None)
        lines.append(f"a draft model of one layer, made by distill.py: {gb(size)} more")
    return lines


def convert_first(name: str, base: str | None = None) -> Path:
    """The folder of a checkpoint or an adapter, a folder or owner/name on the hub, that has not been converted yet: it is
    converted or, for mlx-lm, downloaded. base: as for `convert`. InputError if there is none."""
    local = any((Path(name) / file).exists() for file in ("config.json", ADAPTER))
    on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not Path(name).parent.exists()
    output = converted_path(name, base)
    if not (local or on_hub) or output.exists():
        raise missing(name)
    output.parent.mkdir(parents=True, exist_ok=True)
    download = partial(_wanted, name, "download")
    source = _fetch(name, None, base, output, partial(converted_size, dtype=None), download)
    if not source.adapter and runs_in_mlx_lm(read_json(source.folder / "config.json")):
        return source.folder
    if local:
        _wanted(name, "conversion", converted_size(source.folder, None) or 0)
        reporter.note(f"{name}: converting it to {output}")
    return convert(name, output, exist_ok=True, base=base)


def convert_again(name: str, output: Path) -> Path:
    """Convert a checkpoint that has changed since again to the folder `output`, as before; if `name` is not the
    checkpoint but the folder, only warn."""
    raw = read_json(output / "config.json")
    origin, dtype, given = raw["converted_from"], raw["dtype"], raw.get("quantization", {})
    if Path(name).resolve() == Path(origin).resolve():
        quantization = Quantization.from_config(given) if given else None
        base = raw.get("adapter_base")
        folder = _fetch(name, base=base).folder
        _wanted(name, "conversion", converted_size(folder, dtype, quantization) or 0)
        reporter.note(f"{name}: it has changed: converting it again to {output}")
        return convert(name, output, dtype, exist_ok=True, quantization=quantization, base=base)
    flags = ["--quantize"] if given else []
    flags += [f"--q-{key.replace('_', '-')} {value}" for key, value in given.items()]
    command = f"python convert.py --model {origin} --mlx-path {output} --dtype {dtype} --force"
    message = f"{output}: {origin} has changed since its conversion; to repeat it: {command}"
    warnings.warn(" ".join([message, *flags]), stacklevel=2)
    return output


def _wanted(name: str, task: str, size: int) -> bool:
    """Whether to start with `size` bytes: if they are many, asks, or raises InputError if there is nobody to ask."""
    if size <= MOST:
        return True
    message = f"{name} is a {task} of {gb(size)}"
    if reporter.confirm is None:
        raise InputError(f"{message}; to start it: python convert.py --model {name}")
    if not reporter.confirm(f"{message}. Start it?"):
        raise InputError(f"the {task} of {name} is not started; smaller models: docs/models.md")
    return True


def _note(dtype: str) -> str | None:
    """What to say about weights in 16 bits, chosen by us, on this machine."""
    if mx.default_device() == mx.cpu:
        return f"weights in {dtype}; without a GPU --dtype float32 is several times faster"
    chip = str(mx.device_info().get("device_name", ""))
    if not re.match(r"Apple M[12]\b", chip):
        return None
    why = f"{chip} emulates bfloat16"
    if dtype != "float16":
        why += ", but the model needs its range"
    return f"weights in {dtype}: {why}"


def _write(
    source: _Source, output: Path, dtype: str | None, quantization: Quantization | None
) -> None:
    state = source.state()
    named = source.adapter or source.folder
    folder = source.folder
    with naming(named):
        raw = read_config(folder)
        family = family_of(raw)
        stored = open_checkpoint(folder)
        if source.adapter:
            with naming(Path(source.base)):
                stored, raw = merge(source.adapter, stored, raw)
        tensors = family.rename(stored)
        config = family.config.from_hub(raw, tensors)
        model = build(family, config, tensors)
        if raw.get("feed_forward_proj") == "gelu" and config.to_dict().get("gated"):
            # Some copies of flan-t5-xxl have this.
            note = "config.json says gelu, but the weights are gated: using gated-gelu"
            warnings.warn(f"{named}: {note}", stacklevel=2)
        if dtype is None:
            dtype = family.dtype
            note = _note(dtype)
            if note:
                reporter.note(f"{named}: {note}")
        with with_tokenizer_of(source.adapter, folder) as tokenizer:
            family.write_tokenizer(tokenizer, output)
        fit_tokenizer(output, config.vocab_size)
        if (output / SOURCE_FILE).exists():
            fit_tokenizer(output, model.source_vocab_size, SOURCE_FILE)
        GenerationDefaults.load(folder)
    write_weights(output / WEIGHTS, tensors, dtype, quantization)
    if source.state() != state:
        raise InputError(f"{named} has changed while it was read: is it being written?")
    values = raw | config.to_dict() | {"dtype": dtype} | state
    if quantization:
        values["quantization"] = vars(quantization)
    (output / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    if (folder / GENERATION).exists():
        shutil.copyfile(folder / GENERATION, output / GENERATION)
