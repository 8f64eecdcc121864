"""Notes, bars and questions of long work. Nothing below a command prints: the commands set what `reporter` does
(apps/cli/cli.py), and in other programs it is silent. What a caller should know in any case is a warning of Python's."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

Advance = Callable[[int], Any]  # called with how many units are done more


@dataclass
class Reporter:
    """note:    takes a line about what is being done
    bar:     opens a bar with a title, for so many units (such as "B"; None: not known), that appears after `delay` seconds
    confirm: asks whether to go on; None: there is nobody to ask
    """

    note: Callable[[str], Any] = lambda line: None
    bar: Callable[[str, int | None, str, float], AbstractContextManager[Advance]] = (
        lambda title, total, unit, delay: nullcontext(lambda units: None)
    )
    confirm: Callable[[str], bool] | None = None


reporter = Reporter()


def gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"
