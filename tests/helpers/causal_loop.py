"""A greedy speculative loop over prompts that needs nothing but the models' contract."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.cache import MASKED

Draft = Any | Callable[[list[int]], list[int]] | None
"""A draft model; or what guesses the next tokens from those so far; or none."""


@dataclass(eq=False)
class Row:
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)  # the prompt first
    done: bool = False
    accepted: Counter = field(default_factory=Counter)  # (drafted, accepted): steps

    @property
    def written(self) -> list[int]:
        return self.tokens[len(self.prompt) :]


class _Fed:
    """A model and its cache."""

    def __init__(self, model: Any):
        self.model, self.cache = model, None

    def admit(self, rows: list[int], prompts: list[list[int]]) -> None:
        lengths = np.array([len(prompt) for prompt in prompts])
        mask = np.arange(lengths.max()) < lengths[:, None]
        tokens = np.zeros(mask.shape, np.int32)
        tokens[mask] = np.concatenate(prompts)
        fresh = self.model.start(mx.array(tokens), mask)
        if self.cache is None:
            self.cache = fresh
        else:
            self.cache.replace(rows, fresh)

    def __call__(self, rows: list[list[int]], drafted: list[list[int]]) -> np.ndarray:
        """The argmax [B, 1 + k] after each row's last token and its drafted ones."""
        held = self.cache.lengths
        lacking = [row[n:] for row, n in zip(rows, held, strict=True)]
        left, right = max(map(len, lacking)), max(map(len, drafted))
        tokens = np.zeros((len(rows), left + right), np.int32)
        positions = np.full(tokens.shape, MASKED, np.int32)
        for b, (new, draft) in enumerate(zip(lacking, drafted, strict=True)):
            start, count = left - len(new), len(new) + len(draft)
            tokens[b, start : start + count] = new + draft
            positions[b, start : start + count] = held[b] + np.arange(count)
        self.lacked = left
        logits = self.model.decode(mx.array(tokens), positions, self.cache)
        return np.array(mx.argmax(logits[:, left - 1 :], axis=-1))


def decode(
    target: Any,
    draft: Draft,
    prompts: Sequence[list[int]],
    batch_size: int,
    num_draft: int,
    max_tokens: int,
) -> list[Row]:
    """The prompts' rows, decoded `batch_size` side by side; a finished row's place goes to the next, and
    with none left a batch that is half finished shrinks."""
    everything = [Row(prompt, list(prompt)) for prompt in prompts]
    waiting, batch = everything[batch_size:], everything[:batch_size]
    modelled = hasattr(draft, "decode")
    fed = [_Fed(target), *([_Fed(draft)] if modelled else [])]
    for each in fed:
        each.admit(list(range(len(batch))), [row.prompt for row in batch])
    while not all(row.done for row in batch):
        rows = [[] if row.done else row.tokens for row in batch]
        room = [0 if row.done else max_tokens - len(row.written) - 1 for row in batch]
        k = [min(num_draft, n) for n in room]
        drafted: list[list[int]] = [[] for _ in batch]
        if modelled and max(k):
            choice = fed[1](rows, drafted)[:, -1]
            lacked = fed[1].lacked
            for i in range(max(k)):
                drafted = [
                    d + [int(c)] * (i < n) for d, c, n in zip(drafted, choice, k, strict=True)
                ]
                if i + 1 < max(k):
                    choice = _one_more(fed[1], rows, drafted, i)
            fed[1].lacked = lacked
        elif draft and not modelled:
            drafted = [draft(row)[:n] if row else [] for row, n in zip(rows, k, strict=True)]
        chosen = fed[0](rows, drafted)
        n = np.array([_agreed(d, c) for d, c in zip(drafted, chosen.tolist(), strict=True)])
        for each in fed[: 1 + bool(modelled and max(k))]:
            each.cache.keep(each.lacked + n)
        for row, passed, own, d in zip(batch, n, chosen, drafted, strict=True):
            if not row.done:
                _commit(row, [*d[:passed], int(own[passed])], target, max_tokens)
                row.accepted[len(d), int(passed)] += 1
        free = [b for b, row in enumerate(batch) if row.done][: len(waiting)]
        if free:
            fresh, waiting = waiting[: len(free)], waiting[len(free) :]
            for b, row in zip(free, fresh, strict=True):
                batch[b] = row
            for each in fed:
                each.admit(free, [row.prompt for row in fresh])
        live = [b for b, row in enumerate(batch) if not row.done]
        if live and 2 * len(live) <= len(batch):
            batch = [batch[b] for b in live]
            for each in fed:
                each.cache.select(live)
    return everything


def _one_more(fed: _Fed, rows: list, drafted: list[list[int]], i: int) -> np.ndarray:
    """The draft model's choice after its i-th token of each row that has one."""
    tokens = np.array([[d[i] if len(d) > i else 0] for d in drafted], np.int32)
    at = [[len(row) + i if len(d) > i else MASKED] for row, d in zip(rows, drafted, strict=True)]
    logits = fed.model.decode(mx.array(tokens), np.array(at, np.int32), fed.cache)
    return np.array(mx.argmax(logits[:, -1], axis=-1))


def _agreed(drafted: list[int], chosen: list[int]) -> int:
    return next((i for i, d in enumerate(drafted) if d != chosen[i]), len(drafted))


def _commit(row: Row, new: list[int], target: Any, max_tokens: int) -> None:
    for token in new:
        row.tokens.append(token)
        if token in target.config.eos_token_ids or len(row.written) == max_tokens:
            row.done = True
            return


def lookup(tokens: list[int]) -> list[int]:
    """What followed the last token's latest earlier occurrence."""
    for i in range(len(tokens) - 2, -1, -1):
        if tokens[i] == tokens[-1]:
            return tokens[i + 1 :]
    return []
