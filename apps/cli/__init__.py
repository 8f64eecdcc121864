"""Shared by the commands: flags, messages, prompt files, colours, statistics."""

import sys
from importlib.util import find_spec
from platform import machine

if sys.version_info < (3, 11):  # noqa: UP036 (such as macOS's own)
    sys.exit(f"this is Python {sys.version.split()[0]}; version 3.11 or later is needed")
if (sys.platform, machine()) == ("darwin", "x86_64"):
    sys.exit("an Intel Python: MLX needs Apple silicon and an arm64 Python, not one under Rosetta")
if not find_spec("mlx"):
    sys.exit("no package mlx; activate the environment that the README sets up")


def interrupted() -> None:
    print("interrupted", file=sys.stderr)
    sys.exit(130)


def _uncaught(kind, error, traceback) -> None:
    if issubclass(kind, KeyboardInterrupt):  # while modules are imported
        interrupted()
    sys.__excepthook__(kind, error, traceback)


sys.excepthook = _uncaught
