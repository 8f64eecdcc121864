"""Beam search, as in transformers' `generate`: finds the texts with the highest scores. A score is the sum of the
tokens' log-probabilities, divided by the length to the power of the length penalty."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.models.contract import Model
from speculative.step.cached_model import CachedModel
from speculative.step.draft import Step, no_draft, no_plan
from speculative.step.processors import Controls
from speculative.step.row import NONE, Row

NOTHING = np.float32(-1e9)  # the score of a text that does not exist (yet)


@dataclass(eq=False)
class BeamRow(Row):
    """A row of beam search, which gives it the best text, and its `others` the next best."""

    DECODED = (*Row.DECODED, "text_score")

    others: Sequence[Any] = ()  # type: ignore[misc]
    text_score: float | None = None  # type: ignore[misc]


class BeamBatch:
    """Rows searched together, each with N beams: row b has the target's rows b * N .. b * N + N - 1."""

    def __init__(self, model: Model, num_beams: int):
        self.target = CachedModel(model)
        self.rows: list[Any] = []  # BeamRow
        self._num_beams = num_beams
        self._searches: list[Search] = []  # the rows'

    def step(self) -> Step:
        """Extend every beam of an unfinished row by a token, or replace it by a copy of a better beam."""
        beams = self._beams
        nothing = no_draft(len(beams))
        logits = self.target([beam.context for beam in beams], nothing.tokens, nothing.lengths)
        best = self.best(logits)
        mx.eval(best)  # the only wait for the target
        ids, logprobs = map(self.target.broadcast, best)
        self.target.keep(nothing.lengths)
        N = self._num_beams
        order = np.arange(len(beams))
        for b, search in enumerate(self._searches):
            if not search.row.finish_reason:
                of_search = slice(b * N, (b + 1) * N)
                order[of_search] = b * N + search.step(ids[of_search], logprobs[of_search])
        if (order != np.arange(len(beams))).any():
            self.target.cache.reorder(order.tolist())
        return Step(no_plan(len(self.rows)), no_draft(len(self.rows)))

    def observe(self, step: Step, finished: Sequence[Row]) -> None:
        """Share a search's times among the rows that have its texts."""
        for row in finished:
            row.stats.seconds /= 1 + len(row.others)
            row.stats.encoding_seconds /= 1 + len(row.others)
            for other in row.others:
                other.started = row.started
                other.stats.target_calls = row.stats.target_calls
                other.stats.seconds = row.stats.seconds
                other.stats.encoding_seconds = row.stats.encoding_seconds

    def best(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """The ids and log-probabilities [B * N, K] of the best tokens, from logits [B * N, 1, V]: enough that a
        row's best may all come from one beam. As in transformers, processors see log-probabilities."""
        logits = logits.astype(mx.float32)
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        logprobs = Controls(self._beams)(logprobs, [])[:, 0]
        K = min(self._searches[0].candidates, logprobs.shape[-1])
        ids = mx.argpartition(-logprobs, K - 1, axis=-1)[:, :K]
        return ids, mx.take_along_axis(logprobs, ids, axis=-1)

    def admit(self, rows: list[Any], new: Sequence[int]) -> None:
        N = self._num_beams
        self.rows = rows
        for b in new:
            self._searches[b : b + 1] = [Search(self.rows[b], N, self.target.config)]
        prompts = [self.rows[b].prompt for b in new for _ in range(N)]
        self.target.admit(len(self.rows) * N, self._target_rows(new), prompts)

    def select(self, indices: Sequence[int]) -> None:
        self.rows = [self.rows[b] for b in indices]
        self._searches = [self._searches[b] for b in indices]
        self.target.select(self._target_rows(indices))

    def _target_rows(self, rows: Sequence[int]) -> list[int]:
        N = self._num_beams
        return [b * N + i for b in rows for i in range(N)]

    @property
    def _beams(self) -> list[Row]:
        return [beam for search in self._searches for beam in search.beams]


class Search:
    """The search for one row's text: N beams, and the N best texts that have ended."""

    def __init__(self, row: BeamRow, num_beams: int, config: Any):
        self.row = row
        self._ends = list(config.eos_token_ids)
        # Enough that N go on, however many end.
        self.candidates = max(2, 1 + len(self._ends)) * num_beams
        begin = partial(Row.begin, row.prompt, row.options, row.tokens, config)
        grammars = [row.grammar and row.grammar.copy() for _ in range(num_beams)]
        self.beams = [begin(grammar=grammar) for grammar in grammars]
        # The first step finds N different tokens after one beam, not one token after N equal beams.
        self.sums = np.full(num_beams, NOTHING)  # of the beams' log-probabilities
        self.sums[0] = 0
        self.ended: list[tuple[np.float32, list[int]]] = []  # scores and tokens, the best first
        penalty = row.options.length_penalty
        self._penalty = 1.0 if penalty is None else float(penalty)
        self._early = row.options.early_stopping or False

    def step(self, ids: np.ndarray, logprobs: np.ndarray) -> np.ndarray:
        """Extend the beams with the best of each beam's likeliest tokens [N, K]; return which beam each of them
        follows, [N]. If the search ends, give the row its text."""
        N, K = ids.shape
        length = len(self.beams[0].origins) + 1
        is_last = self.beams[0].room == 1
        sums = (self.sums[:, None] + logprobs).reshape(-1)
        order = np.lexsort((ids.reshape(-1), -sums))[: self.candidates]
        beams = order // K
        tokens = ids.reshape(-1)[order]
        sums = sums[order]
        stops = np.isin(tokens, self._ends) | is_last
        for i in np.flatnonzero(stops[:N]):  # an end counts only among the N best
            if sums[i] > NOTHING / 2:  # else it follows a beam that does not exist
                score = self._score(sums[i], length)
                self.ended.append((score, [*self.beams[beams[i]].generated, int(tokens[i])]))
        self.ended = sorted(self.ended, key=lambda text: -text[0])[:N]
        best = np.flatnonzero(~stops)[:N]  # of those that go on
        if is_last or self._is_over(sums[best[0]], length):
            self._finish()
            return np.arange(N)
        self.sums = sums[best]
        texts = [[*self.beams[beams[i]].tokens, int(tokens[i])] for i in best]
        for beam, text in zip(self.beams, texts, strict=True):
            beam.tokens = text
            beam.origins.append("target")
        return beams[best]

    def _score(self, logprobs: np.float32, length: int) -> np.float32:
        with np.errstate(over="ignore", divide="ignore"):
            return logprobs / np.float32(np.float64(length) ** self._penalty)

    def _is_over(self, best: np.float32, length: int) -> bool:
        """Whether the search ends at this length. best: the best beam's sum of log-probabilities."""
        is_full = len(self.ended) == len(self.beams)
        worst = self.ended[-1][0] if is_full else NOTHING
        if self._early == "never" and self._penalty > 0:
            length = self.row.max_tokens  # the best that the beam's score may become
        return (is_full and self._early is True) or not self._score(best, length) > worst

    def _finish(self) -> None:
        rows = [self.row, *self.row.others]
        texts = [*self.ended, *[(NOTHING, [])] * len(rows)]
        for row, (score, tokens) in zip(rows, texts, strict=False):
            row.text_score = float(score)
            for token in tokens:
                row.commit([token], ["target"], self._ends)
            row.finish_reason = row.finish_reason or NONE
        for beam in self.beams:
            beam.finish_reason = self.row.finish_reason
