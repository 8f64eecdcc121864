"""The table of acceptance rules: tokens per target call when sampling. benchmark.py prints it."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.measure import decoder, table
from decoder import Stats
from speculative.options import RULES

BATCH_SIZE = 32
NUM_DRAFT = 5
TEMPS = (0.3, 0.7, 1.0, 1.5, 2.0)


def compare_rules(
    target: Any,
    draft: Any,
    prompts: Sequence[str],
    others: dict[str, Callable[[float], float]],
    max_tokens: int,
) -> None:
    """Tokens per target call by temperature, under our rules and what others have."""
    models, how = decoder(target, draft), dict(num_draft=NUM_DRAFT, lookup=False)

    def tokens_per_call(rule: str, temp: float) -> float:
        sampled = dict(temp=temp, acceptance=rule, max_tokens=max_tokens)
        found = models.batch_generate(prompts, BATCH_SIZE, **how, **sampled)
        return sum((response.stats for response in found), Stats()).tokens_per_call

    lines = [[rule, *(f"{tokens_per_call(rule, t):.2f}" for t in TEMPS)] for rule in RULES]
    lines += [[name, *(f"{theirs(t):.2f}" for t in TEMPS)] for name, theirs in others.items()]
    print(f"Tokens per target call, {len(prompts)} prompts, {NUM_DRAFT} tokens drafted:\n")
    table(["rule", *(f"temp {t}" for t in TEMPS)], lines)
