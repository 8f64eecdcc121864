"""mlx-lm's ways to decode the decoder-only demo pair, for docs/tools/baselines.py to compare with. Needs mlx-lm."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm.generate import batch_generate, generate_step, speculative_generate_step
from mlx_lm.utils import load_tokenizer

from demo.pair import DEMO
from docs.tools.other_way import OtherWay, TokenPrompts, until_end
from speculative.models.causal import CausalModel


def mlx_lm_ways(
    target: CausalModel,
    draft: CausalModel,
    max_tokens: int,
    batch_sizes: Sequence[int],
    lengths: Sequence[int],
) -> dict[str, OtherWay]:
    """Name -> a way of mlx-lm to decode with a pair of its models; lengths: of drafts."""
    ends = target.config.eos_token_ids
    tokenizer = load_tokenizer(DEMO / "causal-target")

    def one_by_one(prompts: TokenPrompts, step: Callable, **settings) -> list[list[int]]:
        texts = []
        for prompt in prompts:
            steps = step(mx.array(prompt), target.model, max_tokens=max_tokens, **settings)
            texts.append(until_end((int(token) for token, *_ in steps), ends))
        return texts

    def batch(prompts: TokenPrompts, size: int) -> list[list[int]]:
        settings: Any = dict(completion_batch_size=size, prefill_batch_size=size)
        settings |= dict(max_tokens=max_tokens, return_token_ids=True)
        response: Any = batch_generate(target.model, tokenizer, list(prompts), **settings)
        # mlx-lm leaves out the end token
        return [[*tokens, ends[0]][:max_tokens] for tokens in response.token_ids]

    ways: dict[str, OtherWay] = {"mlx-lm, generate_step": partial(one_by_one, step=generate_step)}
    drafting = partial(one_by_one, step=speculative_generate_step, draft_model=draft.model)
    for k in lengths:
        name = f"mlx-lm, speculative_generate_step, {k} drafted"
        ways[name] = partial(drafting, num_draft_tokens=k)
    for size in batch_sizes:
        if size > 1:
            ways[f"mlx-lm, batch_generate, batch {size}"] = partial(batch, size=size)
    return ways
