"""mlx-lm on the arrays of the embedded decoder-only pair, for benchmark.py to compare with."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx

from families.causal import CausalModel

Prompts = Sequence[list[int]]


class MlxLm:
    """What mlx-lm has for a pair of its models."""

    def __init__(self, target: CausalModel, draft: CausalModel, max_tokens: int):
        self._target, self._draft, self._chat = target.model, draft.model, target.chat
        self._ends, self._most = target.config.eos_token_ids, max_tokens

    def ways(self, batch_sizes: Sequence[int], numbers: Sequence[int]) -> dict[str, Callable]:
        """By name; numbers: of drafted tokens."""
        found: dict[str, Callable] = {"mlx-lm, generate_step": self.plain}
        for k in numbers:
            name = f"mlx-lm, speculative_generate_step, {k} drafted"
            found[name] = lambda prompts, k=k: [self.speculative(p, k) for p in prompts]
        for size in batch_sizes:
            if size > 1:
                name = f"mlx-lm, batch_generate, batch {size}"
                found[name] = lambda prompts, size=size: self.batch(prompts, size)
        return found

    def plain(self, prompts: Prompts) -> list[list[int]]:
        from mlx_lm.generate import generate_step

        def steps(prompt: list[int]) -> Iterator[tuple]:
            return generate_step(mx.array(prompt), self._target, max_tokens=self._most)

        return [self._until_end(steps(prompt)) for prompt in prompts]

    def speculative(self, prompt: list[int], num_draft: int) -> list[int]:
        from mlx_lm.generate import speculative_generate_step

        steps = speculative_generate_step(
            mx.array(prompt),
            self._target,
            self._draft,
            num_draft_tokens=num_draft,
            max_tokens=self._most,
        )
        return self._until_end(steps)

    def batch(self, prompts: Prompts, size: int) -> list[list[int]]:
        from mlx_lm.generate import batch_generate

        how: Any = dict(max_tokens=self._most, completion_batch_size=size, prefill_batch_size=size)
        how |= dict(return_token_ids=True)
        found: Any = batch_generate(self._target, self._chat, list(prompts), **how)
        return [  # it leaves the end out
            tokens if len(tokens) == self._most else [*tokens, self._ends[0]]
            for tokens in found.token_ids or []
        ]

    def _until_end(self, steps: Iterator[tuple]) -> list[int]:
        """What its steps write, the end included."""
        tokens = []
        for token, *_ in steps:
            tokens.append(int(token))
            if tokens[-1] in self._ends:
                break
        return tokens
