"""What `benchmark.py` reports: the models and the machine's limits in words, and the figures of each way."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mlx.utils import tree_flatten

from benchmarks.limits import Costs
from benchmarks.measure import Run, tokens_of, total
from decoder import Stats
from speculative.cached_model import Model

LIMITS = {
    "read": "A plain read of the memory by all cores",
    "largest": "A chain of the largest products of one row",
    "products": "A chain of the step's products",
}


@dataclass(frozen=True)
class Setting:
    """A way of ours to decode."""

    drafter: str  # "": plain decoding
    num_draft: int | str
    batch_size: int

    def __str__(self) -> str:
        name = f"{self.drafter}, num_draft {self.num_draft}" if self.drafter else "plain"
        return name if self.batch_size == 1 else f"{name}, batch {self.batch_size}"


def description(target: Model, draft: Model | None, prompts: Sequence[list[int]]) -> dict:
    def size(model: Any) -> str:
        weights = dict(tree_flatten(model.parameters())).values()
        types = sorted({str(weight.dtype).removeprefix("mlx.core.") for weight in weights})
        return (
            f"{sum(w.size for w in weights) / 1e6:.0f}M weights in "
            f"{sum(w.nbytes for w in weights) / 1e9:.2f} GB, {', '.join(types)}"
        )

    tokens = sum(map(len, prompts)) / len(prompts)
    about = {"prompts": f"{len(prompts)} of {tokens:.0f} tokens", "target": size(target)}
    return about | ({"draft": size(draft)} if draft else {})


def limits(costs: Costs, has_draft: bool) -> dict:
    """What the machine allows, and what the models cost on it."""
    step = costs.gb_per_second(1)
    speeds = {name: costs.gb_per_second(name) for name in LIMITS}
    found = {
        "step_gb": costs.step_bytes / 1e9,
        "step_ms": 1e3 * costs[1],
        "step_gb_s": step,
        "limits_gb_s": speeds,
        "share_of_limits": {name: step / speed for name, speed in speeds.items()},
        "late_to_early": costs[f"at {Costs.LATE}"] / costs[f"at {Costs.EARLY}"],
        "verify_cost": {width: costs[width] / costs[1] for width in costs.widths},
    }
    if has_draft:
        found["draft_cost"] = costs["draft"] / costs[1]
    return found


def explain(report: dict) -> None:
    """Print the limits in words."""
    print(
        f"A step reads {report['step_gb']:.2f} GB of weights in {report['step_ms']:.1f} ms: "
        f"{report['step_gb_s']:.1f} GB/s. Token {Costs.LATE} costs {report['late_to_early']:.2f} times token "
        f"{Costs.EARLY}."
    )
    for name, what in LIMITS.items():
        speed, share = report["limits_gb_s"][name], report["share_of_limits"][name]
        print(f"{what} reaches {speed:.1f} GB/s; the step {share:.0%} of it.")
    verify = ", ".join(f"{n}: {cost:.2f}" for n, cost in report["verify_cost"].items())
    print(f"A target call by number of tokens, in steps: {verify}.")
    if "draft_cost" in report:
        print(f"A token of the draft model costs {report['draft_cost']:.3f} steps.")
    print()


def predicted(stats: Stats, report: dict, drafter: str) -> float:
    """The speed-up of steps that follows from the tokens per call and the costs."""
    drafted = stats.drafted_per_call
    verify = report["verify_cost"]
    checking = np.interp(drafted + 1, list(verify), list(verify.values()))
    drafting = drafted * report["draft_cost"] if drafter == "model" else 0.0
    return stats.tokens_per_call / (drafting + checking)


def figures(setting: Setting, run: Run, plain: Run, report: dict) -> dict[str, float]:
    """The figures of a way of ours."""
    stats, plainly = total(run.results), total(plain.results)
    found = of_any(run, plain) | {
        "tokens per call": stats.tokens_per_call,
        "reading, s": stats.encoding_seconds + stats.preparing_seconds,
        "steps, s": stats.seconds,
        "memory, GB": run.peak_memory,
    }
    if setting.drafter:
        found["acceptance"] = stats.acceptance
    if setting.batch_size == 1 and setting.drafter in ("model", "lookup"):
        found["steps"] = stats.tokens_per_second / plainly.tokens_per_second
        found["predicted"] = predicted(stats, report, setting.drafter)
    if setting.batch_size == 1 and setting.drafter == "model" and "oracle" in report:
        found["of oracle"] = run.rate / report["oracle"]
    return found


def of_any(run: Run, plain: Run) -> dict[str, float]:
    low, high = run.spread()
    ratio = run.rate / plain.rate
    return {"tokens/s": run.rate, "low": low, "high": high, "ratio": ratio}


# Column: the figure's key and form. "low" and "high" are the quartiles of the turns; "ratio" is to
# plain decoding in the first batch size, and so is "steps", which leaves out reading prompts; "of oracle"
# is the share of what an oracle would reach (see `oracle_rate`).
COLUMNS = {
    "tokens/s": ("tokens/s", ".1f"),
    "low": ("low", ".1f"),
    "high": ("high", ".1f"),
    "ratio": ("ratio", ".2f"),
    "steps": ("steps", ".2f"),
    "predicted": ("predicted", ".2f"),
    "of oracle": ("of oracle", ".2f"),
    "acceptance": ("acceptance", ".2f"),
    "tokens/call": ("tokens per call", ".2f"),
    "s reading": ("reading, s", ".2f"),
    "in steps": ("steps, s", ".2f"),
    "GB": ("memory, GB", ".2f"),
}


def cells(name: object, found: dict[str, float]) -> list[str]:
    forms = COLUMNS.values()
    return [str(name), *(format(found[key], form) if key in found else "" for key, form in forms)]


def different_texts(runs: dict[object, Run]) -> dict[str, int]:
    """How many texts are not those of the first way."""
    first, *others = runs.items()
    expected = [tokens_of(result) for result in first[1].results]
    counts = {
        str(name): sum(tokens_of(a) != b for a, b in zip(run.results, expected, strict=True))
        for name, run in others
    }
    return {name: count for name, count in counts.items() if count}
