"""Drafting with a smaller model."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.drafters.draft_vocabulary import DraftVocabulary, Narrowed
from speculative.drafters.drafter import Drafter
from speculative.drafters.prompt_lookup import UNBOUNDED, WEAK
from speculative.models.contract import Model, TokenLists
from speculative.step.cached_model import CachedModel, following
from speculative.step.distilled_model import DistilledModel
from speculative.step.draft import Candidate, Draft, Plan
from speculative.step.prefix_cache import PrefixCache
from speculative.step.row import Row
from speculative.step.sampling import Greedy, Sampler


@dataclass(eq=False)
class ModelDrafter(Drafter):
    """Drafts with a smaller model, token by token, or copies, as the plan says: per row, in one batch. It prefills a prompt
    when it first drafts for it. A candidate's state says how the row's last draft fared, because texts stay easy or hard
    for a while."""

    model: Model
    # Ids from here on are never proposed: the target does not share them
    vocab_size: int | None = None
    vocabulary: DraftVocabulary | None = None  # the tokens to score; None: all of them
    prefix_cache: PrefixCache | None = None
    lookup: Drafter = field(default_factory=Drafter)  # of the copies

    def __post_init__(self):
        self._learner = self.model.learner
        self._cached = CachedModel(self.model, self.prefix_cache)
        self._broadcast: Callable[[Any], Any] = np.array  # see CachedModel
        self._narrowed: Narrowed | None = None
        # Rows without a prefill so far, with how many tokens that takes
        self._to_prefill: dict[Row, int] = {}
        self._last_outcome: dict[Row, str] = {}
        self._lengths = np.zeros(0, np.int32)  # [B], of the last draft, without copies

    def follow(self, target: CachedModel) -> None:
        self._broadcast = target.broadcast
        if self.model.target_states:
            self._cached = DistilledModel(self.model, target)

    def admit(self, batch: Sequence[Row], new: Sequence[int]) -> None:
        if len(new) == len(batch):
            self._cached.cache = None
        self._cached.resize(len(batch))
        super().admit(batch, new)
        self.lookup.admit(batch, new)
        for b in new:
            self._to_prefill[batch[b]] = self._cached.missing_of(batch[b].prompt)
        self._to_prefill = {row: n for row, n in self._to_prefill.items() if row in batch}
        self._last_outcome = {row: self._last_outcome.get(row, "new") for row in batch}
        if self.vocabulary:
            languages = {row.options.target_lang for row in batch}
            self._narrowed = self.vocabulary.narrowed(languages)
            self._cached.model = self._narrowed.model if self._narrowed else self.model

    def select(self, indices: Sequence[int]) -> None:
        super().select(indices)
        self.lookup.select(indices)
        self._cached.select(indices)

    def candidates(self, contexts: TokenLists) -> list[list[Candidate]]:
        offered = self.lookup.candidates(contexts)
        if not self._learner or self._learner.version:
            self._offer(contexts, offered)
        # Matches that may be chance come after the model.
        return [sorted(each, key=lambda candidate: candidate.state in WEAK) for each in offered]

    def _offer(self, contexts: TokenLists, offered: list[list[Candidate]]) -> None:
        """Add the model's candidates to what is offered for the rows."""
        config = self._cached.config
        drafter = "narrowed" if self._narrowed else "model"
        if self._learner:  # the schedule judges a better version anew
            drafter += f" {self._learner.version}"
        missing = self._cached.missing(contexts)
        missing[missing <= self._cached.MAX_MISSING] = 0
        rows = zip(self._batch, contexts, missing.tolist(), offered, strict=True)
        for row, context, lacking, candidates in rows:
            length = (config.max_positions or UNBOUNDED) - len(context)
            fits = len(row.prompt) <= (config.max_prompt_tokens or UNBOUNDED)
            state = self._last_outcome[row]
            lacking = self._to_prefill.get(row, lacking)
            if fits and length > 0:
                candidates.append(Candidate(drafter, length, state=state, missing=lacking))

    def draft(self, contexts: TokenLists, plan: Plan, sampler: Greedy | Sampler) -> Draft:
        modelled = plan.modelled
        copies = self.lookup.draft(contexts, plan.only(~modelled), sampler)
        self._lengths = np.where(modelled, plan.limits, 0)
        if not self._lengths.any():
            return copies
        draft = self._own_draft(contexts, plan.only(modelled), sampler)
        lengths = np.where(modelled, draft.lengths, copies.lengths)
        width = int(lengths.max())
        drafted, copied = (_padded(each.tokens, width) for each in (draft, copies))
        tokens = mx.where(mx.array(modelled[:, None]), drafted, copied)
        q = None if draft.q is None else _padded(draft.q, width)
        certain = np.broadcast_to(~modelled[:, None], tokens.shape)
        return replace(draft, tokens=tokens, lengths=lengths, q=q, certain=certain)

    def _own_draft(self, contexts: TokenLists, plan: Plan, sampler: Greedy | Sampler) -> Draft:
        """The model's proposals for the rows with limits."""
        contexts = [each if n else [] for each, n in zip(contexts, plan.limits, strict=True)]
        lacking = any(candidate and candidate.missing for candidate in plan.candidates)
        prefill_seconds = self._prefill(contexts) if lacking else 0.0
        positions = following(contexts, plan.limits)
        logits = self._cached.begin(contexts, [row.prefix_size for row in self._batch])
        drafted: list[mx.array] = []
        distributions: list[Any] = []  # None where the sampler is greedy
        monitor = _ConfidenceMonitor(plan, self._cached.config.eos_token_ids, self._broadcast)
        while True:
            if self._narrowed:
                logits = self._narrowed.widened(logits)
            logits = logits[:, : self.vocab_size]
            token, distribution = sampler.propose(logits, drafted)
            mx.async_eval(token)  # runs while the host prepares the next
            drafted.append(token[:, None])
            distributions.append(distribution)
            n = len(drafted)
            if n == positions.shape[1] or monitor.stops(logits, token):
                break  # the model need not see the last token
            logits = self._cached.feed(drafted[-1], positions[:, n - 1 : n])
        self._lengths = np.minimum(monitor.lengths, len(drafted))
        longest = self._lengths.max()
        q = None if distributions[0] is None else mx.stack(distributions[:longest], axis=1)
        tokens = mx.concatenate(drafted[:longest], axis=1)
        return Draft(tokens, self._lengths, q, None, monitor.confidence, prefill_seconds)

    def _prefill(self, contexts: TokenLists) -> float:
        """Prefill what the model lacks of the rows to draft for; return the seconds, which are not the step's."""
        began = time.perf_counter()
        new = [b for b, row in enumerate(self._batch) if contexts[b] and row in self._to_prefill]
        if new:
            self._cached.admit(len(self._batch), new, [self._batch[b].prompt for b in new])
            for b in new:
                del self._to_prefill[self._batch[b]]
        self._cached.catch_up(contexts)
        return float(self._broadcast(time.perf_counter() - began))

    def keep(self, n: np.ndarray) -> None:
        if not self._lengths.any():
            return
        # The last proposal was never fed: `SlotCache.keep` keeps at most what was written.
        self._cached.keep(np.where(self._lengths, n, 0))
        for row, accepted, length in zip(self._batch, n, self._lengths, strict=True):
            if length:
                outcome = "whole" if accepted == length else "part"
                self._last_outcome[row] = outcome if accepted else "none"

    def learn(self, done: Sequence[Row]) -> None:
        for row in done:
            b = self._batch.index(row)
            if not self._to_prefill.pop(row, 0):
                self._cached.remember(b, row.tokens)
            if self.vocabulary:
                self.vocabulary.learn(row.generated, row.options.target_lang)
            if self._learner:
                self._learner.finished(row, self._cached.seen(b, row.tokens))
        if self._learner and not done:  # what has finished is in the journal by now
            self._learner.between_steps(len(self._batch))


class _ConfidenceMonitor:
    """A draft model's confidence in its tokens. Used only if the plan asks, because the host must wait for it."""

    def __init__(self, plan: Plan, ends: Collection[int], broadcast: Callable):
        self._stop = plan.stop
        self._ends = ends
        self._broadcast = broadcast
        # A GPU would idle while the host waits: look a token later there, when the next is queued.
        self._late = int(mx.default_device() == mx.gpu)
        self._queued: list[mx.array] = []  # confidences [B], by token
        self.confidence = np.ones((len(plan.limits), 0))  # [B, n], as `Draft` has it
        self.lengths = plan.limits  # [B], without what follows an end

    def stops(self, logits: mx.array, token: mx.array) -> bool:
        """Take each row's next token [B] and its logits [B, V]; return whether to stop after it."""
        if not self._stop:
            return False
        self._queued.append(self._confidence(logits, token))
        n = len(self._queued) - self._late
        if not n:
            return False
        last = np.where(n <= self.lengths, self._broadcast(self._queued[n - 1]), 0)
        self.lengths = np.where(last < 0, n, self.lengths)
        self.confidence = np.concatenate([self.confidence, last[:, None]], axis=1)
        return self._stop(self.confidence, len(self._queued))

    def _confidence(self, logits: mx.array, token: mx.array) -> mx.array:
        logits = logits.astype(mx.float32)
        index = token[:, None]
        others = mx.put_along_axis(logits, index, mx.array(-mx.inf), axis=1)
        margin = mx.take_along_axis(logits, index, axis=1)[:, 0] - others.max(axis=1)
        confidence = mx.sigmoid(margin)
        for end in self._ends:
            confidence = mx.where(token == end, -confidence, confidence)
        mx.async_eval(confidence)
        return confidence


def _padded(x: mx.array, width: int) -> mx.array:
    """x [B, k, ...] with zeros added to [B, width, ...]."""
    return mx.pad(x, [(0, 0), (0, width - x.shape[1]), *[(0, 0)] * (x.ndim - 2)])
