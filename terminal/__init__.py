"""Shared by the commands: flags, messages, prompt files, colours, statistics."""

import sys
from importlib.util import find_spec

if sys.version_info < (3, 11):  # noqa: UP036 (such as macOS's own)
    sys.exit(f"this is Python {sys.version.split()[0]}; version 3.11 or later is needed")
if not find_spec("mlx"):
    sys.exit("no package mlx; activate the environment that the README sets up")
