"""The report of a measurement: it is printed as tables and returned as data."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from apps.benchmarks.measuring import Setting, WayRun
from speculative.step.timing import CallTimes

# Column -> digits. "low", "high": quartiles of the turns. "ratio": to plain decoding with the first batch size; "steps": the
# same without the time for reading prompts.
COLUMNS = {"tokens/s": 1, "low": 1, "high": 1, "ratio": 2, "steps": 2}
COLUMNS |= {"acceptance": 2, "tokens per call": 2}


def costs(times: CallTimes) -> dict[str, Any]:
    """Print the costs of calls in plain steps, and return them."""
    step = times[1]
    calls = {width: times[width] / step for width in times.widths}
    costs = {"step_ms": 1e3 * step, "verify_cost": calls}
    verify = ", ".join(f"{n}: {cost:.2f}" for n, cost in calls.items())
    print(f"A step takes {1e3 * step:.1f} ms. A target call by its tokens, in steps: {verify}.")
    if times.draft:
        costs["draft_cost"] = times["draft"] / step
        print(f"A token of the draft model costs {costs['draft_cost']:.3f} steps.")
    print()
    return costs


def compare(runs: Mapping[Any, WayRun]) -> dict[str, Any]:
    """Print the table of all ways, the first of which is plain decoding; return the figures as data."""
    (first, plain), *_ = runs.items()
    lines = {str(name): figures(name, run, plain) for name, run in runs.items()}
    table(lines)
    different = {}
    for name, run in runs.items():
        pairs = zip(run.rows, plain.rows, strict=True)
        count = sum(a.generated != b.generated for a, b in pairs)
        if count:
            different[str(name)] = count
    print(f"\nTexts other than those of {first}: {different or 'none'}.")
    data = [{"decoding": name} | line for name, line in lines.items()]
    return {"runs": data, "other texts": different}


def figures(name: Setting | str, run: WayRun, plain: WayRun) -> dict[str, float]:
    """Column -> figure of a way. name: a text for another library's, which has no figures of steps."""
    low, high = np.quantile(np.divide(run.tokens, run.seconds), (0.25, 0.75)).tolist()
    line = {"tokens/s": run.rate, "low": low, "high": high, "ratio": run.rate / plain.rate}
    if isinstance(name, str):
        return line
    stats = run.stats
    line["steps"] = stats.tokens_per_second / plain.stats.tokens_per_second
    line["tokens per call"] = stats.tokens_per_call
    if name.drafter:
        line["acceptance"] = stats.acceptance
    return line


def table(lines: Mapping[str, Mapping[str, float]]) -> None:
    rows = [["decoding", *COLUMNS]]
    for name, line in lines.items():
        rows.append([name, *(f"{line[c]:.{n}f}" if c in line else "" for c, n in COLUMNS.items())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in (rows[0], ["-" * width for width in widths], *rows[1:]):
        print("| " + " | ".join(map(str.ljust, row, widths)) + " |")
