"""Refuses a user's modules that have our names: Python would take them for ours. Import this before any other of ours."""

from importlib.util import find_spec
from pathlib import Path

# Those that decoder.py needs
NAMES = "checkpoints common distributed families model speculative text transformer".split()
_HERE = Path(__file__).resolve().parent


def check() -> None:
    """ImportError for the first module that is not ours: another is first in sys.path, or imported already."""
    for name in NAMES:
        spec = find_spec(name)
        file = spec.origin if spec else None
        if not file or Path(file).resolve().parent not in (_HERE, _HERE / name):
            hint = f"rename it, or put {_HERE} first in sys.path (docs/python.md)"
            raise ImportError(f"Python takes {file} for this project's module {name!r}: {hint}")


check()
