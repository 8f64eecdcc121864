"""The result of a row: its text and statistics."""

import time
from dataclasses import dataclass

import mlx.core as mx

from speculative.row import DRAFTED, Row, Stats


@dataclass
class Response:
    """The text generated for a prompt: all of it or, from `stream_generate`, what a step added."""

    text: str
    tokens: list[int]
    texts: list[str]  # per token: what it adds to the text; a character comes with its last token
    origins: list[str]  # per token: see row.ORIGINS
    finish_reason: str | None  # "stop": end of sequence; "length": max_tokens; None: goes on
    prompt_tokens: int
    generation_tokens: int  # so far
    prompt_tps: float  # prompt tokens per second, of all prompts in one prefill
    generation_tps: float
    peak_memory: float  # GB
    stats: Stats  # so far
    logprobs: list[float] | None = None  # per token, under the target after penalties and bans
    top_logprobs: list[list[tuple[int, float]]] | None = None  # per token: ids, the likeliest first
    sample: int = 0  # which of the prompt's num_samples texts
    score: float | None = None  # from beam search, which picks the highest
    prompt: str = ""
    seed: int | None = None  # None: none was needed

    @property
    def mean_logprob(self) -> float | None:
        return sum(self.logprobs) / len(self.logprobs) if self.logprobs else None

    @property
    def from_draft(self) -> list[bool]:
        """Per token: the drafter proposed it."""
        return [origin in DRAFTED for origin in self.origins]


def respond(row: Row, first: int = 0) -> Response:
    """The response for the row's generated tokens from index `first` on."""
    stats = row.stats.copy()
    scored = row.options.logprobs is not None
    return Response(
        text="".join(row.texts[first:]),
        tokens=row.generated[first:],
        texts=row.texts[first:],
        origins=row.origins[first:],
        finish_reason=row.finish_reason,
        prompt_tokens=stats.prompt_tokens,
        generation_tokens=stats.tokens,
        prompt_tps=stats.prompt_tokens / stats.encoding_seconds,
        generation_tps=stats.tokens / (time.perf_counter() - row.started),
        peak_memory=mx.get_peak_memory() / 1e9,
        stats=stats,
        logprobs=row.logprobs[first:] if scored else None,
        top_logprobs=row.best[first:] if scored else None,
        score=row.text_score,
        prompt=row.prompt_text,
        seed=row.options.seed,
    )
