"""Drafters propose the next tokens for the target to verify."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.cached_model import CachedModel, following
from speculative.draft import Candidate, Draft, Plan, no_draft
from speculative.draft_vocabulary import DraftVocabulary, Narrowed
from speculative.lookup import ALLOWED, FORCED, UNBOUNDED, WEAK, PromptMatcher
from speculative.model import Model, Rows
from speculative.prefill import PrefixCache
from speculative.row import Row
from speculative.sampling import Greedy, Sampler


class Drafter:
    """The interface of all drafters; this one proposes nothing, which is plain decoding.

    `rows` holds each row's tokens so far, the model's prefix first; a finished row has none.
    """

    def admit(self, batch: Sequence[Row], new: Sequence[int]) -> None:
        """`batch` holds all rows from now on; those at the indices `new` have just begun."""

    def select(self, rows: Sequence[int]) -> None:
        """Go on with these rows only."""

    def candidates(self, rows: Rows) -> list[list[Candidate]]:
        """What could be proposed for each row, likeliest first."""
        return [[] for _ in rows]

    def draft(self, rows: Rows, plan: Plan, sampler: Greedy | Sampler) -> Draft:
        """Propose up to plan.limits [B] tokens for each row, from its candidate in the plan. They stay on the
        device."""
        return no_draft(len(rows))

    def keep(self, n: np.ndarray) -> None:
        """n [B]: how many of its last proposals each row kept."""

    def hindsight(self, rows: Rows, plan: Plan) -> list[tuple[Candidate, int, bool]]:
        """After a step, for candidates that were not drafted: how many of their tokens would have passed, and
        whether the next one would have been rejected. Empty if that is unknown."""
        return []

    def learn(self, done: Sequence[Row]) -> None:
        """Learn from rows that have finished."""


class ModelDrafter(Drafter):
    """Drafts with a smaller model, token by token. It reads a prompt when it first drafts for it. A candidate's
    kind says how the row's last draft fared, because texts stay easy or hard for a while."""

    def __init__(
        self,
        model: Model,
        vocab_size: int | None = None,
        broadcast: Callable[[Any], Any] = lambda x: np.array(x),
        vocabulary: DraftVocabulary | None = None,
        prefix_cache: PrefixCache | None = None,
    ):
        """vocab_size: ids from here on are never proposed: the target does not share them.
        broadcast: copies floats to the host, the same for all processes that run the target together.
        vocabulary: the tokens to score; None: all of them.
        prefix_cache: see CachedModel."""
        self._broadcast, self._vocabulary = broadcast, vocabulary
        self._narrowed: Narrowed | None = None
        self._whole, self._model = model, CachedModel(model, prefix_cache=prefix_cache)
        self._vocab_size = vocab_size or model.config.vocab_size
        self._batch: list[Row] = []
        self._unread: dict[Row, int] = {}  # rows to read -> tokens of their prompts
        self._fared: dict[Row, str] = {}
        self._lengths = np.zeros(0, np.int32)

    def admit(self, batch: Sequence[Row], new: Sequence[int]) -> None:
        if len(new) == len(batch):
            self._model.cache = None
        self._model.resize(len(batch))
        self._batch = list(batch)
        unread = self._unread | {
            batch[b]: self._model.tokens_to_prefill(batch[b].prompt) for b in new
        }
        self._unread = {row: unread[row] for row in batch if row in unread}
        self._fared = {row: self._fared.get(row, "new") for row in batch}
        if self._vocabulary:
            languages = {row.options.target_lang for row in batch}
            self._narrowed = self._vocabulary.narrowed(languages)
            self._model.model = self._narrowed.model if self._narrowed else self._whole

    def select(self, rows: Sequence[int]) -> None:
        self._batch = [self._batch[row] for row in rows]
        self._model.select(rows)

    def candidates(self, rows: Rows) -> list[list[Candidate]]:
        behind, config, found = self._behind(rows), self._model.config, []
        for row, tokens, unread in zip(self._batch, rows, behind.tolist(), strict=True):
            most = (config.max_positions or UNBOUNDED) - len(tokens)
            reads = len(row.prompt) <= (config.max_prompt_tokens or UNBOUNDED)
            kind = f"{'narrowed' if self._narrowed else 'model'}, {self._fared[row]}"
            candidate = Candidate(kind, most, unread=unread)
            found.append([candidate] if reads and most > 0 else [])
        return found

    def _behind(self, rows: Rows) -> np.ndarray:
        """How many tokens the model must read before it can draft for each row: [B]."""
        known = [b for b, row in enumerate(self._batch) if row not in self._unread]
        behind = np.array([self._unread.get(row, 0) for row in self._batch])
        if known:
            lacking = self._model.behind(rows)[known]
            behind[known] = np.where(lacking > CachedModel.BEHIND, lacking, 0)
        return behind

    def draft(self, rows: Rows, plan: Plan, sampler: Greedy | Sampler) -> Draft:
        self._lengths = limits = plan.limits
        if not limits.any():
            return no_draft(len(rows))
        rows = [row if n else [] for row, n in zip(rows, limits, strict=True)]
        prefill_seconds = self._prefill(rows) if plan.unread else 0.0
        ahead = following(rows, limits)
        forced, certain = _forced(plan)
        begun = int(certain.sum(axis=1)[limits > 0].min())  # forced in all rows: read in one call
        drafted = [mx.array(column[:, None]) for column in forced.T[:begun]]
        first = mx.array(forced[:, :begun])
        logits = self._model(rows, first, np.minimum(limits, begun))[:, -1]
        q = list[Any]()  # None each where tokens are certain
        doubt = _Doubt(plan, self._model.config.eos_token_ids, self._broadcast, begun)
        for i in range(begun, ahead.shape[1]):
            wide = self._narrowed.widened(logits) if self._narrowed else logits
            logits = wide[:, : self._vocab_size]
            token, distribution = sampler.propose(logits, drafted)
            if certain[:, i].any():
                token = mx.where(mx.array(certain[:, i]), mx.array(forced[:, i]), token)
            mx.async_eval(token)  # runs while the host prepares the next
            drafted.append(token[:, None])
            q.append(distribution)
            if i + 1 == ahead.shape[1] or doubt.stops(logits, token):
                break  # the last one need not be read
            logits = self._model.feed(drafted[-1], ahead[:, i : i + 1])
        self._lengths = np.minimum(doubt.lengths, len(drafted))
        meant, q = slice(self._lengths.max()), q[:1] * begun + q
        return Draft(
            mx.concatenate(drafted[meant], axis=1),
            self._lengths,
            q=None if not q or q[0] is None else mx.stack(q[meant], axis=1),
            certain=certain[:, meant],
            confidence=doubt.confidence,
            prefill_seconds=prefill_seconds,
        )

    def _prefill(self, rows: Rows) -> float:
        """Read what the model has not yet read of the rows to draft for, and wait. Return the seconds, which do
        not count as the step's."""
        new = [b for b, row in enumerate(self._batch) if rows[b] and row in self._unread]
        began = time.perf_counter()
        if new:
            self._model.admit(len(rows), new, [self._batch[b].prompt for b in new])
            for b in new:
                del self._unread[self._batch[b]]
        if (self._model.behind(rows) > CachedModel.BEHIND).any():
            self._model.catch_up(rows)
        self._model.wait()
        return float(self._broadcast(time.perf_counter() - began))

    def keep(self, n: np.ndarray) -> None:
        if not self._lengths.any():
            return
        # The last proposal was never read: `SlotCache.keep` keeps at most what was written.
        self._model.keep(n)
        for b in np.flatnonzero(self._lengths):
            fared = "none" if n[b] == 0 else "whole" if n[b] == self._lengths[b] else "part"
            self._fared[self._batch[b]] = fared

    def learn(self, done: Sequence[Row]) -> None:
        for row in done:
            if not self._unread.pop(row, 0):
                self._model.remember(self._batch.index(row), row.tokens)
        if self._vocabulary:
            for row in done:
                self._vocabulary.learn(row.generated, row.options.target_lang)


class _Doubt:
    """How sure a draft model is of its tokens. Used only if the plan asks, because the host must wait for it."""

    def __init__(self, plan: Plan, ends: Collection[int], broadcast: Callable, begun: int):
        """begun: how many tokens of each row are certain."""
        self._stop, self._ends, self._broadcast = plan.stop, ends, broadcast
        # A GPU would idle while the host waits: look a token later there, when the next is queued.
        self._late = int(mx.default_device() == mx.gpu)
        self._coming = [mx.ones(len(plan.limits))] * begun
        # [B, n], as `Draft` has it
        self.confidence = np.ones((len(plan.limits), max(0, begun - self._late)))
        self.lengths = plan.limits  # [B], without what follows an end

    def stops(self, logits: mx.array, token: mx.array) -> bool:
        """Take each row's next token [B] and its logits [B, V]; return whether to stop after it."""
        if not self._stop:
            return False
        logits, index = logits.astype(mx.float32), token[:, None]
        others = mx.put_along_axis(logits, index, mx.array(-mx.inf), axis=1)
        ahead = mx.take_along_axis(logits, index, axis=1)[:, 0] - others.max(axis=1)
        confidence = mx.sigmoid(ahead)
        for end in self._ends:
            confidence = mx.where(token == end, -confidence, confidence)
        mx.async_eval(confidence)
        self._coming.append(confidence)
        known = len(self._coming) - self._late
        if not known:
            return False
        last = np.where(known <= self.lengths, self._broadcast(self._coming[known - 1]), 0)
        self.lengths = np.where(last < 0, known, self.lengths)
        self.confidence = np.concatenate([self.confidence, last[:, None]], axis=1)
        return self._stop(self.confidence, len(self._coming))


class PromptLookup(Drafter):
    """Drafts by copying from a row's reference, its prompt and its text so far."""

    def __init__(
        self,
        piece: Callable[[int], str] = lambda token: "▁",
        copied: Callable[[int], int] | None = int,
    ):
        """piece: the text of a token as the vocabulary has it; by default each token is a word.
        copied: maps a prompt's token to the text's vocabulary; None: copy only from references."""
        self._piece, self._copied = piece, copied
        self._batch: list[Row] = []
        self._matchers: dict[Row, list[PromptMatcher]] = {}  # what to copy from
        self._offered: list[list[Candidate]] = []
        self._known: list[int] = []  # tokens of each row when that was offered

    def admit(self, batch: Sequence[Row], new: Sequence[int]) -> None:
        self._batch, known = list(batch), self._matchers
        self._matchers = {row: known.get(row) or self._matchers_for(row) for row in batch}

    def _matchers_for(self, row: Row) -> list[PromptMatcher]:
        found = [PromptMatcher(row.reference, self._piece, reference=True)] if row.reference else []
        if self._copied:
            found.append(PromptMatcher(list(map(self._copied, row.prompt)), self._piece))
        return found

    def select(self, rows: Sequence[int]) -> None:
        self._batch = [self._batch[row] for row in rows]

    def candidates(self, rows: Rows) -> list[list[Candidate]]:
        found = []
        for row, tokens in zip(self._batch, rows, strict=True):
            matchers = self._matchers[row]
            for matcher in matchers:
                matcher.extend(tokens[row.prefix_size + matcher.output_size :])
            found.append(self._of(row, matchers) if tokens else [])
        self._offered, self._known = found, list(map(len, rows))
        return found

    def _of(self, row: Row, matchers: Sequence[PromptMatcher]) -> list[Candidate]:
        """A row's candidates: copies up to the first token that its grammar forbids, and what it forces."""
        if row.grammar is None:
            return [c for m in matchers for c in m.candidates()]
        most = min(row.room - 1, ALLOWED)
        forced, found = tuple(row.grammar.forced(row.generated, most)), []
        for each in (c for m in matchers for c in m.candidates()):
            tokens = each.copy(min(each.most, most)) if each.copy else []
            allowed = row.grammar.passing(row.generated, tokens)
            if allowed > len(forced):
                found.append(replace(each, most=allowed))
        alone = Candidate(FORCED, len(forced), lambda n: forced[:n], forced=forced)
        return [*found, alone] if forced else found

    def draft(self, rows: Rows, plan: Plan, sampler: Greedy | Sampler) -> Draft:
        tokens = np.zeros((len(rows), plan.limits.max()), np.int32)
        for b, candidate in enumerate(plan.candidates):
            if candidate and candidate.copy:
                length = int(plan.limits[b])
                tokens[b, :length] = candidate.copy(length)
        return Draft(mx.array(tokens), plan.limits)

    def hindsight(self, rows: Rows, plan: Plan) -> list[tuple[Candidate, int, bool]]:
        found = []
        for b, offered in enumerate(self._offered):
            came = rows[b][self._known[b] :]
            for candidate in offered:
                if candidate is not plan.candidates[b] and candidate.copy:
                    copied = candidate.copy(min(len(came), candidate.most))
                    same = [ours == theirs for ours, theirs in zip(copied, came, strict=False)]
                    passed = (*same, False).index(False)
                    found.append((candidate, passed, passed < len(copied)))
        return found


class CombinedDrafter(Drafter):
    """Copies if a row has something to copy, else asks the draft model: per row, in one batch."""

    def __init__(self, lookup: PromptLookup, model: ModelDrafter):
        self._lookup, self._model = lookup, model
        self._asked = np.zeros(0, bool)

    def admit(self, batch: Sequence[Row], new: Sequence[int]) -> None:
        self._lookup.admit(batch, new)
        self._model.admit(batch, new)

    def select(self, rows: Sequence[int]) -> None:
        self._lookup.select(rows)
        self._model.select(rows)

    def candidates(self, rows: Rows) -> list[list[Candidate]]:
        found = []
        for copied, own in zip(
            self._lookup.candidates(rows), self._model.candidates(rows), strict=True
        ):
            if forced := copied[-1].forced if copied else ():
                own = [replace(c, kind=f"{c.kind}, {FORCED}", forced=forced) for c in own]
            # Matches that may be chance come after the model.
            found.append(sorted(copied + own, key=lambda c: c.kind in (*WEAK, FORCED)))
        return found

    def draft(self, rows: Rows, plan: Plan, sampler: Greedy | Sampler) -> Draft:
        self._asked = asked = plan.modelled
        copied = self._lookup.draft(rows, plan.only(~asked), sampler)
        modelled = self._model.draft(rows, plan.only(asked), sampler)
        if not asked.any():
            return copied
        lengths = np.where(asked, modelled.lengths, copied.lengths)
        width = int(lengths.max())
        pair = (_widened(draft.tokens, width) for draft in (modelled, copied))
        tokens = mx.where(mx.array(asked[:, None]), *pair)
        q = None if modelled.q is None else _widened(modelled.q, width)
        certain = ~asked[:, None] | _forced(plan)[1][:, :width]
        return replace(modelled, tokens=tokens, lengths=lengths, q=q, certain=certain)

    def hindsight(self, rows: Rows, plan: Plan) -> list[tuple[Candidate, int, bool]]:
        return self._lookup.hindsight(rows, plan)

    def learn(self, done: Sequence[Row]) -> None:
        self._model.learn(done)

    def keep(self, n: np.ndarray) -> None:
        self._model.keep(np.where(self._asked, n, 0))


def _forced(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """What a grammar forces of each row's draft, and where: [B, k] each."""
    tokens = np.zeros((len(plan.limits), plan.limits.max()), np.int32)
    forced = [c.forced[:n] if c else () for c, n in zip(plan.candidates, plan.limits, strict=True)]
    for b, of_row in enumerate(forced):
        tokens[b, : len(of_row)] = of_row
    return tokens, np.arange(tokens.shape[1]) < np.array([[len(of_row)] for of_row in forced])


def _widened(x: mx.array, width: int) -> mx.array:
    """x [B, k, ...] with zeros added to [B, width, ...]."""
    return mx.pad(x, [(0, 0), (0, width - x.shape[1]), *[(0, 0)] * (x.ndim - 2)])
