"""The plots of benchmark.py, as PNG files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.measure import rounds_rate, tokens_per_call
from speculative.rounds import Row


def draw(folder: Path, report: Mapping, results: Mapping[object, Sequence[Row]]) -> None:
    """Draw into `folder` the speed-up by num_draft with what theory says, the histogram of accepted
    lengths, and the cost of a target call by number of tokens. results: by benchmark.Setting."""
    folder.mkdir(parents=True, exist_ok=True)
    _speed_up(folder / "speed_up.png", report, results)
    _accepted(folder / "accepted.png", results)
    _verify_cost(folder / "verify_cost.png", report["verify_cost"])


def _figure(path: Path, x: str, y: str):
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure, path: Path) -> None:
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _speed_up(path: Path, report: Mapping, results: Mapping) -> None:
    """Of the rounds, one prompt at a time."""
    figure, axes = _figure(path, "num_draft", "speed-up of the rounds")
    alone = {s: rows for s, rows in results.items() if s.batch_size == 1}
    plain = next(rows for s, rows in alone.items() if not s.drafter)
    costs = report["verify_cost"]
    for drafter in dict.fromkeys(s.drafter for s in alone if s.drafter):
        of_drafter = {s.num_draft: rows for s, rows in alone.items() if s.drafter == drafter}
        numbers = sorted(k for k in of_drafter if k != "auto")
        gained = {k: rounds_rate(rows) / rounds_rate(plain) for k, rows in of_drafter.items()}
        (drawn,) = axes.plot(numbers, [gained[k] for k in numbers], "o-", label=drafter)
        if "auto" in gained:
            axes.axhline(gained["auto"], ls=":", color=drawn.get_color(), label=f"{drafter}, auto")
        if 1 in of_drafter:
            share = tokens_per_call(of_drafter[1]) - 1
            draft_cost = report.get("draft_cost", 0.0) if drafter == "model" else 0.0
            theory = [
                sum(share**i for i in range(k + 1))
                / (k * draft_cost + np.interp(k + 1, list(costs), list(costs.values())))
                for k in numbers
            ]
            axes.plot(numbers, theory, "--", color=drawn.get_color(), label=f"{drafter}, theory")
    axes.axhline(1, color="black", lw=0.8)
    axes.legend()
    _save(figure, path)


def _accepted(path: Path, results: Mapping) -> None:
    figure, axes = _figure(path, "drafted tokens accepted in a round", "share of the rounds")
    longest: dict[str, tuple] = {}
    for setting, rows in results.items():
        if setting.drafter and setting.num_draft != "auto" and setting.batch_size == 1:
            longest[setting.drafter] = max(
                longest.get(setting.drafter, (0, None)),
                (setting.num_draft, rows),
                key=lambda x: x[0],
            )
    width = 0.8 / max(1, len(longest))
    for i, (drafter, (num_draft, rows)) in enumerate(longest.items()):
        counts = sum(
            (row.stats.accepted_lengths for row in rows),
            start=type(rows[0].stats.accepted_lengths)(),
        )
        lengths = np.arange(max(counts) + 1)
        shares = np.array([counts[int(n)] for n in lengths]) / sum(counts.values())
        axes.bar(lengths + i * width, shares, width, label=f"{drafter}, num_draft {num_draft}")
    axes.legend()
    _save(figure, path)


def _verify_cost(path: Path, costs: Mapping[int, float]) -> None:
    figure, axes = _figure(path, "tokens in a target call", "cost in steps of one token")
    axes.plot(list(costs), list(costs.values()), "o-")
    axes.set_ylim(bottom=0)
    _save(figure, path)
