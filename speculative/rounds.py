"""The round: draft, verify, accept, keep (Leviathan et al. 2023, arXiv 2211.17192).

Rows of tokens are decoded side by side, and a finished row makes room for the next. Ids in, ids out;
text is not this file's business.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import mlx.core as mx
import numpy as np

from model import T5
from speculative.drafting import Drafter, following, lacking, padded
from speculative.lookup import Offer
from speculative.options import Options
from speculative.sampling import Draft, no_draft
from speculative.schedule import Fixed, Measured, Plan

ORIGINS = ("copied", "drafted", "corrected", "plain")
"""Where a token comes from: a drafter copied it, or a draft model wrote it, and the target accepted;
or it is the target's own, in place of a rejected one, or with none rejected."""


@dataclass
class Stats:
    """What decoding a row took. Seconds are those of the rounds that the row took part in; of each
    round it has a share, so that the shares of all rows add up to the time that passed."""

    target_calls: int = 0
    drafted: int = 0
    accepted_lengths: Counter[int] = field(default_factory=Counter)  # drafted tokens kept: rounds
    seconds: float = 0.0
    drafting_seconds: float = 0.0  # of these; measured with the option `timed` only
    seconds_share: float = 0.0  # a round's seconds, divided among its rows
    drafting_share: float = 0.0

    @property
    def accepted(self) -> int:
        """Drafted tokens in the text."""
        return sum(length * rounds for length, rounds in self.accepted_lengths.items())

    def histogram(self) -> list[int]:
        """Rounds by how many drafted tokens they kept: [0] kept none."""
        most = max(self.accepted_lengths, default=0)
        return [self.accepted_lengths[length] for length in range(most + 1)]

    def count(self, seconds: float, drafting_seconds: float, drafted: int, rows: int) -> None:
        self.target_calls += 1
        self.drafted += drafted
        self.seconds += seconds
        self.drafting_seconds += drafting_seconds
        self.seconds_share += seconds / rows
        self.drafting_share += drafting_seconds / rows


@dataclass
class Row:
    """A source and what has been decoded for it."""

    source: list[int]
    seed: bytes = b""  # the root of the row's noise; greedy decoding has none
    tokens: list[int] = field(default_factory=list)  # the decoder's start token first
    from_draft: list[bool] = field(default_factory=list)  # of tokens[1:]: the drafter proposed it
    origins: list[str] = field(default_factory=list)  # of tokens[1:]: see ORIGINS
    finish_reason: str | None = None  # "stop": end of sequence; "length": max_tokens
    stats: Stats = field(default_factory=Stats)
    encoded_per_second: float = 0.0  # source tokens, of all rows that were encoded together
    started: float = 0.0  # time.perf_counter()


class Decoding:
    """Rows decoded together, a round at a time.

    `drafter` is None for plain decoding, which is the same round with nothing drafted. `length` says
    how much to draft; by default what the options ask for.
    """

    def __init__(
        self,
        model: T5,
        drafter: Drafter | None,
        rows: Sequence[Row],
        options: Options,
        length: Fixed | Measured | None = None,
    ):
        self.model, self.drafter, self.options = model, drafter, options
        self.length = length or draft_length(model, options)
        self.rows = list(rows)
        tokens, mask = self._admit(rows)
        self.cache = model.start(tokens, mask)
        if drafter:
            drafter.start([row.source for row in rows])
        self._encoded(rows)

    @property
    def finished(self) -> bool:
        return all(row.finish_reason for row in self.rows)

    def round(self) -> list[int]:
        """Draft, verify, accept, keep: every unfinished row gains at least one token.

        Returns the indices of the rows that this round finished.
        """
        tokens = [[] if row.finish_reason else row.tokens for row in self.rows]
        plan = self._plan(tokens)
        k = int(plan.lengths.max())
        drafter = self.drafter if k else None
        if drafter:
            drafter.prepare(plan.offers)
        began = time.perf_counter()

        # draft
        draft = no_draft(len(tokens))
        if drafter:
            draft = drafter.draft(tokens, plan.offers, plan.lengths, self.sampler)
        mx.async_eval(draft.tokens)  # runs while the host prepares what follows

        # verify
        last, positions = lacking(tokens, self.cache, self.model.config.pad_token_id)
        positions = np.concatenate([positions, following(tokens, draft.lengths)], axis=1)
        block = mx.concatenate([mx.array(last), draft.tokens], axis=1)  # [B, 1 + k]
        logits = self.model.decode(block, positions, self.cache)  # [B, 1 + k, V]

        # accept
        n, token = self.sampler.accept(logits, draft, tokens)
        result = mx.concatenate([draft.tokens, n[:, None], token[:, None]], axis=1)
        drafting = self._wait_for(draft, began) if self.options.timed and k else 0.0
        result = self.model.agreed(result)  # [B, k + 2], the round's one synchronisation
        drafted, n, token = result[:, :k], result[:, k], result[:, k + 1]

        # keep
        self.cache.keep(last.shape[1] + n)
        if drafter:
            drafter.keep(n)
        seconds = time.perf_counter() - began
        unfinished = [b for b, row in enumerate(self.rows) if not row.finish_reason]
        accepted = [0] * len(self.rows)
        for b in unfinished:
            row, length = self.rows[b], int(plan.lengths[b])
            row.stats.count(seconds, drafting, length, len(unfinished))
            accepted[b] = self._commit(row, drafted[b, : n[b]].tolist(), int(token[b]))
            row.origins += _origins(row, accepted[b], plan.offers[b], n[b] < length)
        self.length.observe(plan, accepted, seconds)
        return [b for b in unfinished if self.rows[b].finish_reason]

    def replace(self, fresh: dict[int, Row]) -> None:
        """Put new rows in the place of finished ones, by index."""
        rows = list(fresh.values())
        for b, row in fresh.items():
            self.rows[b] = row
        tokens, mask = self._admit(rows)
        self.cache.replace(list(fresh), self.model.start(tokens, mask))
        if self.drafter:
            self.drafter.replace(list(fresh), [row.source for row in rows])
        self._encoded(rows)

    def select(self, indices: Sequence[int]) -> None:
        """Go on with these rows only."""
        self.rows = [self.rows[b] for b in indices]
        self.sampler = self.options.sampler([row.seed for row in self.rows])
        self.cache.select(indices)
        if self.drafter:
            self.drafter.select(indices)

    def _admit(self, rows: Sequence[Row]) -> tuple[mx.array, np.ndarray]:
        """Prepare new rows; their source tokens [B, S] and the mask of these, true on tokens."""
        config = self.model.config
        self.sampler = self.options.sampler([row.seed for row in self.rows])
        tokens, mask = padded([row.source for row in rows], config.pad_token_id)
        for row in rows:
            row.tokens = [config.decoder_start_token_id]
            row.started = time.perf_counter()
        return mx.array(tokens), mask

    def _encoded(self, rows: Sequence[Row]) -> None:
        """Wait for the encoder, and tell the new rows how fast it was."""
        self.cache.wait()
        now = time.perf_counter()
        rate = sum(len(row.source) for row in rows) / (now - rows[0].started)
        for row in rows:
            row.encoded_per_second, row.started = rate, now

    def _wait_for(self, draft: Draft, began: float) -> float:
        np.array(draft.tokens)
        return time.perf_counter() - began

    def _plan(self, tokens: Sequence[Sequence[int]]) -> Plan:
        offers = self.drafter.offers(tokens) if self.drafter else [[]] * len(tokens)
        # Drafted tokens that a row has room for, with the target's own after them.
        room = [
            -1 if row.finish_reason else self.options.max_tokens - len(row.from_draft) - 1
            for row in self.rows
        ]
        return self.length.plan(
            [o if r > 0 else [] for o, r in zip(offers, room, strict=True)], room
        )

    def _commit(self, row: Row, accepted: list[int], token: int) -> int:
        """Append the accepted drafted tokens and the target's own, cut at the first end of sequence
        and at max_tokens. Returns how many drafted ones there are among them."""
        new = [*accepted, token][: self.options.max_tokens - len(row.from_draft)]
        ends = [i for i, t in enumerate(new) if t in self.model.config.eos_token_ids]
        if ends:
            new = new[: ends[0] + 1]
        flags = [i < len(accepted) for i in range(len(new))]
        row.tokens += new
        row.from_draft += flags
        row.stats.accepted_lengths[sum(flags)] += 1
        if ends:
            row.finish_reason = "stop"
        elif len(row.from_draft) == self.options.max_tokens:
            row.finish_reason = "length"
        return sum(flags)


def _origins(row: Row, accepted: int, offer: Offer | None, rejected: bool) -> list[str]:
    """The origins of the tokens that a round has added to the row: `accepted` ones of the offer,
    and the target's own unless the text ended before it."""
    own = len(row.from_draft) - len(row.origins) - accepted
    draft = "drafted" if offer and offer.modelled else "copied"
    return [draft] * accepted + ["corrected" if rejected else "plain"] * own


def draft_length(model: T5, options: Options) -> Fixed | Measured:
    """What decides how much to draft: by the option num_draft."""
    if options.num_draft == "auto":
        return Measured(model.config.vocab_size, model.agreed)
    return Fixed(int(options.num_draft))


def decode(
    model: T5,
    drafter: Drafter | None,
    rows: Iterable[Row],
    options: Options,
    batch_size: int,
    length: Fixed | Measured | None = None,
) -> Iterator[Row]:
    """Decode all rows, `batch_size` at a time; yield each as soon as it is finished.

    A finished row's place goes to the next of `rows` at the next round. When there is none, the
    batch is halved as soon as half of it is finished.
    """
    rows = iter(rows)
    batch = list(islice(rows, batch_size))
    if not batch:
        return
    decoding = Decoding(model, drafter, batch, options, length)
    while not decoding.finished:
        done = decoding.round()
        yield from (decoding.rows[b] for b in done)
        fresh = dict(zip(done, rows, strict=False))
        if fresh:
            decoding.replace(fresh)
        live = [b for b, row in enumerate(decoding.rows) if not row.finish_reason]
        if live and 2 * len(live) <= len(decoding.rows):
            decoding.select(live)
