"""The moving picture of the README: one text decoded plainly and speculatively, each token when it came.

    python -m benchmarks.picture docs/speculation.svg

decodes with the embedded pair in the sizes of t5-large and t5-small, once to warm up and once to record, and
writes an animated SVG without scripts. Nothing in it is drawn by hand: what is copied, drafted, corrected and
when it appears are the run's.
"""

import blas  # noqa: F401 (before mlx)

# isort: split
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from benchmarks.machine import describe
from benchmarks.measure import decoder, widened_pair
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
aria-labelledby="title said" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="15">
<title id="title">One text, decoded plainly and speculatively</title>
<desc id="said">{said}</desc>
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


def appearing(seconds: float, until: float, total: float) -> str:
    """An animation that shows an element from `seconds` to `until`, over and over."""
    times = [0.0, seconds / total, min(until / total, 1.0), 1.0]
    values = "0;1;0;0" if until < total else "0;1;1;1"
    keys = ";".join(f"{t:.4f}" for t in times)
    return (
        f'<animate attributeName="opacity" values="{values}" keyTimes="{keys}" calcMode="discrete" '
        f'dur="{total:.2f}s" repeatCount="indefinite"/>'
    )


def counts(tokens: Sequence[Token], top: int, total: float) -> list[str]:
    """How many tokens after each call, each line until the next one. The last is there without the
    animation, too."""
    calls = [list(of_call) for _, of_call in groupby(tokens, key=lambda token: token.call)]
    found, count = [], 0
    for i, of_call in enumerate(calls):
        count += len(of_call)
        call, seconds, last = of_call[0].call, of_call[0].seconds, i + 1 == len(calls)
        words = f"{count} token{'s' * (count > 1)}, {call} target call{'s' * (call > 1)}"
        words += f", {seconds:.1f} s" if last else ""
        shown = appearing(seconds, total if last else calls[i + 1][0].seconds, total)
        hidden = "" if last else ' opacity="0"'
        found.append(f'<text x="{MARGIN + 130}" y="{top}" {GREY}{hidden}>{words}{shown}</text>')
    return found


def words(tokens: Sequence[Token], top: int, total: float) -> tuple[list[str], int]:
    """The tokens in their places, in lines whose words are not broken; and how many lines."""
    whole = "".join(token.text for token in tokens)
    laid = "\n".join(textwrap.wrap(whole, COLUMNS, break_on_hyphens=False))
    found, at = [], 0
    for token in tokens:
        text = token.text.lstrip(" ")
        begin = at + len(token.text) - len(text)
        at += len(token.text)
        x = MARGIN + (begin - laid.rfind("\n", 0, begin) - 1) * CHARACTER
        y = top + (laid.count("\n", 0, begin) + 1) * LINE + 6
        colour, _ = COLOURS[token.origin]
        width = f'textLength="{len(text) * CHARACTER:.1f}" lengthAdjust="spacingAndGlyphs"'
        under = ' text-decoration="underline"' if token.origin == "corrected" else ""
        shown = escape(text) + appearing(token.seconds, total, total)
        if text:
            found.append(f'<text x="{x:.1f}" y="{y}" fill="{colour}"{under} {width}>{shown}</text>')
    return found, laid.count("\n") + 1


def svg(runs: Mapping[str, Sequence[Token]]) -> str:
    """The picture. Its text is there without the animation, too."""
    total = max(tokens[-1].seconds for tokens in runs.values()) + PAUSE
    parts, top, said = [], MARGIN + 12, [PROMPT]
    for line in textwrap.wrap(PROMPT, COLUMNS):
        parts.append(f'<text x="{MARGIN}" y="{top}" {GREY}>{escape(line)}</text>')
        top += LINE
    for name, tokens in runs.items():
        top += LINE // 2
        placed, lines = words(tokens, top, total)
        parts.append(f'<text x="{MARGIN}" y="{top}" {GREY} font-weight="bold">{name}</text>')
        parts += counts(tokens, top, total) + placed
        top += (lines + 1) * LINE + 6
        text, last = "".join(token.text for token in tokens), tokens[-1]
        said.append(f"{name}: {text} ({last.call} target calls, {last.seconds:.1f} s);")
    top += LINE // 2
    x, seen = float(MARGIN), {token.origin for tokens in runs.values() for token in tokens}
    for origin in (origin for origin in COLOURS if origin in seen):
        colour, meaning = COLOURS[origin]
        parts.append(f'<text x="{x:.0f}" y="{top}" fill="{colour}">{meaning}</text>')
        x += (len(meaning) + 2) * CHARACTER
    width, spoken = int(2 * MARGIN + COLUMNS * CHARACTER), escape(" ".join(said).rstrip(";"))
    inside = "\n".join(parts)
    return SVG.format(width=width, height=top + MARGIN, said=spoken, inside=inside)


def main() -> None:
    if len(sys.argv) != 2:
        print("usage: python -m benchmarks.picture FILE.svg", file=sys.stderr)
        sys.exit(cli.USAGE_ERROR)
    models, runs = decoder(*widened_pair(("t5-large", "t5-small"))), {}
    for name, options in WAYS.items():
        record(models, **options)
        runs[name] = record(models, **options)
    Path(sys.argv[1]).write_text(svg(runs), encoding="utf-8")
    for name, tokens in runs.items():
        rate = len(tokens) / tokens[-1].seconds
        print(f"{name}: {len(tokens)} tokens, {tokens[-1].call} target calls, {rate:.1f} tokens/s")
    print(", ".join(f"{key} {value}" for key, value in describe().items()))


if __name__ == "__main__":
    cli.run(main)
