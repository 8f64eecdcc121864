"""The gain from drafts on Apple's chips (docs/distilling.md), computed from published costs, not measured.

python -m docs.tools.metal_speed
"""

from collections.abc import Callable

import numpy as np

# Tokens a call with 4 and 8 drafted, of the draft model distilled from 6,000 texts
KINDS = {
    "numbers": (3.6, 5.1),
    "sentences": (4.4, 7.0),
    "corrections": (4.4, 7.3),
    "paragraphs": (4.1, 6.0),
}
# The same of the draft model that a job with --distill had made after so many sentences; its training took as long as plain
# decoding of so many (docs/distilling.md, 3,000 sentences)
LEARNED = (4.0, 6.0)
BEFORE = 300
TRAINING = 154
JOBS = (1000, 3000, 10_000)
DRAFTED = 0.04  # plain steps that a drafted token takes
# A call in plain steps, by how many tokens it reads
CHIPS = {
    "M1 Ultra (antirez/ds4#846)": {1: 1, 2: 1.51, 9: 3.57},
    "M1, M2, 16 bits; all, float32 (mlx#4265)": {1: 1, 2: 1.99, 16: 2.00},
    "the same, small layers (mlx#3661)": {1: 1, 2: 2.9, 16: 2.9},
    "M3 Ultra, 4 bits (mlx#4265)": {1: 1, 4: 1.0, 6: 1.28, 8: 1.57, 9: 1.72},
    "M4 Pro, 4 bits (mlx#3839)": {1: 1, 2: 1.03, 3: 1.22, 4: 1.47, 6: 2.07, 8: 2.69, 9: 3.0},
    "M5 Max, 70B in 4 bits (mlx#3791)": {1: 1, 3: 1.11, 5: 1.42, 8: 2.20, 9: 2.46},
}


def gain(per_call: tuple[float, float], costs: dict[int, float]) -> float:
    """Times plain decoding, of 4 and 8 drafted the faster."""
    read = np.interp([1 + 4, 1 + 8], list(costs), list(costs.values()))
    return max(np.array(per_call) / (read + DRAFTED * np.array([4, 8])))


def job(size: int, costs: dict[int, float]) -> float:
    """Times plain decoding, of a whole job that begins plain."""
    return size / (BEFORE + TRAINING + (size - BEFORE) / gain(LEARNED, costs))


def table(titles: list[str], gains: Callable[[dict[int, float]], list[float]]) -> str:
    """In Markdown, a line for each chip."""
    lines = f"| | {' | '.join(titles)} |\n|{'---|' * (1 + len(titles))}\n"
    for chip, costs in CHIPS.items():
        lines += f"| {chip} | {' | '.join(f'{x:.1f}' for x in gains(costs))} |\n"
    return lines


if __name__ == "__main__":
    print(table(list(KINDS), lambda costs: [gain(each, costs) for each in KINDS.values()]))
    print(table(list(map(str, JOBS)), lambda costs: [job(n, costs) for n in JOBS]), end="")
