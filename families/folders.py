"""Where converted models are, and which folder a user means."""

from pathlib import Path

from checkpoints.folder import check_kind, read_json
from errors import InputError

MODELS = Path("mlx_models")
WEIGHTS = "weights.npz"


def converted_path(name: str) -> Path:
    """The folder that the model `name` (a hub id or a folder) is converted to and loaded from."""
    path = Path(name)
    return MODELS / (path.resolve() if path.is_dir() else path).name


def converted(name: str) -> Path | None:
    """The converted folder that a user means: a path, or a name under mlx_models/. owner/name and a checkpoint's folder
    mean only what was converted from that."""
    if (Path(name) / WEIGHTS).exists():
        return Path(name)
    path = converted_path(name)
    return path if (path / WEIGHTS).exists() and not _other(name, path) else None


def _other(name: str, path: Path) -> str | None:
    """What the folder `path` was converted from, if that is not the model owner/name or the checkpoint's folder."""
    local = (Path(name) / "config.json").exists()
    if not (local or "/" in name) or not (path / "config.json").exists():
        return None
    origin = read_json(path / "config.json").get("converted_from", name)
    same = Path(origin).resolve() == Path(name).resolve() if local else origin == name
    return None if same else origin


def missing(name: str) -> InputError:
    """Why no folder is `converted` by this name, and what to type."""
    path, new = converted_path(name), MODELS / "-".join(Path(name).resolve().parts[-2:])
    if Path(name).is_dir() and not (Path(name) / "config.json").exists():
        check_kind(name, [path.name for path in Path(name).iterdir()])
        return InputError(f"{name} is not a converted model: it has no {WEIGHTS}")
    if other := _other(name, path):
        why = f"{path} is converted from {other}, not from {name}"
        return InputError(
            f"{why}; to convert that: python convert.py --model {name} --mlx-path {new}"
        )
    if path.exists():
        return InputError(f"{path} is not a converted model: remove it, or give it another name")
    hint = "" if "/" in name else " (a name on the hub has an owner: google/flan-t5-base)"
    return InputError(f"no model {name!r} here{hint}")
