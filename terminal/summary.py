"""--verbose: what decoding took, in a few lines."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from decoder import Response

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = ".:-=+*#@"


@dataclass
class Summary:
    """What decoding some texts took, all together. Add each text's last response."""

    texts: int = 0
    cut: int = 0  # texts that max_tokens ended
    prompt_tokens: int = 0
    tokens: int = 0
    target_calls: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_lengths: Counter[int] = field(default_factory=Counter)
    encoding: float = 0.0  # seconds
    drafting: float = 0.0
    verifying: float = 0.0
    peak_memory: float = 0.0  # GB

    def add(self, response: Response) -> None:
        stats = response.stats
        self.texts += 1
        self.cut += response.finish_reason == "length"
        self.prompt_tokens += response.prompt_tokens
        self.tokens += response.generation_tokens
        self.target_calls += stats.target_calls
        self.drafted += stats.drafted
        self.accepted += stats.accepted
        self.accepted_lengths += stats.accepted_lengths
        self.encoding += response.prompt_tokens / response.prompt_tps
        self.drafting += stats.drafting_share
        self.verifying += stats.seconds_share - stats.drafting_share
        self.peak_memory = max(self.peak_memory, response.peak_memory)

    def lines(self, seconds: float, bars: str = BARS) -> list[str]:
        """The summary, for `seconds` of work in all. bars: the characters of the histogram."""
        if not self.texts:
            return ["0 texts"]
        texts = "1 text" if self.texts == 1 else f"{self.texts} texts"
        cut = f" ({self.cut} cut at max_tokens)" if self.cut else ""
        lines = [
            f"{texts}{cut}: {self.prompt_tokens} prompt tokens, {self.tokens} tokens in "
            f"{seconds:.2f} s, {self.tokens / seconds:.1f} tokens/s, "
            f"{self.tokens / self.target_calls:.2f} tokens per target call"
        ]
        if self.drafted:
            most = max(self.accepted_lengths)
            rounds = [self.accepted_lengths[n] for n in range(most + 1)]
            lines.append(
                f"draft: {self.accepted} of {self.drafted} tokens accepted "
                f"({self.accepted / self.drafted:.0%}), rounds by tokens accepted: "
                f"0 |{sparkline(rounds, bars)}| {most}"
            )
        return [*lines, f"{self._split(seconds)}; peak memory {self.peak_memory:.2f} GB"]

    def _split(self, seconds: float) -> str:
        parts = {"encoding": self.encoding, "drafting": self.drafting, "verifying": self.verifying}
        parts["elsewhere"] = max(0.0, seconds - sum(parts.values()))
        split = ", ".join(f"{name} {part / seconds:.0%}" for name, part in parts.items())
        return f"time: {split}"


def sparkline(counts: Sequence[int], bars: str = BARS) -> str:
    """A bar per count, the highest for the most; a space for none."""
    most = max(counts)
    return "".join(bars[-(-count * len(bars) // most) - 1] if count else " " for count in counts)


def bars_for(encoding: str | None) -> str:
    """The bars that text of this encoding can hold."""
    try:
        BARS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII_BARS
    return BARS
