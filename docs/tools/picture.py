"""The moving picture of the README: one text decoded plainly and speculatively, each token when it came.

    python -m docs.tools.picture docs/speculation.svg

decodes with the embedded pair in the sizes of t5-large and t5-small, once to warm up and once to record, and
writes an animated SVG without scripts.
"""

import textwrap
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from apps.benchmarks.machine import describe
from apps.benchmarks.measuring import decoder
from apps.benchmarks.widening import widened_pair
from apps.cli import cli
from decoder import SpeculativeDecoder

PROMPT = (
    "repair: Seven old queens sell three small keys behind the chuurch. In summer two bakers taek four "
    "big doors atthe market."
)
WAYS: dict[str, dict] = {
    "plain": dict(num_draft=0),
    "a draft model": dict(num_draft=5),
    "copying": dict(num_draft=5, lookup=True),
}
PAUSE = 2.5  # seconds between the end of the slowest one and the next turn
COLUMNS = 72  # of the text, in characters
WIDTH, LINE, MARGIN = 700, 24, 24  # in pixels
COLOURS = {  # and meanings
    "lookup": ("#e58fff", "copied"),
    "draft_model": ("#7ee787", "drafted"),
    "corrected": ("#ff7b72", "corrected by the target"),
    "target": ("#e6edf3", "the target's own"),
}
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" \
aria-label="One text, decoded plainly and speculatively" \
font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="15" fill="#9198a1">
<rect width="100%" height="100%" rx="10" fill="#0d1117"/>
{inside}
</svg>
"""


class Token(NamedTuple):
    text: str
    origin: str
    seconds: float  # after the start
    call: int  # of the target


def record(models: SpeculativeDecoder, **options) -> list[Token]:
    """The tokens of the prompt's text, each with when it came."""
    tokens: list[Token] = []
    began = time.perf_counter()
    for call, response in enumerate(models.stream_generate(PROMPT, **options), start=1):
        seconds = time.perf_counter() - began
        pairs = zip(response.texts, response.origins, strict=True)
        tokens += [Token(text, origin, seconds, call) for text, origin in pairs]
    return tokens


def lines_of(tokens: Sequence[Token], total: float) -> list[str]:
    """The tokens in lines whose words are not broken. Each appears when it came, over and over."""
    whole = "".join(token.text for token in tokens)
    laid = "\n".join(textwrap.wrap(whole, COLUMNS, break_on_hyphens=False))
    lines, end = [""] * (laid.count("\n") + 1), 0
    for token in tokens:
        text, (colour, _) = token.text.lstrip(" "), COLOURS[token.origin]
        end += len(token.text)
        style = f'fill="{colour}"'
        style += ' text-decoration="underline"' if token.origin == "corrected" else ""
        shown = (
            f'<animate attributeName="fill-opacity" values="0;1" calcMode="discrete" '
            f'keyTimes="0;{token.seconds / total:.4f}" dur="{total:.2f}s" repeatCount="indefinite"/>'
        )
        spaces = " " * (len(token.text) - len(text))
        line = laid.count("\n", 0, end - len(text))
        lines[line] += f"{spaces}<tspan {style}>{escape(text)}{shown}</tspan>"
    return lines


def svg(runs: Mapping[str, Sequence[Token]]) -> str:
    """The picture. Its text is there without the animation, too."""
    total = max(tokens[-1].seconds for tokens in runs.values()) + PAUSE
    blocks = [[escape(line) for line in textwrap.wrap(PROMPT, COLUMNS)]]
    for name, tokens in runs.items():
        last = tokens[-1]
        took = f"{len(tokens)} tokens, {last.call} target calls, {last.seconds:.1f} s"
        blocks.append([f'<tspan font-weight="bold">{name}</tspan>: {took}'])
        blocks[-1] += lines_of(tokens, total)
    meanings = [f'<tspan fill="{colour}">{meaning}</tspan>' for colour, meaning in COLOURS.values()]
    blocks.append([", ".join(meanings)])
    parts, top = [], MARGIN + LINE // 2
    for block in blocks:
        for line in block:
            parts.append(f'<text x="{MARGIN}" y="{top}">{line}</text>')
            top += LINE
        top += LINE // 2
    return SVG.format(width=WIDTH, height=top, inside="\n".join(parts))


def main() -> None:
    parser = cli.Parser(prog="python -m docs.tools.picture")
    parser.add_argument("file", type=cli.path, help="the SVG to write")
    file = parser.parse_args().file
    models, runs = decoder(*widened_pair(("t5-large", "t5-small"))), {}
    for name, options in WAYS.items():
        record(models, **options)
        runs[name] = record(models, **options)
    file.write_text(svg(runs), encoding="utf-8")
    for name, tokens in runs.items():
        rate = len(tokens) / tokens[-1].seconds
        print(f"{name}: {len(tokens)} tokens, {tokens[-1].call} target calls, {rate:.1f} tokens/s")
    print(", ".join(f"{key} {value}" for key, value in describe().items()))


if __name__ == "__main__":
    cli.run(main)
