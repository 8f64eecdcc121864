"""The decoder-only pair beside mlx-lm, on the same arrays: speed, and acceptance when sampling."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx

from benchmarks.measure import Run, Way, decoder, table, take_turns, tokens_of, total
from decoder import load
from demo.pair import DEMO
from demo.widen import widen_llama
from families.causal import CausalModel
from speculative.drafting import ModelDrafter

SIZES = ("llama-700m", "llama-60m")
BATCH_SIZE = 8
NUM_DRAFT = (2, 4)  # mlx-lm drafts 2 unless told otherwise
MAX_TOKENS = 64


def widened_causal_pair(sizes: Sequence[str]) -> tuple[CausalModel, CausalModel]:
    """The embedded decoder-only pair in these sizes and in float32, with what `load` gives a model."""
    pair = []
    for role, size in zip(("causal-target", "causal-draft"), sizes, strict=True):
        small, tokenizer = load(DEMO / role)
        c = small.config
        wide = CausalModel(
            widen_llama(small.model, size), c.eos_token_ids, c.pad_token_id, c.max_positions
        )
        wide.tokenizer, wide.chat = tokenizer, small.chat
        pair.append(wide)
    return pair[0], pair[1]


# ---------------------------------------------------------------------------------------------
# mlx-lm


def _until_end(steps: Iterator[tuple], ends: Sequence[int]) -> tuple[list[int], int]:
    """What mlx-lm's steps write, the end included, and in how many calls of the target."""
    tokens, calls, waiting = [], 0, False
    for token, _, *drafted in steps:
        tokens.append(int(token))
        waiting = bool(drafted and drafted[0])  # for the call's own token
        calls += not waiting
        if tokens[-1] in ends:
            break
    return tokens, calls + waiting


class MlxLm:
    """What mlx-lm has for a pair of its models."""

    def __init__(self, target: CausalModel, draft: CausalModel, max_tokens: int = MAX_TOKENS):
        self._target, self._draft, self._chat = target.model, draft.model, target.chat
        self._ends, self._most = target.config.eos_token_ids, max_tokens

    def plain(self, prompts: Sequence[list[int]]) -> list[list[int]]:
        from mlx_lm.generate import generate_step

        def steps(prompt):
            return generate_step(mx.array(prompt), self._target, max_tokens=self._most)

        return [_until_end(steps(prompt), self._ends)[0] for prompt in prompts]

    def speculative(self, prompt: list[int], num_draft: int, temp: float = 0.0):
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
        return _until_end(steps, self._ends)

    def drafting(self, num_draft: int) -> Way:
        return lambda prompts: [self.speculative(prompt, num_draft)[0] for prompt in prompts]

    def batch(self, prompts: Sequence[list[int]]) -> list[list[int]]:
        from mlx_lm.generate import batch_generate

        found: Any = batch_generate(
            self._target,
            self._chat,
            list(prompts),
            max_tokens=self._most,
            return_token_ids=True,
        )
        return [  # it leaves the end out
            tokens if len(tokens) == self._most else [*tokens, self._ends[0]]
            for tokens in found.token_ids or []
        ]


# ---------------------------------------------------------------------------------------------
# Tables


def compare_speed(target: Any, draft: CausalModel, prompts: Sequence[list[int]]) -> None:
    """Tokens per second, reading prompts included, of ways that take turns; ratios to mlx-lm's plain one."""
    theirs, drafter = MlxLm(target, draft), ModelDrafter(draft)
    ways: dict[str, Way] = {"mlx-lm, generate_step": theirs.plain}
    for k in NUM_DRAFT:
        ways[f"mlx-lm, speculative_generate_step, {k} drafted"] = theirs.drafting(k)
    ways[f"mlx-lm, batch_generate, batch {BATCH_SIZE}"] = theirs.batch
    for size in (1, BATCH_SIZE):
        for k in (0, *NUM_DRAFT, "auto"):
            name = f"num_draft {k}" if k else "plain"
            ways[f"{name}, batch {size}"] = decoder(target, drafter, k, size, max_tokens=MAX_TOKENS)
    runs = take_turns(ways, prompts, per_turn=BATCH_SIZE)
    first, *_ = runs.values()
    expected = [tokens_of(result) for result in first.results]
    header = ["decoding", "tokens/s", "low", "high", "ratio", "tokens per call", "same text"]
    table(header, [_cells(name, run, first, expected) for name, run in runs.items()])


def _cells(name: str, run: Run, first: Run, expected: list[list[int]]) -> list[str]:
    ours = not name.startswith("mlx-lm")
    same = sum(tokens_of(a) == b for a, b in zip(run.results, expected, strict=True))
    return [
        name,
        *(f"{rate:.1f}" for rate in (run.rate, *run.spread())),
        f"{run.rate / first.rate:.2f}",
        f"{total(run.results).tokens_per_call:.2f}" if ours else "",
        f"{same} of {len(expected)}",
    ]


def sampled_by_mlx_lm(
    target: CausalModel, draft: CausalModel, prompts: Sequence[list[int]], num_draft: int
) -> Callable[[float], float]:
    """Tokens per target call of its speculative sampling, by temperature."""
    theirs = MlxLm(target, draft)

    def tokens_per_call(temp: float) -> float:
        mx.random.seed(0)
        found: list[Any] = [theirs.speculative(prompt, num_draft, temp) for prompt in prompts]
        return sum(len(tokens) for tokens, _ in found) / sum(calls for _, calls in found)

    return tokens_per_call
