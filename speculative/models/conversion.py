"""Converts Hugging Face checkpoints, downloaded where needed, to folders that are loaded."""

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from speculative.checkpoints import folder as folders
from speculative.checkpoints.adapters import base_of, merge, with_tokenizer_of
from speculative.checkpoints.folder import WEIGHTS, converted_path, is_outdated, read_json
from speculative.checkpoints.hub import Start, fetch
from speculative.checkpoints.weights import Quantization, stored_size, write_weights
from speculative.common.errors import InputError, errors_name
from speculative.common.files import lock, replacing
from speculative.common.reporting import gb, reporter
from speculative.models import causal_loading
from speculative.models.mlx_lm_folders import runs_in_mlx_lm
from speculative.models.registry import DISTILLED, build, check_head, family_of
from speculative.text.generation import FILE as GENERATION
from speculative.text.generation import GenerationDefaults
from speculative.text.tokenizer import SOURCE_FILE
from speculative.text.tokenizer_files import fit_tokenizer

MAX_UNASKED = 20e9  # bytes that are downloaded or converted without asking


@dataclass(frozen=True)
class _Source:
    """A checkpoint's folder or, for an adapter, its base's."""

    name: str
    folder: Path
    adapter: Path | None = None
    base: str = ""


def fetch_source(
    model: str,
    revision: str | None = None,
    base: str | None = None,
    output: Path = Path(),
    start: Start | None = None,
) -> _Source:
    """A checkpoint, or an adapter and its base, downloaded where needed. output, start: as for `fetch`."""
    folder = fetch(model, revision, output, start)
    names = [path.name for path in folder.iterdir()]
    if not base and not folders.is_adapter(names):
        if folders.ADAPTER in names:
            other = f"--model BASE --adapter-path {model} merges it"
            reporter.note(f"{model}: the whole model is used, not the adapter beside it; {other}")
        return _Source(model, folder)
    if folders.ADAPTER not in names:
        raise InputError(f"{model} is no adapter: it has no {folders.ADAPTER}")
    named, revision = base_of(folder)
    if not (base or named):
        raise InputError(f"{model} names no base: --model BASE --adapter-path {model}")
    try:
        found = fetch(base or named, None if base else revision, output, start)
    except InputError as error:
        hint = "--model BASE --adapter-path ADAPTER takes another"
        raise InputError(f"{model} is an adapter of {base or named}: {error} ({hint})") from None
    return _Source(model, found, folder, base or named)


def _is_mlx_lms(folder: Path) -> bool:
    return runs_in_mlx_lm(read_json(folder / "config.json"))


def read_config(folder: Path) -> dict:
    """The raw config.json, with the token ids that transformers' `generate` would use."""
    raw = read_json(folder / "config.json")
    if "converted_from" in raw:
        raise InputError(f"{folder} is already converted; convert the checkpoint it was made from")
    if raw.get("model_type") == DISTILLED:
        raise InputError(f"{folder} is a draft model, made by distill.py: use it as it is")
    check_head(raw)
    if (folder / GENERATION).exists():
        settings = read_json(folder / GENERATION).items()
        raw |= {k: v for k, v in settings if k.endswith("_token_id") and v is not None}
    return raw


def converted_size(
    folder: Path, dtype: str | None = None, quantization: Quantization | None = None
) -> int:
    """Bytes of the weights once converted, from the config.json alone; 0 for a model that mlx-lm runs."""
    if _is_mlx_lms(folder):
        return 0
    model, own_dtype = skeleton(folder)
    return stored_size(model, dtype or own_dtype, quantization)


def skeleton(folder: Path) -> tuple[Any, str]:
    """The model of a config.json without its weights, and the type that conversion gives them."""
    if _is_mlx_lms(folder):
        return causal_loading.mlx_lm_skeleton(folder), "bfloat16"
    with errors_name(folder):
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
    """Convert `model`, a hub id or a folder: the new folder, by default mlx_models/<last part of the name>. An adapter is
    merged into the model that it names or, if given, `base`. The default dtype is the family's.

    The output appears complete or not at all. InputError if it exists, unless `force` (replace it) or `exist_ok` (keep it,
    unless the checkpoint has changed).
    """
    output = output or converted_path(model, base)
    place = output.resolve()  # it may be a link, or "."
    _check_apart(place, model, base)
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.parent / f".{place.name}.lock", "a") as file:
        lock(file, place, wait=True)  # for another conversion
        if output.exists():
            if not folders.is_converted(output):
                raise InputError(f"{output} is not a converted model: choose another --mlx-path")
            if exist_ok and not is_outdated(output):
                return output
            if not (force or exist_ok):
                raise InputError(f"{output} already exists; --force replaces it")
        with replacing(place) as new:
            size = partial(converted_size, dtype=dtype, quantization=quantization)
            source = fetch_source(model, revision, base, output, lambda folder, _: size(folder))
            _check_apart(place, source.folder, source.adapter)
            with _marked(new / "config.json", source):
                _write(source, new, dtype, quantization)
    return output


def _check_apart(output: Path, *sources: str | Path | None) -> None:
    """InputError if `output`, which is resolved, is or holds one of the folders that it is made from."""
    for source in map(str, filter(None, sources)):
        folder = Path(source).resolve()
        if folder.exists() and output in (folder, *folder.parents):
            problem = f"{output} would replace its source {source}"
            raise InputError(f"{problem}: choose another --mlx-path")


@contextmanager
def _marked(file: Path, source: _Source) -> Iterator[None]:
    """Puts marks of a source as it is now into a config.json that is written meanwhile."""
    marks: list[Any] = [source.name, folders.state_of(source.adapter or source.folder)]
    if source.adapter:
        marks += [source.base, folders.state_of(source.folder)]
    yield
    values = {key: x for key, x in read_json(file).items() if key not in folders.MARKS}
    values |= zip(folders.MARKS, marks, strict=False)
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _command(name: str, base: str | None) -> str:
    """The command that converts a checkpoint, or an adapter of `base`."""
    adapter = base and f"--adapter-path {name}"
    return " ".join(filter(None, ["python convert.py --model", base or name, adapter]))


def convert_first(name: str, base: str | None = None) -> Path:
    """The folder of a checkpoint or an adapter, converted now, or downloaded for mlx-lm. base: as for `convert`"""
    output = converted_path(name, base)
    if not Path(name).is_dir() and not folders.is_on_hub(name):
        hint = "" if "/" in name else " (a name on the hub has an owner: google/flan-t5-base)"
        raise InputError(f"no model {name!r} here{hint}")
    if output.exists():
        raw = read_json(output / "config.json")
        origins = raw.get("converted_from", "another model"), raw.get("adapter_base")
        origin, wanted = (" of ".join(filter(None, names)) for names in (origins, (name, base)))
        new = output.parent / "-".join(Path(name).resolve().parts[-2:])
        raise InputError(
            f"{output} is converted from {origin}, not from {wanted}; to convert that: "
            f"{_command(name, base)} --mlx-path {new}"
        )

    def start(folder: Path, size: int) -> int:
        converted = converted_size(folder)
        _ask(name, base, "download", size)
        return converted

    output.parent.mkdir(parents=True, exist_ok=True)
    source = fetch_source(name, None, base, output, start)
    if _is_mlx_lms(source.folder) and not source.adapter:
        return source.folder
    if Path(name).is_dir():
        _ask(name, base, "conversion", converted_size(source.folder))
        reporter.note(f"{name}: converting it to {output}")
    return convert(name, output, exist_ok=True, base=base)


def convert_again(name: str, output: Path, base: str | None = None) -> Path:
    """Convert a checkpoint that has changed again, as before; if `name` is not it but `output`, only warn. base: as for `convert`"""
    raw = read_json(output / "config.json")
    origin = raw["converted_from"]
    dtype = quantization = None
    if (output / WEIGHTS).exists():  # else mlx-lm keeps those of an adapter's base
        dtype, stored = raw["dtype"], raw.get("quantization")
        quantization = stored and Quantization.from_config(stored)
    if Path(name).resolve() == Path(origin).resolve():
        folder = fetch_source(name, None, base).folder
        _ask(name, base, "conversion", converted_size(folder, dtype, quantization))
        reporter.note(f"{name}: it has changed: converting it again to {output}")
        return convert(name, output, dtype, exist_ok=True, quantization=quantization, base=base)
    command = f"{_command(origin, raw.get('adapter_base'))} --mlx-path {output}"
    if dtype:
        command += f" --dtype {dtype}"
    command += " --force"
    if raw.get("quantization"):
        command += ", and its flags of quantization"
    message = f"{output}: {origin} has changed since its conversion; to repeat it: {command}"
    warnings.warn(message, stacklevel=2)
    return output


def _ask(name: str, base: str | None, task: str, size: int) -> None:
    """Ask whether to start with `size` bytes, if they are many. InputError if not, or if there is nobody to ask."""
    if size <= MAX_UNASKED:
        return
    message = f"{name} is a {task} of {gb(size)}"
    if reporter.confirm is None:
        raise InputError(f"{message}; to start it: {_command(name, base)}")
    if not reporter.confirm(f"{message}. Start it?"):
        raise InputError(f"the {task} of {name} is not started; smaller models: docs/models.md")


def _write(
    source: _Source, output: Path, dtype: str | None, quantization: Quantization | None
) -> None:
    folder = source.folder
    if _is_mlx_lms(folder):
        causal_loading.convert(folder, source.adapter, output, dtype, quantization)
        return
    output.mkdir()
    named = source.adapter or folder
    with errors_name(named):
        raw = read_config(folder)
        family = family_of(raw)
        stored = folders.open_checkpoint(folder)
        if source.adapter:
            with errors_name(Path(source.base)):
                stored, raw = merge(source.adapter, stored, raw)
        tensors = family.rename(stored)
        config = family.config.from_hub(raw, tensors)
        model = build(family.model(config), tensors)
        if dtype is None:
            dtype = family.dtype
            if mx.default_device() == mx.cpu:
                faster = "without a GPU --dtype float32 is several times faster"
                reporter.note(f"{named}: weights in {dtype}; {faster}")
        with with_tokenizer_of(source.adapter, folder) as tokenizer:
            family.write_tokenizer(tokenizer, output)
        fit_tokenizer(output, config.vocab_size)
        if (output / SOURCE_FILE).exists():
            fit_tokenizer(output, model.source_vocab_size, SOURCE_FILE)
        GenerationDefaults.load(folder)
    write_weights(output / WEIGHTS, tensors, dtype, model, quantization)
    values = raw | asdict(config) | {"dtype": dtype}
    if quantization:
        values["quantization"] = vars(quantization)
    (output / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    if (folder / GENERATION).exists():
        shutil.copyfile(folder / GENERATION, output / GENERATION)
