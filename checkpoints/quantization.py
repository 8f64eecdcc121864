"""Quantization: of which weights, and in which mode. Modes and their names are MLX's."""

from dataclasses import dataclass
from math import prod
from typing import Any

import mlx.nn as nn

from common.errors import InputError

# mode: (bits, group sizes), defaults first
MODES = {
    "affine": ((4, 2, 3, 5, 6, 8), (64, 32, 128)),
    "mxfp4": ((4,), (32,)),
    "nvfp4": ((4,), (16,)),
    "mxfp8": ((8,), (32,)),
}
BITS, GROUP_SIZES = (sorted({n for mode in MODES.values() for n in mode[i]}) for i in (0, 1))


def is_matrix(name: str, module: nn.Module) -> bool:
    """Whether it has a matrix to multiply by: a linear layer, or an embedding of tokens, called so."""
    is_embedding = isinstance(module, nn.Embedding) and "embed" in name.rpartition(".")[2]
    return is_embedding or isinstance(module, nn.Linear)


@dataclass(frozen=True)
class Quantization:
    """Weights of `bits` bits; each `group_size` of them in a row share a scale and, in the affine mode, an offset."""

    mode: str = "affine"
    bits: int = 0  # 0: the mode's default
    group_size: int = 0

    def __post_init__(self):
        if self.mode not in MODES:
            raise InputError(f"mode is {self.mode!r}, not one of {', '.join(MODES)}")
        for field, allowed in zip(("bits", "group_size"), MODES[self.mode], strict=True):
            value = getattr(self, field)
            if not value:
                object.__setattr__(self, field, allowed[0])
            elif value not in allowed:
                listed = ", ".join(map(str, sorted(allowed)))
                raise InputError(f"{field} is {value!r}, but the mode {self.mode} needs {listed}")

    @classmethod
    def from_config(cls, values: Any) -> "Quantization | None":
        """From what a converted config.json has under "quantization", if it has anything."""
        if values is None:
            return None
        if not isinstance(values, dict) or not values.keys() <= {"mode", "bits", "group_size"}:
            raise InputError(f"config.json: unknown quantization {values!r}")
        return cls(**values)

    def covers(self, name: str, module: nn.Module) -> bool:
        """Whether a module is quantized: a matrix whose rows divide into groups."""
        return is_matrix(name, module) and module.weight.shape[1] % self.group_size == 0

    def covered(self, model: nn.Module) -> set[str]:
        return {f"{name}.weight" for name, part in model.named_modules() if self.covers(name, part)}

    def size(self, shape: tuple[int, ...], itemsize: int) -> int:
        """Bytes of a quantized weight of this shape; itemsize: bytes of a scale or offset."""
        per_group = 2 * itemsize if self.mode == "affine" else 1
        return prod(shape) * self.bits // 8 + prod(shape) // self.group_size * per_group
