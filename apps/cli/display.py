"""Showing responses: as text, as JSON or, with --show-draft, with each token coloured by where it comes from; and the end
of a command's output: a line if texts were cut off and, with --verbose, statistics."""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil
from typing import TextIO

from apps.cli import cli
from decoder import Response, SpeculativeDecoder, Stats
from speculative.common.reporting import reporter
from speculative.step.row import FAILED

# Of the 16 that a terminal's theme keeps legible; underlined for who cannot tell green from red
_COLOURS = {  # by origin
    "lookup": ("\033[35m", "magenta", "prompt lookup's, accepted"),
    "draft_model": ("\033[32m", "green", "the draft model's, accepted"),
    "corrected": ("\033[4;91m", "red, underlined", "the target's, in place of a rejected token"),
    "forced": ("\033[34m", "blue", "forced by the form of the output"),
}
BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Display:
    as_json: bool = False
    verbose: bool = False  # statistics at the end
    in_colour: bool = False

    def text(self, response: Response) -> str:
        return painted(response) if self.in_colour else response.text

    def line(self, index: int, response: Response) -> str:
        """The response to a file's prompt `index`, on one line."""
        return to_json(index, response) if self.as_json else cli.one_line(self.text(response))


def to_json(index: int, response: Response) -> str:
    """The response as a JSON object on one line."""
    stats = response.stats
    counts = {**stats.drafting, "accepted_lengths": stats.histogram()}
    times = {"seconds": stats.seconds, "preparing_seconds": stats.preparing_seconds}
    fields = {"index": index, **vars(response), "stats": counts | times}
    fields["from_draft"] = response.from_draft
    fields["mean_logprob"] = response.mean_logprob
    left_out = {name for name in ("score", "seed") if fields[name] is None}
    if response.logprobs is None:
        left_out |= {"logprobs", "top_logprobs", "mean_logprob"}
    shown = {name: value for name, value in fields.items() if name not in left_out}
    return json.dumps(shown, ensure_ascii=False)


def coloured(stream: TextIO) -> bool:
    """Whether the stream shows colours: a terminal, unless TERM or NO_COLOR (no-color.org) rules them out."""
    colourless = os.environ.get("TERM", "") in ("", "dumb") or os.environ.get("NO_COLOR")
    return stream.isatty() and not colourless


def painted(response: Response) -> str:
    """The text with each run of tokens coloured by origin; a character of several tokens takes the last one's colour."""
    texts = [pair for pair in zip(response.origins, response.texts, strict=True) if pair[1]]
    runs = groupby(texts, key=lambda pair: pair[0])
    return "".join(_paint(origin, "".join(t for _, t in run)) for origin, run in runs)


def _paint(origin: str, text: str) -> str:
    word = text.lstrip(" ")
    if not word or origin not in _COLOURS:
        return text
    return f"{' ' * (len(text) - len(word))}{_COLOURS[origin][0]}{word}\033[0m"


def show_legend() -> bool:
    """Whether stdout shows colours; says on stderr what they mean."""
    if not coloured(sys.stdout):
        return False
    parts = [f"{name}: {meaning}" for _, name, meaning in _COLOURS.values()]
    reporter.note(", ".join([*parts, "no colour: the target's own"]))
    return True


@dataclass
class Summary:
    """The statistics of some texts together. Add each text's last response."""

    texts: int = 0
    cut: int = 0  # texts cut off by max_tokens, the checkpoint's limit or the model's
    longest_cut: int = 0  # tokens of the longest of them
    failed: int = 0  # texts that could not keep to their form
    stats: Stats = field(default_factory=Stats)
    peak_memory: float = 0.0  # GB
    pairs: int = 0  # in the translation memory
    seed: int | None = None  # None: greedy
    unit: str = "prompt tokens"  # what prompt_tokens counts
    began: float = field(default_factory=time.perf_counter)

    def add(self, response: Response) -> None:
        self.texts += 1
        self.failed += response.finish_reason == FAILED
        if response.finish_reason == "length":
            self.cut += 1
            self.longest_cut = max(self.longest_cut, response.generation_tokens)
        self.stats += response.stats
        self.peak_memory = max(self.peak_memory, response.peak_memory)
        self.seed = response.seed

    def print(self, decoder: SpeculativeDecoder, verbose: bool) -> None:
        """On stderr: what came of a draft model that learned, how many texts were cut off, how many failed and, if `verbose`,
        statistics."""
        if decoder.learner:
            decoder.learner.report()
        if self.cut:
            cut = f"{self.cut} of {self.texts} outputs cut short"
            reporter.note(f"{cut} after at most {self.longest_cut} tokens; see --max-tokens")
        if self.failed:
            reporter.note(f"{self.failed} of {self.texts} outputs could not keep to their form")
        if verbose:
            self.pairs = len(decoder.memory.pairs) if decoder.memory else 0
            for line in self.lines():
                reporter.note(line)
        if verbose and decoder.draft_vocabulary:
            reporter.note(str(decoder.draft_vocabulary))

    def lines(self) -> list[str]:
        """The statistics, for all the time since the summary was made."""
        if not self.texts:
            return ["0 outputs"]
        seconds = time.perf_counter() - self.began
        stats = self.stats
        texts = "1 output" if self.texts == 1 else f"{self.texts} outputs"
        seed = "" if self.seed is None else f" with seed {self.seed}"
        cached = f" ({stats.cached_tokens} of them read before)" if stats.cached_tokens else ""
        lines = [
            f"{texts}{seed}: {stats.prompt_tokens} {self.unit}{cached}, {stats.tokens} tokens in "
            f"{seconds:.2f} s, {stats.tokens / seconds:.1f} tokens/s, "
            f"{stats.tokens_per_call:.2f} tokens per target call"
        ]
        if stats.draft_tokens:
            steps = stats.histogram()
            lines.append(
                f"draft: {stats.accepted} of {stats.draft_tokens} tokens accepted "
                f"({stats.acceptance:.0%}), steps by tokens accepted: "
                f"0 |{sparkline(steps)}| {len(steps) - 1}"
            )
        if self.pairs:
            lines.append(
                f"translation memory: {self.pairs} pairs, {stats.remembered} of {self.texts} prompts found one like it, "
                f"{stats.from_memory} tokens came from there"
            )
        parts = {"prompt processing": stats.encoding_seconds}
        if stats.preparing_seconds:
            parts["the draft model's"] = stats.preparing_seconds
        parts["decoding"] = stats.seconds
        parts["elsewhere"] = max(0.0, seconds - sum(parts.values()))
        split = ", ".join(f"{name} {part / seconds:.0%}" for name, part in parts.items())
        return [*lines, f"time: {split}; peak memory {self.peak_memory:.2f} GB"]


def sparkline(counts: Sequence[int]) -> str:
    """One bar per count, scaled to the largest; a space for 0."""
    highest = max(counts)
    heights = (ceil(len(BARS) * count / highest) for count in counts)
    return "".join(f" {BARS}"[height] for height in heights)
