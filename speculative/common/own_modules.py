"""Refuses a user's modules that have our names: Python would take them for ours."""

from importlib.util import find_spec
from pathlib import Path

NAMES = "speculative apps model decoder".split()
_ROOT = Path(__file__).resolve().parents[2]

for _name in NAMES:  # another may be first in sys.path, or imported already
    _spec = find_spec(_name)
    _file = _spec.origin if _spec else None
    if not _file or Path(_file).resolve().parent not in (_ROOT, _ROOT / _name):
        _hint = f"rename it, or put {_ROOT} first in sys.path (docs/python.md)"
        raise ImportError(f"Python takes {_file} for this project's module {_name!r}: {_hint}")
