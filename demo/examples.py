"""Held-out examples of the embedded pairs' tasks, with correct answers (from demo/training/tasks.py)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError

SHORT_KINDS = ("number", "sentence", "repair")
KINDS = (*SHORT_KINDS, "paragraph")
FILE = Path(__file__).parent / "examples.jsonl"


@dataclass(frozen=True)
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
