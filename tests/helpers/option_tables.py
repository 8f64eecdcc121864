"""The tables of options in docs/using.md, from their declaration: `python -m helpers.option_tables` writes them anew;
and options under transformers' names."""

import re
from pathlib import Path

from speculative.options import DECLARED
from terminal.flags import default_of

PAGE = Path(__file__).resolve().parents[2] / "docs/using.md"
_THEIRS = dict(
    max_tokens="max_new_tokens", min_tokens="min_new_tokens", num_samples="num_return_sequences"
)
_PLACE = re.compile(r"(<!-- options: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def table(group: str) -> str:
    lines = ["| flag | | default |", "| --- | --- | --- |"]
    for name, declared in DECLARED.items():
        if declared.group == group and declared.flags is not None:
            flag, value = f"--{name.replace('_', '-')}", declared.values.metavar or ""
            flags = [flag, *declared.flags]
            flags += [flag.replace("--", "--no-")] if declared.values.kind is bool else []
            lines.append(
                f"| {', '.join(f'`{f}`' for f in flags)} {value} | {declared.help} | {default_of(name)} |"
            )
    return "\n".join(lines) + "\n"


def in_transformers(options: dict) -> dict:
    """The same as arguments of transformers' `generate`."""
    found = {_THEIRS.get(k, k): v for k, v in options.items() if k != "logit_bias"}
    bias = [[[token], value] for token, value in options.get("logit_bias", {}).items()]
    return found | ({"sequence_bias": bias} if bias else {})


def with_tables(text: str) -> str:
    return _PLACE.sub(lambda place: place[1] + table(place[2]) + place[3], text)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
