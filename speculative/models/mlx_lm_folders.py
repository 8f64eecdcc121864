"""Which folders hold a decoder-only model, which mlx-lm runs."""

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speculative.checkpoints.folder import (
    WEIGHTS,
    converted_path,
    is_converted,
    is_on_hub,
    read_json,
    weight_files,
)
from speculative.common.errors import InputError
from speculative.models.registry import FAMILIES, architecture_of, model_type


def runs_in_mlx_lm(config: Mapping) -> bool:
    """Whether a config.json is of a model for mlx-lm or, where that is not installed, of a decoder-only class."""
    if model_type(config) in FAMILIES:
        return False
    if not importlib.util.find_spec("mlx_lm"):
        return architecture_of(config).endswith(("ForCausalLM", "LMHeadModel"))
    utils = mlx_lm()
    kind = str(config.get("model_type"))
    file = utils.MODEL_REMAPPING.get(kind, kind)
    return (Path(utils.__file__).parent / "models" / f"{file}.py").exists()


def find_mlx_lm_folder(name: str) -> Path | None:
    """The folder of a decoder-only model: a path, a name under mlx_models/, or one in the hub's cache."""
    folders = [Path(name), converted_path(name)]
    if is_on_hub(name):
        from speculative.checkpoints.hub import cached

        folders += filter(None, [cached(name)])
    unmarked = (path for path in folders if path == Path(name) or not is_converted(path))
    return next(filter(is_mlx_lm_folder, unmarked), None)


def is_mlx_lm_folder(path: Path) -> bool:
    """Whether a folder has safetensors of an architecture that convert.py does not convert."""
    if (path / WEIGHTS).exists() or not (path / "config.json").exists():
        return False
    if model_type(read_json(path / "config.json")) in FAMILIES:
        return False
    files = weight_files({file.name for file in path.iterdir()}, path.joinpath)
    return any(file.startswith("model") for file in files)


def mlx_lm() -> Any:
    """mlx_lm.utils. InputError where it is not installed."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # about missing PyTorch
    try:
        import mlx_lm.utils
    except ImportError as error:
        hint = "pip install -r requirements-apps.txt"
        raise InputError(f"a decoder-only model needs mlx-lm ({error}): {hint}") from None
    return mlx_lm.utils
