"""The architectures, behind the contract of speculative/models/contract.py.

A new architecture is a module here with FAMILY, a `Family`, and an entry in FAMILIES (registry.py). Layers called query, key,
value, out, gate, up and down are split among ranks. Linear layers and embeddings with "embed" in their names are quantized.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.nn as nn

from speculative.checkpoints.config import BaseConfig
from speculative.checkpoints.tensors import Tensor
from speculative.text.tokenizer_files import write_tokenizer


@dataclass(frozen=True)
class Family:
    config: type[BaseConfig]
    model: Callable[..., nn.Module]  # model(config): keeps the contract above
    rename: Callable[[dict[str, Tensor]], dict[str, Tensor]]  # a checkpoint's names to ours
    # (checkpoint's folder, converted folder): copies the tokenizer's files and writes a tokenizer.json
    write_tokenizer: Callable[[Path, Path], None] = write_tokenizer
    # Of converted weights unless the user chooses; float16 for models that were trained or published in it. The others
    # need bfloat16's range: T5 and T5Gemma overflow float16.
    dtype: str = "bfloat16"
    shown_special: str = ""  # a pattern of the special tokens that a text shows: T5's sentinels
