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
            found[name] = lambda prompts, k=k: [self.speculative(p, k)[0] for p in prompts]
        for size in batch_sizes:
            if size > 1:
                name = f"mlx-lm, batch_generate, batch {size}"
                found[name] = lambda prompts, size=size: self.batch(prompts, size)
        return found

    def plain(self, prompts: Prompts) -> list[list[int]]:
        from mlx_lm.generate import generate_step

        def steps(prompt: list[int]) -> Iterator[tuple]:
            return generate_step(mx.array(prompt), self._target, max_tokens=self._most)

        return [self._until_end(steps(prompt))[0] for prompt in prompts]

    def speculative(
        self, prompt: list[int], num_draft: int, temp: float = 0.0
    ) -> tuple[list[int], int]:
        """Tokens, and calls of the target."""
        from mlx_lm.generate import speculative_generate_step
        from mlx_lm.sample_utils import make_sampler

        steps = speculative_generate_step(
            mx.array(prompt),
            self._target,
            self._draft,
            num_draft_tokens=num_draft,
            max_tokens=self._most,
            sampler=make_sampler(temp=temp),
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

    def sampled(self, prompts: Prompts, num_draft: int) -> Callable[[float], float]:
        """Tokens per target call of its speculative sampling, by temperature."""

        def tokens_per_call(temp: float) -> float:
            mx.random.seed(0)
            found = [self.speculative(prompt, num_draft, temp) for prompt in prompts]
            return sum(len(tokens) for tokens, _ in found) / sum(calls for _, calls in found)

        return tokens_per_call

    def _until_end(self, steps: Iterator[tuple]) -> tuple[list[int], int]:
        """What its steps write, the end included, and in how many calls of the target."""
        tokens, calls, waiting = [], 0, False
        for token, _, *drafted in steps:
            tokens.append(int(token))
            waiting = bool(drafted and drafted[0])  # for the call's own token
            calls += not waiting
            if tokens[-1] in self._ends:
                break
        return tokens, calls + waiting
