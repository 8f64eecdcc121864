"""The moving picture of the README: one text decoded plainly and speculatively, each token when it came.

    python -m benchmarks.picture docs/speculation.svg

decodes with the embedded pair in the sizes of t5-large and t5-small, once to warm up and once to record, and
writes an animated SVG without scripts.
"""

import textwrap
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from benchmarks.measure import decoder, widened_pair
from benchmarks.report import describe
from decoder import SpeculativeDecoder
from terminal import cli

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
COLUMNS, CHARACTER, LINE = 72, 9.0, 24  # of the text, in characters and pixels
MARGIN = 24
GREY = 'fill="#9198a1"'
COLOURS = {  # and meanings
    "copied": ("#e58fff", "copied"),
    "drafted": ("#7ee787", "drafted"),
    "corrected": ("#ff7b72", "corrected by the target"),
    "plain": ("#e6edf3", "the target's own"),
}
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" \
aria-label="One text, decoded plainly and speculatively" \
font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="15">
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


def appearing(seconds: float, total: float) -> str:
    """An animation that shows an element from `seconds` on, over and over."""
    return (
        f'<animate attributeName="opacity" values="0;1;1" keyTimes="0;{seconds / total:.4f};1" '
        f'calcMode="discrete" dur="{total:.2f}s" repeatCount="indefinite"/>'
    )


def words(tokens: Sequence[Token], top: int, total: float) -> tuple[list[str], int]:
    """The tokens in their places, in lines whose words are not broken; and the last line's height."""
    whole = "".join(token.text for token in tokens)
    laid = "\n".join(textwrap.wrap(whole, COLUMNS, break_on_hyphens=False))
    found, end = [], 0
    for token in tokens:
        text = token.text.lstrip(" ")
        end += len(token.text)
        before = laid[: end - len(text)]
        x = MARGIN + (len(before) - before.rfind("\n") - 1) * CHARACTER
        y = top + before.count("\n") * LINE
        width = f'textLength="{len(text) * CHARACTER:.1f}" lengthAdjust="spacingAndGlyphs"'
        under = ' text-decoration="underline"' if token.origin == "corrected" else ""
        style = f'fill="{COLOURS[token.origin][0]}"{under} {width}'
        shown = escape(text) + appearing(token.seconds, total)
        found.append(f'<text x="{x:.1f}" y="{y}" {style}>{shown}</text>' if text else "")
    return found, top + laid.count("\n") * LINE


def svg(runs: Mapping[str, Sequence[Token]]) -> str:
    """The picture. Its text is there without the animation, too."""
    total = max(tokens[-1].seconds for tokens in runs.values()) + PAUSE
    parts, top = [], MARGIN + 12
    for line in textwrap.wrap(PROMPT, COLUMNS):
        parts.append(f'<text x="{MARGIN}" y="{top}" {GREY}>{escape(line)}</text>')
        top += LINE
    for name, tokens in runs.items():
        top += LINE // 2
        last = tokens[-1]
        took = f"{len(tokens)} tokens, {last.call} target calls, {last.seconds:.1f} s"
        parts.append(f'<text x="{MARGIN}" y="{top}" {GREY} font-weight="bold">{name}</text>')
        parts.append(f'<text x="{MARGIN + 130}" y="{top}" {GREY}>{took}</text>')
        placed, top = words(tokens, top + LINE + 6, total)
        parts += placed
        top += LINE
    top += LINE // 2
    x = float(MARGIN)
    for colour, meaning in COLOURS.values():
        parts.append(f'<text x="{x:.0f}" y="{top}" fill="{colour}">{meaning}</text>')
        x += (len(meaning) + 2) * CHARACTER
    width = int(2 * MARGIN + COLUMNS * CHARACTER)
    return SVG.format(width=width, height=top + MARGIN, inside="\n".join(parts))


def main() -> None:
    parser = cli.Parser(prog="python -m benchmarks.picture")
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
