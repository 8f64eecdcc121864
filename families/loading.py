"""Models from converted folders: which folder is meant, whose architecture it is, its weights checked."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from tokenizers import Tokenizer

from checkpoints.config import Config
from checkpoints.files import map_npz, read_json, to_mlx
from checkpoints.quantization import Quantization
from checkpoints.tokenizer import load_tokenizer
from distributed import sharding
from distributed.ranks import Ranks
from errors import InputError
from model import T5

MODELS = Path("mlx_models")
WEIGHTS = "weights.npz"


def build(config: Config, quantization: Quantization | None = None) -> T5:
    """A model whose weights are to be loaded; nothing is allocated."""
    model = T5(config)
    if quantization:
        quantize(model, quantization)
    return model


def quantize(model: T5, quantization: Quantization) -> None:
    """Quantize the weights of a model that a quantization covers, in place."""

    def covered(name: str, module: nn.Module) -> bool:
        weight = module.get("weight")
        return weight is not None and quantization.covers(name, weight.shape)

    nn.quantize(model, **quantization.to_dict(), class_predicate=covered)


def weight_shapes(
    config: Config, quantization: Quantization | None = None
) -> dict[str, tuple[int, ...]]:
    """The name and shape of every weight of a model; nothing is allocated."""
    weights = dict(tree_flatten(build(config, quantization).parameters()))
    return {name: value.shape for name, value in weights.items()}


def check_weights(
    config: Config,
    found: Mapping[str, tuple[int, ...]],
    quantization: Quantization | None = None,
) -> None:
    """InputError that names the weights missing from, unknown to or mis-shaped for the model."""
    expected = weight_shapes(config, quantization)
    if missing := sorted(expected.keys() - found.keys()):
        raise InputError(f"missing weights: {_listed(missing)}")
    if extra := sorted(found.keys() - expected.keys()):
        raise InputError(f"unknown weights: {_listed(extra)}")
    for name, shape in expected.items():
        if tuple(found[name]) != shape:
            raise InputError(
                f"{name} has shape {list(found[name])}, config.json says {list(shape)}"
            )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def converted_path(name: str) -> Path:
    """Where the model `name` (a hub id, or a folder) is converted to, and looked up."""
    path = Path(name)
    return MODELS / (path.resolve() if path.is_dir() else path).name


def find_model(name: str) -> Path:
    """The converted folder that a user means: a path, or a name under mlx_models/."""
    for path in (Path(name), converted_path(name)):
        if (path / WEIGHTS).exists():
            return path
    if (Path(name) / "config.json").exists():
        raise InputError(f"{name} is not converted yet: python convert.py --model {name}")
    if Path(name).is_dir():
        raise InputError(f"{name} is not a converted model: it has no {WEIGHTS}")
    raise InputError(f"no model {name!r}; to convert it: python convert.py --model {name}")


def load(
    name: str | Path, group: mx.distributed.Group | None = None, split: bool = True
) -> tuple[T5, Tokenizer]:
    """The model and the tokenizer of a converted folder, or of a name under mlx_models/.

    group: `mx.distributed.init()`, in processes that mlx.launch started. All load the same model and
    each holds a part of its layers; or, without `split`, all of it.

    Raises InputError when there is none, its weights are not those of its config.json, or the ranks
    differ; what goes wrong on one rank is raised on all.
    """
    ranks = Ranks(group)
    path, config, quantization, arrays = ranks.together(lambda: _open(str(name)))
    if ranks.size > 1:
        ranks.check_same(**ranks.together(lambda: _fingerprints(path, config, quantization)))

    def read() -> T5:
        model = build(config, quantization)
        if split and group and ranks.size > 1:
            sharding.check_ranks(config, quantization, ranks.size)
            sharding.shard(model, group)
            sharding.load_shard(model, arrays, ranks.rank)
            model.ranks = ranks
        else:
            model.load_weights([(key, to_mlx(array)) for key, array in arrays.items()])
        model.tokenizer = load_tokenizer(path)  # what a target compares its own with
        return model

    model = ranks.together(read)
    return model, model.tokenizer


def _open(name: str) -> tuple[Path, Config, Quantization | None, dict[str, np.ndarray]]:
    """A model's folder and what is in it; weights are views of the file."""
    path = find_model(name)
    raw = read_json(path / "config.json")
    config, quantization = Config.from_dict(raw), Quantization.from_config(raw)
    arrays = map_npz(path / WEIGHTS)
    try:
        check_weights(config, {k: array.shape for k, array in arrays.items()}, quantization)
    except InputError as error:
        raise InputError(f"{path / WEIGHTS}: {error}") from None
    return path, config, quantization, arrays


def _fingerprints(path: Path, config: Config, quantization: Quantization | None) -> dict[str, str]:
    """What tells a model's files from others of the same names; weights by the zip's checksums."""
    from importlib.metadata import version

    with zipfile.ZipFile(path / WEIGHTS) as archive:
        members = [(m.filename, m.file_size, m.CRC) for m in archive.infolist()]
    parts = {
        "config.json": str((config, quantization)),
        "weights.npz": str(members),
        "tokenizer.json": (path / "tokenizer.json").read_text(encoding="utf-8"),
        "version of MLX": version("mlx"),
    }
    return {name: f"{zlib.crc32(text.encode()):08x}" for name, text in parts.items()}
