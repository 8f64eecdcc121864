"""Where converted models are, and which folder a user means."""

from pathlib import Path

from errors import InputError

MODELS = Path("mlx_models")
WEIGHTS = "weights.npz"


def converted_path(name: str) -> Path:
    """The folder that the model `name` (a hub id or a folder) is converted to and loaded from."""
    path = Path(name)
    return MODELS / (path.resolve() if path.is_dir() else path).name


def converted(name: str) -> Path | None:
    """The converted folder that a user means: a path, or a name under mlx_models/."""
    paths = (Path(name), converted_path(name))
    return next((path for path in paths if (path / WEIGHTS).exists()), None)


def find_model(name: str) -> Path:
    """The converted folder that a user means; InputError if there is none."""
    if path := converted(name):
        return path
    if (Path(name) / "config.json").exists():
        raise InputError(f"{name} is not converted yet: python convert.py --model {name}")
    if Path(name).is_dir():
        raise InputError(f"{name} is not a converted model: it has no {WEIGHTS}")
    hint = "" if "/" in name else "; on the hub names begin with an owner's: google/flan-t5-base"
    raise InputError(f"no model {name!r}; to convert it: python convert.py --model {name}{hint}")
