"""What a figure depends on: the machine, its software, the models."""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from speculative.common import blas
from speculative.models.ram import installed

PACKAGES = ("mlx", "mlx-lm", "numpy", "transformers", "tokenizers")


def describe() -> dict[str, str | int]:
    info = mx.device_info()
    return {
        "processor": info.get("device_name", platform.processor()),
        "cores": os.cpu_count() or 1,
        "memory": f"{installed() / 1e9:.0f} GB",
        "system": platform.platform(),
        "device": f"{mx.default_device()}, {info.get('architecture', '?')}",
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES if find_spec(name.replace("-", "_"))},
        "blas": blas.loaded or Path(os.environ.get("LD_PRELOAD", "")).name or "of MLX",
        "threads": os.environ.get(f"{blas.loaded.upper()}_NUM_THREADS", "default"),
    }


def sizes(target: Any, draft: Any | None, prompts: Sequence[list[int]]) -> dict[str, str]:
    """The prompts' and the models' sizes; prompts: of each its tokens."""
    length = sum(map(len, prompts)) / len(prompts)
    facts = {"prompts": f"{len(prompts)} of {length:.0f} tokens"}
    for role, model in {"target": target, "draft": draft}.items():
        if model:
            weights = dict(tree_flatten(model.parameters())).values()
            count = sum(w.size for w in weights)
            size = sum(w.nbytes for w in weights)
            types = ", ".join(sorted({str(w.dtype).removeprefix("mlx.core.") for w in weights}))
            facts[role] = f"{count / 1e6:.0f}M weights in {size / 1e9:.2f} GB, {types}"
    return facts
