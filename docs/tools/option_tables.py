"""The manual's tables of flags, from their declarations: `python -m docs.tools.option_tables` writes them anew.

A table stands on a page of docs/ between two lines, the first of which says what it has:

<!-- options: sampling -->       the options of decoding that are declared in this group (speculative/step/options.py)
<!-- options of serve.py -->     the flags of this command, but for those options
<!-- end -->
"""

import argparse
import re
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from unittest import mock

from apps.cli.cli import Parser
from apps.cli.flags import add_options
from speculative.step.options import DECLARED

PAGES = Path(__file__).resolve().parents[1].glob("*.md")
_PLACE = re.compile(r"(<!-- options(?:: (\w+)| of (\w+)\.py) -->\n).*?(<!-- end -->\n)", re.DOTALL)
_DEFAULT = re.compile(r" \(default: ([^()]*)\)$")  # at the end of a help text
_SWITCHES = {"True": "on", "False": "off"}  # defaults that Python adds to a help text


def parser_of(command: str) -> argparse.ArgumentParser:
    """The parser of a command, which is the one that would print its --help."""
    found: list[argparse.ArgumentParser] = []
    catching = mock.patch.object(Parser, "print_help", lambda self: found.append(self))
    with catching, suppress(SystemExit):
        import_module(command).parse_args(["--help"])
    return found[0]


def decoding_options() -> list[argparse.Action]:
    parser = Parser(add_help=False)
    add_options(parser)
    return parser._actions


def row(action: argparse.Action) -> str:
    """A flag's row: its names and values, what it does, its default."""
    names = ", ".join(f"`{name}`" for name in action.option_strings)
    meaning, default, *_ = [*_DEFAULT.split((action.help or "") % vars(action)), ""]
    flag = f"{names} {values(action)}".removeprefix(" ")
    cells = [flag, meaning, _SWITCHES.get(default, default)]
    escaped = (re.sub(r"([|<])", r"\\\1", cell) for cell in cells)
    return f"| {' | '.join(escaped)} |"


def values(action: argparse.Action) -> str:
    """What stands after a flag's name."""
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.choices and not action.metavar and action.nargs != "?":
        return f"{{{','.join(map(str, action.choices))}}}"
    return action.metavar or ""


def table(actions: Iterable[argparse.Action]) -> str:
    return "\n".join(["| flag | | default |", "| --- | --- | --- |", *map(row, actions)]) + "\n"


def table_of_group(group: str) -> str:
    return table(a for a in decoding_options() if DECLARED[a.dest].group == group)


def table_of_command(command: str) -> str:
    elsewhere = {*map(row, decoding_options())}
    actions = parser_of(command)._actions
    return table(a for a in actions if a.dest != "help" and row(a) not in elsewhere)


def with_tables(text: str) -> str:
    """A page with its tables written anew."""

    def written(place: re.Match) -> str:
        start, group, command, end = place.groups()
        return start + (table_of_group(group) if group else table_of_command(command)) + end

    return _PLACE.sub(written, text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")
