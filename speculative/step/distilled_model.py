"""A draft model made from its target, with its cache."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.models.contract import Model, Seen, TokenLists, missing_tokens
from speculative.step.cache import MASKED
from speculative.step.cached_model import CachedModel


class DistilledModel(CachedModel):
    """A draft model made from its target (speculative/models/distilled.py). It begins with the encoder's output in the target's
    cache, and reads each token with the target's state before it. After the first drafted token it feeds back its own state,
    as there is no target state yet; the cache drops all drafted tokens."""

    MAX_MISSING = MASKED  # whatever it lacks, a few layers read in one call

    def __init__(self, model: Model, target: CachedModel):
        super().__init__(model)
        self._target = target
        target.states_of = model.target_states
        self._state: Any = None  # [B, 1, D], the last column of the last call

    def admit(self, batch_size: int, indices: Sequence[int], prompts: TokenLists) -> list[int]:
        encoded, mask = self._target.cache.encoded(indices)
        self._insert(batch_size, indices, self._full_model.attend_to(encoded, mask))
        return [0] * len(indices)

    def begin(self, contexts: TokenLists, prefix_sizes: Sequence[int]) -> mx.array:
        tokens, positions = missing_tokens(contexts, self.cache.lengths, self.config)
        self._num_read = tokens.shape[1]
        # Prefixes are read without states, as in training; a token that the target has not read either follows on none.
        in_text = positions >= np.array(prefix_sizes)[:, None]
        self._state = self._target.cache.states(np.where(in_text, positions - 1, -1))
        return self.feed(mx.array(tokens), positions)

    def feed(self, tokens: mx.array, positions: np.ndarray) -> mx.array:
        self.cache.previous = self._state
        self._state = self.model.states(tokens, positions, self.cache)[:, -1:]
        return self.model.logits(self._state)[:, -1]

    def seen(self, b: int, tokens: Sequence[int]) -> Seen:
        cache = self._target.cache
        encoded, mask = cache.encoded([b])
        states = cache.states(np.tile(np.arange(len(tokens)), (len(cache.position), 1)))
        seen = encoded[0][mx.array(np.flatnonzero(mask))], states[b]
        mx.eval(seen)
        return seen

    def keep(self, n: np.ndarray) -> None:
        super().keep(np.zeros_like(n))

    def missing_of(self, prompt: Sequence[int]) -> int:
        return 1  # however long it is, the encoder has read it
