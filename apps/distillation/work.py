"""The work during which a draft model learns: its pace, and what the draft model brought."""

import time

from speculative.common.reporting import reporter
from speculative.step.row import Stats


class Work:
    """Work is counted in characters of prompts or in windows of sound."""

    def __init__(self) -> None:
        self.done = 0
        self.rows = 1  # that are decoded together
        self._before = Stats()  # of texts without a trained draft model
        self._after = Stats()  # with one
        self._began = time.perf_counter()
        self._paused = self._began  # the last time that the work stood still
        # Since when the pace is measured, and what was done by then
        self._since = self._began
        self._done_before = 0
        self._training_seconds = 0.0

    @property
    def pace(self) -> float:
        """Seconds for one piece of work."""
        return (self._paused - self._since) / max(1, self.done - self._done_before)

    def add(self, stats: Stats, is_drafted: bool) -> None:
        """Count a finished text. is_drafted: with a trained draft model."""
        if is_drafted:
            self._after += stats
        else:
            self._before += stats

    def pause(self, rows: int) -> None:
        self._paused = time.perf_counter()
        self.rows = rows

    def go_on(self) -> None:
        """The work goes on after training."""
        self._since = time.perf_counter()
        self._done_before = self.done
        self._training_seconds += self._since - self._paused

    def report(self) -> None:
        """Say what came of it, if anything was decoded with the draft model."""
        after, before = self._after, self._before
        if not after.tokens:
            return
        line = f"draft model: {after.tokens_per_call:.2f} tokens a call, {after.tokens_per_second:.1f} tokens/s"
        if before.tokens:
            seconds = time.perf_counter() - self._began
            pace = before.tokens_per_second
            plain = seconds - self._training_seconds - after.seconds + after.tokens / pace
            line += (
                f"; before it, {before.tokens_per_call:.2f} and {pace:.1f}; trained for {self._training_seconds:.0f} s; "
                f"{seconds:.0f} s in all, without it {plain:.0f} s (computed)"
            )
        reporter.note(line)
