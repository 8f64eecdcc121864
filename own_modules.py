"""Refuses a user's modules that have our names: Python would take them for ours. Import this before any other of ours."""

from importlib.util import find_spec
from pathlib import Path

# Those that decoder.py needs
NAMES = "checkpoints common distributed families model speculative text transformer".split()
_HERE = Path(__file__).resolve().parent

for _name in NAMES:  # another may be first in sys.path, or imported already
    _spec = find_spec(_name)
    _file = _spec.origin if _spec else None
    if not _file or Path(_file).resolve().parent not in (_HERE, _HERE / _name):
        _hint = f"rename it, or put {_HERE} first in sys.path (docs/python.md)"
        raise ImportError(f"Python takes {_file} for this project's module {_name!r}: {_hint}")
