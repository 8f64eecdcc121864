"""The gain from drafts on Apple's chips: the table in docs/distilling.md, computed from published costs, not measured.

python -m docs.tools.metal_speed
"""

import numpy as np

# Tokens a call with 4 and 8 drafted, of the draft model distilled from 6,000 texts
KINDS = {
    "numbers": (3.6, 5.1),
    "sentences": (4.4, 7.0),
    "corrections": (4.4, 7.3),
    "paragraphs": (4.1, 6.0),
}
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


def table() -> str:
    """In Markdown: times plain decoding, of 4 and 8 drafted the faster."""
    lines = f"| | {' | '.join(KINDS)} |\n|{'---|' * (1 + len(KINDS))}\n"
    for chip, costs in CHIPS.items():
        calls = np.interp([1 + 4, 1 + 8], list(costs), list(costs.values())) + DRAFTED * np.array(
            [4, 8]
        )
        gains = [f"{max(per_call / calls):.1f}" for per_call in map(np.array, KINDS.values())]
        lines += f"| {chip} | {' | '.join(gains)} |\n"
    return lines


if __name__ == "__main__":
    print(table(), end="")
