"""The tables of options in docs/using.md, from their declaration: `python -m docs.tools.option_tables` writes them anew."""

import re
from pathlib import Path

from speculative.step.options import DECLARED

PAGE = Path(__file__).resolve().parents[1] / "using.md"
_PLACE = re.compile(r"(<!-- options: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def table(group: str) -> str:
    lines = ["| flag | | default |", "| --- | --- | --- |"]
    for name, declared in DECLARED.items():
        if declared.group == group and declared.flags is not None:
            flag, value = f"--{name.replace('_', '-')}", declared.values.metavar or ""
            flags = [flag, *declared.flags]
            flags += [flag.replace("--", "--no-")] if declared.values.kind is bool else []
            lines.append(
                f"| {', '.join(f'`{f}`' for f in flags)} {value} | {declared.help} | {declared.default} |"
            )
    return "\n".join(lines) + "\n"


def with_tables(text: str) -> str:
    return _PLACE.sub(lambda place: place[1] + table(place[2]) + place[3], text)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
