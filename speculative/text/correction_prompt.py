"""The prompts with which known models correct a text, as their cards say, by patterns of their names (docs/models.md)."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

PROMPTS = {
    "demo-target": "repair: {text}",
    "coedit-*": "Fix the grammar: {text}",
    "t5-base-grammar-correction*": "grammar: {text}",
    "t5-large-spell*": "grammar: {text}",
    "gec-t5_small*": "gec: {text}",
    "grammar_error_correcter_v1*": "gec: {text}",
    "spelling-correction-*": "{text}",
    "sage-mt5-large*": "{text}",
}


def correction_prompt(names: Iterable[str]) -> str | None:
    """The prompt template of a model of these names; None if it is not known to correct texts."""
    last_parts = [name.rpartition("/")[2].lower() for name in names]
    return next((PROMPTS[p] for p in PROMPTS if any(fnmatchcase(n, p) for n in last_parts)), None)
