"""Where converted models are, and which folder a user means."""

from pathlib import Path

from checkpoints.folder import read_json
from errors import InputError

MODELS = Path("mlx_models")
WEIGHTS = "weights.npz"


def converted_path(name: str) -> Path:
    """The folder that the model `name` (a hub id or a folder) is converted to and loaded from."""
    path = Path(name)
    return MODELS / (path.resolve() if path.is_dir() else path).name


def converted(name: str) -> Path | None:
    """The converted folder that a user means: a path, or a name under mlx_models/. owner/name means only what was
    converted from that."""
    if (Path(name) / WEIGHTS).exists():
        return Path(name)
    path = converted_path(name)
    return path if (path / WEIGHTS).exists() and not _other(name, path) else None


def _other(name: str, path: Path) -> str | None:
    """What the folder `path` was converted from, if that is not the model owner/name."""
    if "/" not in name or Path(name).is_dir() or not (path / "config.json").exists():
        return None
    origin = read_json(path / "config.json").get("converted_from", name)
    return None if origin == name else origin


def find_model(name: str) -> Path:
    """The converted folder that a user means; InputError if there is none."""
    if path := converted(name):
        return path
    if (Path(name) / "config.json").exists():
        raise InputError(f"{name} is not converted yet: python convert.py --model {name}")
    if Path(name).is_dir():
        raise InputError(f"{name} is not a converted model: it has no {WEIGHTS}")
    path, new = converted_path(name), MODELS / name.replace("/", "-")
    if other := _other(name, path):
        why = f"{path} is converted from {other}, not from {name}"
        raise InputError(
            f"{why}; to convert that: python convert.py --model {name} --mlx-path {new}"
        )
    hint = "" if "/" in name else "; on the hub names begin with an owner's: google/flan-t5-base"
    raise InputError(f"no model {name!r}; to convert it: python convert.py --model {name}{hint}")
