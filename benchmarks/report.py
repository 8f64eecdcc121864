"""The report of benchmark.py: the machine, the models, and the figures of each way."""

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten

from benchmarks.measure import WayRun
from common import blas
from families.ram import installed
from speculative.timing import CallTimes

PACKAGES = ("mlx", "mlx-lm", "numpy", "transformers", "tokenizers")
# Column -> digits. "low", "high": quartiles of the turns. "ratio": to plain decoding with the first batch size; "steps": the
# same without the time for reading prompts. "of oracle": share of the oracle's speed.
COLUMNS = {"tokens/s": 1, "low": 1, "high": 1, "ratio": 2, "steps": 2, "of oracle": 2}
COLUMNS |= {"acceptance": 2, "tokens per call": 2}


class Setting(NamedTuple):
    """One of our ways to decode."""

    drafter: str  # "": plain decoding
    num_draft: int | str
    batch_size: int

    def __str__(self) -> str:
        name = f"{self.drafter}, num_draft {self.num_draft}" if self.drafter else "plain"
        return name if self.batch_size == 1 else f"{name}, batch {self.batch_size}"


def describe() -> dict[str, str | int]:
    """The hardware and software that a figure depends on."""
    info = mx.device_info()
    return {
        "processor": info.get("device_name", platform.processor()),
        "cores": os.cpu_count() or 1,
        "memory": f"{installed() / 1e9:.0f} GB",
        "system": platform.platform(),
        "device": f"{mx.default_device()}, {info.get('architecture', '?')}",
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES if find_spec(name.replace("-", "_"))},
        "blas": blas.loaded or Path(os.environ.get("LD_PRELOAD", "")).name or "of MLX",
        "threads": os.environ.get("OPENBLAS_NUM_THREADS", "default"),
    }


def sizes(target: Any, draft: Any | None, tokens: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """The prompts and the models' sizes; tokens: prompt -> its tokens."""
    length = sum(map(len, tokens.values())) / len(tokens)
    facts = {"prompts": f"{len(tokens)} of {length:.0f} tokens"}
    for role, model in {"target": target, "draft": draft}.items():
        if model:
            weights = dict(tree_flatten(model.parameters())).values()
            count = sum(w.size for w in weights)
            size = sum(w.nbytes for w in weights)
            types = ", ".join(sorted({str(w.dtype).removeprefix("mlx.core.") for w in weights}))
            facts[role] = f"{count / 1e6:.0f}M weights in {size / 1e9:.2f} GB, {types}"
    return facts


def costs(times: CallTimes) -> dict[str, Any]:
    """Print the costs of calls in plain steps, and return them."""
    step = times[1]
    costs: dict[str, Any] = {"step_ms": 1e3 * step}
    costs["verify_cost"] = {width: times[width] / step for width in times.widths}
    verify = ", ".join(f"{n}: {cost:.2f}" for n, cost in costs["verify_cost"].items())
    print(
        f"A step takes {costs['step_ms']:.1f} ms. A target call by its tokens, in steps: {verify}."
    )
    if times.has_draft:
        costs["draft_cost"] = times["draft"] / step
        print(f"A token of the draft model costs {costs['draft_cost']:.3f} steps.")
    print()
    return costs


def compare(runs: Mapping[Any, WayRun], oracle: float | None) -> dict[str, Any]:
    """Print the table of all ways, the first of which is plain decoding; return the figures as data."""
    (first, plain), *_ = runs.items()
    lines = {str(name): figures(name, run, plain, oracle) for name, run in runs.items()}
    data = [{"decoding": name} | line for name, line in lines.items()]
    if oracle:
        best = {"tokens/s": oracle, "ratio": oracle / plain.rate}
        lines = {"an oracle, one by one": best} | lines
    table(lines)
    different = {
        str(name): sum(a != b for a, b in zip(run.texts, plain.texts, strict=True))
        for name, run in runs.items()
        if run.texts != plain.texts
    }
    print(f"\nTexts other than those of {first}: {different or 'none'}.")
    return {"runs": data, "other texts": different}


def figures(
    name: Setting | str, run: WayRun, plain: WayRun, oracle: float | None
) -> dict[str, float]:
    """Column -> figure of a way; figures of steps only for our own ways."""
    low, high = run.quartiles
    line = {"tokens/s": run.rate, "low": low, "high": high, "ratio": run.rate / plain.rate}
    if isinstance(name, str):
        return line
    stats = run.stats
    line["steps"] = stats.tokens_per_second / plain.stats.tokens_per_second
    line["tokens per call"] = stats.tokens_per_call
    if name.drafter:
        line["acceptance"] = stats.acceptance
    if name.drafter == "model" and name.batch_size == 1 and oracle:
        line["of oracle"] = run.rate / oracle
    return line


def table(lines: Mapping[str, Mapping[str, float]]) -> None:
    """Print a Markdown table of ways and their figures."""
    rows = [["decoding", *COLUMNS]]
    for name, line in lines.items():
        rows.append([name, *(f"{line[c]:.{n}f}" if c in line else "" for c, n in COLUMNS.items())])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in (rows[0], ["-" * width for width in widths], *rows[1:]):
        print("| " + " | ".join(map(str.ljust, row, widths)) + " |")
