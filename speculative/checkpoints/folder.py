"""Folders of models: a Hugging Face checkpoint's JSON files and weights, and where converted models are."""

import json
import re
from collections.abc import Callable, Collection
from pathlib import Path

from speculative.checkpoints.tensors import Tensor, read_safetensors, read_torch
from speculative.common.errors import InputError

MODELS = Path("mlx_models")
WEIGHTS = "weights.npz"
# Of converted folders, in config.json
MARKS = ("converted_from", "converted_state", "adapter_base", "base_state")
TOKENIZER_FILES = (  # those files of a checkpoint that describe its tokenizer
    "tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json spiece.model "
    "sentencepiece.bpe.model source.spm target.spm vocab.json target_vocab.json merges.txt"
).split()
ADAPTER = "adapter_config.json"
_SETTINGS = {"config.json", ADAPTER, "generation_config.json", *TOKENIZER_FILES}
MLX_LMS_ADAPTER = "adapters.safetensors"
_WEIGHTS = re.compile(
    r"(model|pytorch_model|adapter_model).*\.(safetensors|bin)|adapters\.safetensors"
)
_MODEL_FILES = ("model.safetensors", "pytorch_model.bin")  # best first
_ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin", MLX_LMS_ADAPTER)
_OTHERS = {  # files of folders that are not Hugging Face checkpoints
    "model.bin": "CTranslate2's, as for faster-whisper: convert the original model",
    ".gguf": "GGUF, llama.cpp's: convert the original model",
}


def read_json(path: Path) -> dict:
    """The object in the JSON file `path`; InputError if the file is missing or holds no object."""
    try:
        return json_object(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def json_object(text: bytes | str, *fields: str) -> dict:
    """The object in a JSON text, in UTF-8; InputError if it is none, or lacks one of these fields."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from None
    if not isinstance(value, dict) or not value.keys() >= {*fields}:
        raise InputError(f"not a JSON object{''.join(f' with a field {x}' for x in fields)}")
    return value


def is_adapter(names: Collection[str]) -> bool:
    """Whether these files of a folder or a repository are an adapter of PEFT's or mlx-lm's, and no whole model."""
    return ADAPTER in names and not any(name.startswith(_MODEL_FILES) for name in names)


def check_kind(model: object, names: Collection[str]) -> None:
    """InputError if these files of `model`, a folder or a repository, are in another project's format."""
    if ADAPTER in names or any(name.startswith(_MODEL_FILES) for name in names):
        return
    for ending, kind in _OTHERS.items():
        if any(name.endswith(ending) for name in names):
            raise InputError(f"{model} is {kind}")
    steps = [name for name in names if re.fullmatch(r"checkpoint-\d+", name)]
    if steps:
        newest = max(steps, key=lambda name: int(name.partition("-")[2]))
        raise InputError(f"{model} has no weights but a Trainer's folders: use {model}/{newest}")


def weight_files(names: Collection[str], get: Callable[[str], Path]) -> list[str]:
    """The files of one complete copy of the weights: one, or an index and its shards. get: returns an index's path"""
    for single in (*_MODEL_FILES, *_ADAPTER_FILES):
        index = f"{single}.index.json"
        if single in names:
            return [single]
        if index in names:
            path = get(index)
            weight_map = read_json(path).get("weight_map")
            if not isinstance(weight_map, dict):
                raise InputError(f"{path}: no weight_map")
            shards = {*weight_map.values()}
            if shards <= {*names}:
                return [index, *sorted(shards)]
    return []


def open_checkpoint(folder: Path, adapter: bool = False) -> dict[str, Tensor]:
    """The tensors of a Hugging Face folder, or of the adapter in it."""
    names = {path.name for path in folder.iterdir() if path.is_file()}
    if adapter:  # there may be a whole model beside it
        names = {name for name in names if not name.startswith(_MODEL_FILES)}
    files = weight_files(names, folder.joinpath)
    if not files:
        wanted = " or ".join(_MODEL_FILES)
        raise InputError(f"{folder}: no weights: no {wanted} or index with all of its files")
    load = read_safetensors if ".safetensors" in files[0] else read_torch
    tensors: dict[str, Tensor] = {}
    for file in files[1:] or files:
        tensors |= load(folder / file)
    return tensors


def state_of(folder: Path, *others: str) -> dict[str, list[int]]:
    """The size in bytes and the time in ns, other ones if it is written again, of each file that conversion reads from a
    checkpoint, and of `others`."""
    names = {*_SETTINGS, *others}
    read = (p for p in folder.glob("*") if p.name in names or _WEIGHTS.fullmatch(p.name))
    stats = {path.name: path.stat() for path in read}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def stamp(folder: Path) -> str:
    """Of the files in a folder that a model is loaded from: another one if some are written again."""
    return repr(sorted(state_of(folder, WEIGHTS, "chat_template.jinja").items()))


def is_outdated(converted: Path) -> bool:
    """Whether the checkpoint that this folder was converted from, or an adapter's base, has changed, if it has weights."""
    raw = read_json(converted / "config.json")
    for origin, known in (MARKS[:2], MARKS[2:]):
        state = state_of(Path(str(raw.get(origin)))) if known in raw else {}
        if any(map(_WEIGHTS.fullmatch, state)) and state != raw[known]:
            return True
    return False


def converted_path(name: str, base: str | None = None) -> Path:
    """The folder of a model (a hub id or a folder), or of an adapter with another base than its own."""
    parts = [name] if base is None else [base, name]
    folders = (Path(part).resolve() if Path(part).is_dir() else Path(part) for part in parts)
    return MODELS / "-".join(folder.name for folder in folders)


def is_on_hub(name: str) -> bool:
    """Whether this is owner/name on the hub, if it is no folder here."""
    return bool(re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name)) and Path(name).parent != MODELS


def is_converted(path: Path) -> bool:
    """Whether conversion has made this folder, in whichever format."""
    file = path / "config.json"
    return file.exists() and "converted_from" in read_json(file)


def converted(name: str, base: str | None = None) -> Path | None:
    """The converted folder of a path or name; owner/name and a checkpoint's folder mean only what was converted from them."""
    if base is None and (Path(name) / WEIGHTS).exists():
        return Path(name)
    path = converted_path(name, base)
    if not (path / WEIGHTS).exists() and not is_converted(path):
        return None
    raw = read_json(path / "config.json")
    if base and Path(raw.get("adapter_base", "")).resolve() != Path(base).resolve():
        return None
    origin = raw.get("converted_from", name)
    if any((Path(name) / file).exists() for file in ("config.json", ADAPTER)):
        return path if Path(origin).resolve() == Path(name).resolve() else None
    return path if "/" not in name or origin == name else None
