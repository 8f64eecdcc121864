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
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.machine import describe
from benchmarks.measure import widened_pair
from decoder import SpeculativeDecoder
from terminal import cli

SIZES = ("t5-large", "t5-small")
PROMPT = (
    "repair: Seven old queens sell three small keys behind the chuurch. In summer two bakers taek four "
    "big doors atthe market."
)
WAYS: dict[str, dict] = {
    "plain": dict(num_draft=0),
    "a draft model": dict(num_draft=5),
    "copying": dict(num_draft=5, lookup=True),
}
PAUSE = 2.5  # seconds between the end of the slower one and the next turn
COLUMNS, CHARACTER, LINE = 72, 9.0, 24  # of the text, in characters and pixels
MARGIN = 24
COLOURS = {
    "copied": "#e58fff",
    "drafted": "#7ee787",
    "corrected": "#ff7b72",
    "plain": "#e6edf3",
}
MEANINGS = {
    "copied": "copied",
    "drafted": "drafted",
    "corrected": "corrected by the target",
    "plain": "the target's own",
}


@dataclass(frozen=True)
class Token:
    text: str
    origin: str
    seconds: float  # after the start
    call: int  # of the target


def record(decoder: SpeculativeDecoder, prompt: str, **options) -> list[Token]:
    """The tokens of the prompt's text, each with when it came."""
    tokens: list[Token] = []
    began = time.perf_counter()
    for call, response in enumerate(decoder.stream_generate(prompt, **options), start=1):
        seconds = time.perf_counter() - began
        pairs = zip(response.texts, response.origins, strict=True)
        tokens += [Token(text, origin, seconds, call) for text, origin in pairs]
    return tokens


def places(tokens: Sequence[Token]) -> list[tuple[int, int, str]]:
    """Line and column of each token's text, and the text as it stands there. Words are not broken."""
    whole = "".join(token.text for token in tokens)
    lines = textwrap.wrap(whole, COLUMNS, break_on_hyphens=False)
    starts, at = [], 0
    for line in lines:
        at = whole.index(line, at)
        starts.append(at)
        at += len(line)
    found, at = [], 0
    for token in tokens:
        text = token.text.lstrip(" ")
        begin = at + len(token.text) - len(text)
        line = max(i for i, start in enumerate(starts) if start <= begin or i == 0)
        found.append((line, begin - starts[line], text))
        at += len(token.text)
    return found


def appearing(seconds: float, until: float, total: float) -> str:
    """An animation that shows an element from `seconds` to `until`, over and over."""
    times = [0.0, seconds / total, min(until / total, 1.0), 1.0]
    values = "0;1;0;0" if until < total else "0;1;1;1"
    keys = ";".join(f"{t:.4f}" for t in times)
    return (
        f'<animate attributeName="opacity" values="{values}" keyTimes="{keys}" calcMode="discrete" '
        f'dur="{total:.2f}s" repeatCount="indefinite"/>'
    )


def panel(name: str, tokens: Sequence[Token], top: int, total: float) -> tuple[list[str], int]:
    """The elements of one way to decode, from the line `top` on, and how high they are."""
    last, rest = tokens[-1], f'y="{top}" fill="#9198a1"'
    parts = [f'<text x="{MARGIN}" {rest} font-weight="bold">{name}</text>']
    by_call = {token.call: token for token in tokens}
    count = 0
    for call, token in sorted(by_call.items()):
        count += sum(t.call == call for t in tokens)
        words = f"{count} token{'s' * (count > 1)}, {call} target call{'s' * (call > 1)}"
        done = token is last
        words += f", {last.seconds:.1f} s" if done else ""
        until = total if done else by_call[call + 1].seconds
        shown = "" if done else ' opacity="0"'
        parts.append(
            f'<text x="{MARGIN + 130}" {rest}{shown}>{words}{appearing(token.seconds, until, total)}'
            "</text>"
        )
    height = 0
    for token, (line, column, text) in zip(tokens, places(tokens), strict=True):
        if not text:
            continue
        height = max(height, line + 1)
        x, y = MARGIN + column * CHARACTER, top + (line + 1) * LINE + 6
        width = f'textLength="{len(text) * CHARACTER:.1f}" lengthAdjust="spacingAndGlyphs"'
        under = ' text-decoration="underline"' if token.origin == "corrected" else ""
        parts.append(
            f'<text x="{x:.1f}" y="{y}" fill="{COLOURS[token.origin]}"{under} {width}>{escape(text)}'
            f"{appearing(token.seconds, total, total)}</text>"
        )
    return parts, (height + 1) * LINE + 6


def svg(prompt: str, runs: dict[str, list[Token]]) -> str:
    """The picture. Its text is there without the animation, too."""
    total = max(tokens[-1].seconds for tokens in runs.values()) + PAUSE
    width = int(2 * MARGIN + COLUMNS * CHARACTER)
    parts, top = [], MARGIN + 12
    for line in textwrap.wrap(prompt, COLUMNS):
        parts.append(f'<text x="{MARGIN}" y="{top}" fill="#9198a1">{escape(line)}</text>')
        top += LINE
    for name, tokens in runs.items():
        top += LINE // 2
        elements, height = panel(name, tokens, top, total)
        parts += elements
        top += height
    top += LINE // 2
    seen = {token.origin for tokens in runs.values() for token in tokens}
    x = float(MARGIN)
    for origin in (origin for origin in COLOURS if origin in seen):
        meaning = MEANINGS[origin]
        parts.append(f'<text x="{x:.0f}" y="{top}" fill="{COLOURS[origin]}">{meaning}</text>')
        x += (len(meaning) + 2) * CHARACTER
    said = "; ".join(
        f"{name}: {''.join(t.text for t in tokens)} ({tokens[-1].call} target calls, "
        f"{tokens[-1].seconds:.1f} s)"
        for name, tokens in runs.items()
    )
    inside = "\n".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + MARGIN}" role="img" \
aria-labelledby="title said" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="15">
<title id="title">One text, decoded plainly and speculatively</title>
<desc id="said">{escape(prompt)} {escape(said)}</desc>
<rect width="100%" height="100%" rx="10" fill="#0d1117"/>
{inside}
</svg>
"""


def main() -> None:
    if len(sys.argv) != 2:
        print("usage: python -m benchmarks.picture FILE.svg", file=sys.stderr)
        sys.exit(cli.USAGE_ERROR)
    target, draft = widened_pair(SIZES)
    decoder = SpeculativeDecoder(target, target.tokenizer, draft)
    runs = {}
    for name, options in WAYS.items():
        for _ in range(2):
            runs[name] = record(decoder, PROMPT, **options)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(svg(PROMPT, runs))
    for name, tokens in runs.items():
        rate = len(tokens) / tokens[-1].seconds
        print(f"{name}: {len(tokens)} tokens, {tokens[-1].call} target calls, {rate:.1f} tokens/s")
    print(", ".join(f"{key} {value}" for key, value in describe().items()))


if __name__ == "__main__":
    cli.run(main)
