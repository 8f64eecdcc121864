"""Converts Hugging Face checkpoints, downloaded where needed, to folders that are loaded."""

import json
import re
import shutil
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from filelock import FileLock

from checkpoints.folder import (
    WEIGHTS,
    converted_path,
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
) -> Path:
    """Convert `model`, a hub id or a folder, and return the converted folder.

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
        with replacing(output) as partial:
            source = fetch(
                model, revision, output, lambda folder: converted_size(folder, dtype, quantization)
            )
            if runs_in_mlx_lm(read_json(source / "config.json")):
                convert_with_mlx_lm(source, partial, dtype or "bfloat16", quantization)
            else:
                partial.mkdir()
                _write(source, partial, dtype, quantization, model)
    return output


def describe(model: str, revision: str | None = None) -> list[str]:
    """What a model takes, in lines. Of one on the hub only the config.json is downloaded."""
    lines = []

    def stop(size: int) -> bool:
        lines.append(f"download: {gb(size)}")
        return False

    target, dtype = skeleton(fetch(model, revision, start=stop))
    sizes = ram.needed(target, dtype)
    lines.append(f"memory for {ram.ROWS} prompts and outputs of {ram.TOKENS} tokens:")
    for bits, size in sizes.items():
        lines.append(f"  in {bits} bits {gb(size)}, a Mac of {ram.mac_for(size)}")
    if isinstance(target, EncoderDecoder):
        layer = distilled.own_weights(distilled.skeleton(target, [0]))
        size = stored_size(layer, dtype, None)
        lines.append(f"a draft model of one layer, made by distill.py: {gb(size)} more")
    return lines


def convert_first(name: str) -> Path:
    """The folder of a checkpoint, a folder or owner/name on the hub, that has not been converted yet: it is converted or,
    for mlx-lm, downloaded. InputError if there is none."""
    local = (Path(name) / "config.json").exists()
    on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not Path(name).parent.exists()
    output = converted_path(name)
    if not (local or on_hub) or output.exists():
        raise missing(name)
    if local:
        _wanted(name, "conversion", converted_size(Path(name), None) or 0)
        reporter.note(f"{name}: converting it to {output}")
        return convert(name, exist_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    wanted = partial(_wanted, name, "download")
    source = fetch(name, None, output, lambda folder: converted_size(folder, None), wanted)
    if runs_in_mlx_lm(read_json(source / "config.json")):
        return source
    return convert(name, exist_ok=True)


def convert_again(name: str, output: Path) -> Path:
    """Convert a checkpoint that has changed since again to the folder `output`, as before; if `name` is not the
    checkpoint but the folder, only warn."""
    raw = read_json(output / "config.json")
    origin, dtype, given = raw["converted_from"], raw["dtype"], raw.get("quantization", {})
    if Path(name).resolve() == Path(origin).resolve():
        quantization = Quantization.from_config(given) if given else None
        _wanted(name, "conversion", converted_size(Path(name), dtype, quantization) or 0)
        reporter.note(f"{name}: it has changed: converting it again to {output}")
        return convert(name, output, dtype, exist_ok=True, quantization=quantization)
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
    source: Path, output: Path, dtype: str | None, quantization: Quantization | None, origin: str
) -> None:
    state = state_of(source)
    with naming(source):
        raw = read_config(source)
        family = family_of(raw)
        tensors = family.rename(open_checkpoint(source))
        config = family.config.from_hub(raw, tensors)
        model = build(family, config, tensors)
        if raw.get("feed_forward_proj") == "gelu" and config.to_dict().get("gated"):
            # Some copies of flan-t5-xxl have this.
            note = "config.json says gelu, but the weights are gated: using gated-gelu"
            warnings.warn(f"{source}: {note}", stacklevel=2)
        if dtype is None:
            dtype = family.dtype
            note = _note(dtype)
            if note:
                reporter.note(f"{source}: {note}")
        family.write_tokenizer(source, output)
        fit_tokenizer(output, config.vocab_size)
        if (output / SOURCE_FILE).exists():
            fit_tokenizer(output, model.source_vocab_size, SOURCE_FILE)
        GenerationDefaults.load(source)
    write_weights(output / WEIGHTS, tensors, dtype, quantization)
    if state_of(source) != state:
        raise InputError(f"{source} has changed while it was read: is it being written?")
    made = {"dtype": dtype, "converted_from": origin, "converted_state": state}
    values = raw | config.to_dict() | made
    if quantization:
        values["quantization"] = vars(quantization)
    (output / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    if (source / GENERATION).exists():
        shutil.copyfile(source / GENERATION, output / GENERATION)
