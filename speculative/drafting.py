"""Drafters: what proposes the next tokens for the target to check.

A drafter has
    start(sources)                  new sources, a list of tokens each
    replace(rows, sources)          new sources in the place of some rows
    select(rows)                    go on with these rows only
    offers(rows)                    what it could propose for each row: a list of Offers, best first
    prepare(offers)                 before a round that drafts: one of these for each row, or None
    draft(rows, offers, lengths, sampler)
                                    up to lengths [B] proposals for each row, from its offer: a Draft
    keep(n [B])                     how many of its last proposals each row kept
where `rows` holds the tokens decoded so far, the decoder's start token first, and an empty list for
a row that is finished.
"""

from collections.abc import Callable, Sequence
from typing import Any, Union

import mlx.core as mx
import numpy as np

from model import T5
from speculative.cache import MASKED, SlotCache
from speculative.lookup import UNBOUNDED, WEAK, Copier, Offer
from speculative.sampling import Draft, Greedy, Sampler

Rows = Sequence[Sequence[int]]
Offers = Sequence[Offer | None]

Drafter = Union["ModelDrafter", "InputDrafter", "CombinedDrafter"]


def lacking(rows: Rows, cache: SlotCache, filler: int) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of each row that the cache does not hold yet, and their positions: [B, P] each.

    Usually one per row; two after a draft that was accepted whole. Rows end at the block's right
    edge, and what fills a shorter one up has the position MASKED.
    """
    held = cache.lengths
    new = [row[n:] for row, n in zip(rows, held, strict=True)]
    width = max(map(len, new))
    tokens = np.full((len(rows), width), filler, np.int32)
    positions = np.full((len(rows), width), MASKED, np.int32)
    for b, row in enumerate(new):
        tokens[b, width - len(row) :] = row
        positions[b, width - len(row) :] = np.arange(held[b], held[b] + len(row))
    return tokens, positions


def following(rows: Rows, lengths: np.ndarray) -> np.ndarray:
    """The positions [B, k] of lengths [B] tokens after each row; MASKED beyond them."""
    first = np.array([len(row) for row in rows], np.int32)[:, None]
    ahead = np.arange(lengths.max(), dtype=np.int32)
    return np.where(ahead < lengths[:, None], first + ahead, MASKED)


def padded(sources: Rows, filler: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of tokens as one array [B, S], and its mask, true on tokens."""
    lengths = np.array([len(source) for source in sources])
    mask = np.arange(lengths.max()) < lengths[:, None]
    tokens = np.full(mask.shape, filler, np.int32)
    tokens[mask] = np.concatenate(sources)
    return tokens, mask


class ModelDrafter:
    """Drafts with a smaller model, token by token, without waiting for any of them.

    A source is encoded when it is first drafted for: where drafting does not pay, it costs nothing.
    The kind of an offer tells how the row's last draft fared: texts are easy or hard for a while.
    """

    def __init__(self, model: T5, vocab_size: int | None = None):
        """vocab_size: ids from here on are never proposed (those that the target does not share)."""
        self._model = model
        self._vocab_size = vocab_size or model.config.vocab_size

    def start(self, sources: Rows) -> None:
        self._cache: SlotCache | None = None
        self._sources = list(sources)
        self._new = set(range(len(sources)))  # rows whose source is not encoded yet
        self._lacked = 0  # how many tokens per row went before the last proposals
        self._fared = ["new"] * len(sources)

    def replace(self, rows: Sequence[int], sources: Rows) -> None:
        for row, source in zip(rows, sources, strict=True):
            self._sources[row], self._fared[row] = source, "new"
        self._new.update(rows)

    def select(self, rows: Sequence[int]) -> None:
        self._sources = [self._sources[row] for row in rows]
        self._fared = [self._fared[row] for row in rows]
        self._new = {i for i, row in enumerate(rows) if row in self._new}
        if self._cache:
            self._cache.select(rows)

    def offers(self, rows: Rows) -> list[list[Offer]]:
        return [[Offer(f"model, {fared}", UNBOUNDED)] for fared in self._fared]

    def prepare(self, offers: Offers) -> None:
        """Encode the new sources and wait for that, so that a round's time is a round's."""
        if not self._new:
            return
        new = sorted(self._new)
        sources = [self._sources[row] for row in new]
        tokens, mask = padded(sources, self._model.config.pad_token_id)
        fresh = self._model.start(mx.array(tokens), mask)
        if self._cache is None:
            self._cache = fresh
        else:
            self._cache.replace(new, fresh)
        self._new = set()
        self._cache.wait()

    def draft(
        self, rows: Rows, offers: Offers, lengths: np.ndarray, sampler: Greedy | Sampler
    ) -> Draft:
        config = self._model.config
        assert self._cache  # of `prepare`
        tokens, positions = lacking(rows, self._cache, config.pad_token_id)
        tokens[tokens >= config.vocab_size] = config.pad_token_id  # the target may know more ids
        self._lacked, self._lengths = tokens.shape[1], lengths
        ahead = following(rows, lengths)
        token, drafted = mx.array(tokens), []
        q: list[Any] = []  # None each where tokens are certain
        for i in range(ahead.shape[1]):
            logits = self._model.decode(token, positions, self._cache)[:, -1, : self._vocab_size]
            token, distribution = sampler.propose(logits, rows, i)
            mx.async_eval(token)  # runs while the host prepares the next
            token, positions = token[:, None], ahead[:, i : i + 1]
            drafted.append(token)
            q.append(distribution)
        tokens = mx.concatenate(drafted, axis=1)
        return Draft(tokens, lengths, None if q[0] is None else mx.stack(q, axis=1))

    def keep(self, n: np.ndarray) -> None:
        assert self._cache
        # The last proposal was never fed: `Cache.keep` keeps at most what was written.
        self._cache.keep(self._lacked + n)
        for b in np.flatnonzero(self._lengths):
            self._fared[b] = (
                "none" if n[b] == 0 else "whole" if n[b] == self._lengths[b] else "part"
            )


class InputDrafter:
    """Drafts by copying from the source and from the text so far."""

    def __init__(self, piece: Callable[[int], str] = lambda token: "▁"):
        """piece: the text of a token as the vocabulary has it; by default each token is a word."""
        self._piece = piece

    def start(self, sources: Rows) -> None:
        self._copiers = [Copier(source, self._piece) for source in sources]

    def replace(self, rows: Sequence[int], sources: Rows) -> None:
        for row, source in zip(rows, sources, strict=True):
            self._copiers[row] = Copier(source, self._piece)

    def select(self, rows: Sequence[int]) -> None:
        self._copiers = [self._copiers[row] for row in rows]

    def offers(self, rows: Rows) -> list[list[Offer]]:
        found = []
        for copier, row in zip(self._copiers, rows, strict=True):
            copier.extend(row[1 + copier.output_size :])
            found.append(copier.offers() if row else [])
        return found

    def prepare(self, offers: Offers) -> None:
        pass

    def draft(
        self, rows: Rows, offers: Offers, lengths: np.ndarray, sampler: Greedy | Sampler
    ) -> Draft:
        tokens = np.zeros((len(rows), lengths.max()), np.int32)
        for b, (offer, length) in enumerate(zip(offers, lengths.tolist(), strict=True)):
            if offer and offer.place is not None:
                tokens[b, :length] = self._copiers[b].copy(offer.place, length)
        return Draft(mx.array(tokens), lengths)

    def keep(self, n: np.ndarray) -> None:
        pass


class CombinedDrafter:
    """Copies where there is something to copy, else asks the draft model: per row, in one batch."""

    def __init__(self, copying: InputDrafter, model: ModelDrafter):
        self._copying, self._model = copying, model

    def start(self, sources: Rows) -> None:
        self._copying.start(sources)
        self._model.start(sources)

    def replace(self, rows: Sequence[int], sources: Rows) -> None:
        self._copying.replace(rows, sources)
        self._model.replace(rows, sources)

    def select(self, rows: Sequence[int]) -> None:
        self._copying.select(rows)
        self._model.select(rows)

    def offers(self, rows: Rows) -> list[list[Offer]]:
        both = zip(self._copying.offers(rows), self._model.offers(rows), strict=True)
        # What may match by chance comes after the model.
        return [
            sorted(copied + modelled, key=lambda o: o.kind in WEAK) for copied, modelled in both
        ]

    def prepare(self, offers: Offers) -> None:
        self._asked = np.array([offer is not None and offer.modelled for offer in offers])
        if self._asked.any():
            self._model.prepare(offers)

    def draft(
        self, rows: Rows, offers: Offers, lengths: np.ndarray, sampler: Greedy | Sampler
    ) -> Draft:
        asked = self._asked
        copied = self._copying.draft(rows, offers, np.where(asked, 0, lengths), sampler)
        if not asked.any():
            return copied
        rows = [row if a else [] for row, a in zip(rows, asked, strict=True)]
        modelled = self._model.draft(rows, offers, np.where(asked, lengths, 0), sampler)
        from_model = mx.array(asked[:, None])
        width = lengths.max()
        tokens = mx.where(
            from_model, _widened(modelled.tokens, width), _widened(copied.tokens, width)
        )
        q = None if modelled.q is None else _widened(modelled.q, width)
        return Draft(tokens, lengths, q, certain=~asked)

    def keep(self, n: np.ndarray) -> None:
        if self._asked.any():
            self._model.keep(np.where(self._asked, n, 0))


def _widened(x: mx.array, width: int) -> mx.array:
    """x [B, k, ...] with zeros added to [B, width, ...]."""
    return mx.pad(x, [(0, 0), (0, width - x.shape[1]), *[(0, 0)] * (x.ndim - 2)])
