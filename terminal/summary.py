"""--verbose: statistics of decoding, in a few lines."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from decoder import Response, Stats
from speculative.row import FAILED

BARS = "▁▂▃▄▅▆▇█"


@dataclass
class Summary:
    """The statistics of some texts together. Add each text's last response."""

    texts: int = 0
    cut: int = 0  # texts cut off by max_tokens or the model's maximum length
    failed: int = 0  # texts that could not keep to their form
    longest_cut: int = 0  # tokens of the longest of them
    stats: Stats = field(default_factory=Stats)
    peak_memory: float = 0.0  # GB
    pairs: int = 0  # in the translation memory
    seed: int | None = None  # None: greedy
    unit: str = "prompt tokens"  # what prompt_tokens counts

    def add(self, response: Response) -> None:
        self.texts += 1
        self.failed += response.finish_reason == FAILED
        if response.finish_reason == "length":
            self.cut += 1
            self.longest_cut = max(self.longest_cut, response.generation_tokens)
        self.stats += response.stats
        self.peak_memory = max(self.peak_memory, response.peak_memory)
        self.seed = response.seed

    def lines(self, seconds: float) -> list[str]:
        """The lines to print, for `seconds` of work in total."""
        if not self.texts:
            return ["0 outputs"]
        stats = self.stats
        texts = "1 output" if self.texts == 1 else f"{self.texts} outputs"
        seed = "" if self.seed is None else f" with seed {self.seed}"
        cut = f" ({self.cut} cut at max_tokens)" if self.cut else ""
        cached = f" ({stats.cached_tokens} of them read before)" if stats.cached_tokens else ""
        lines = [
            f"{texts}{seed}{cut}: {stats.prompt_tokens} {self.unit}{cached}, {stats.tokens} tokens in "
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
    most = max(counts)
    return "".join(BARS[-(-count * len(BARS) // most) - 1] if count else " " for count in counts)
