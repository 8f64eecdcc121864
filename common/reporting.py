"""Notes, bars and questions of long work. Nothing below a command prints: the commands set what `reporter` does
(terminal/cli.py), and in other programs it is silent. What a caller should know in any case is a warning of Python's.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

Advance = Callable[[int], Any]  # called with how many units are done more


def _no_bar(title: str, total: int, unit: str, delay: float) -> AbstractContextManager[Advance]:
    return nullcontext(lambda units: None)


@dataclass
class Reporter:
    """note:    takes a line about what is being done
    bar:     opens a bar with a title, for so many units (such as "B"), that appears after `delay` seconds
    confirm: asks whether to go on; None: there is nobody to ask
    """

    note: Callable[[str], Any] = lambda line: None
    bar: Callable[[str, int, str, float], AbstractContextManager[Advance]] = _no_bar
    confirm: Callable[[str], bool] | None = None


reporter = Reporter()
