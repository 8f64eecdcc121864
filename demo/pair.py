"""The embedded demo: pairs of models, and held-out examples of their tasks with the answers (from demo/training/tasks.py)."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from speculative.checkpoints.folder import MODELS, WEIGHTS, is_outdated
from speculative.common.errors import InputError
from speculative.common.reporting import reporter

DEMO = Path(__file__).resolve().parent
SHORT_KINDS = ("number", "sentence", "repair")
KINDS = (*SHORT_KINDS, "paragraph")
FILE = DEMO / "examples.jsonl"


def default_dtype() -> str:
    """16 bits on a GPU, but not float16, in which T5 overflows; float32 on a processor, where MLX is slow in 16 bits."""
    return "bfloat16" if mx.default_device() == mx.gpu else "float32"


def demo_model(role: str) -> Path:
    """The folder of the embedded `role`, "target" or "draft", or either after "speech/", converted on first use to mlx_models/
    in the current folder."""
    output = MODELS / f"demo-{role.replace('/', '-')}"
    if not (output / WEIGHTS).exists() or is_outdated(output):
        from speculative.models.conversion import convert

        reporter.note(f"converting the demo {role} model to {output}")
        convert(str(DEMO / role), output, dtype=default_dtype(), exist_ok=True)
    return output


@dataclasses.dataclass(frozen=True)
class Example:
    kind: str  # one of KINDS
    prompt: str
    answer: str


def examples(per_kind: int, kinds: Sequence[str] = SHORT_KINDS) -> list[Example]:
    """The first `per_kind` examples of each kind. InputError if there are fewer."""
    stored = [Example(**json.loads(line)) for line in FILE.read_text("utf-8").splitlines()]
    by_kind = [[e for e in stored if e.kind == kind] for kind in kinds]
    count = min(map(len, by_kind))
    if per_kind > count:
        raise InputError(f"the demo has only {count} examples of each kind, not {per_kind}")
    return [example for of_kind in by_kind for example in of_kind[:per_kind]]
