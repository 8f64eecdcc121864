"""The smallest Mac for each pair: the table in docs/models.md, computed from the checkpoints' configs.

python -m docs.tools.memory_table
"""

import json
import tempfile
from pathlib import Path

from mlx.utils import tree_flatten

from speculative.models import sizes as memory
from speculative.models.conversion import skeleton

PAIRS = json.loads(Path(__file__).with_name("configs.json").read_text())
HEAD = """\
| for | target | draft model | licence | download, GB | memory, GB: 16, 8, 4 bits | Mac: 16, 8, 4 bits |
|---|---|---|---|---|---|---|
"""


def sizes(name: str) -> tuple[float, dict[int, int]]:
    """GB to download, of weights in the type of the config; bytes of memory by bits."""
    raw = PAIRS["configs"][name]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(raw))
        model, dtype = skeleton(Path(folder))
    count = sum(weight.size for _, weight in tree_flatten(model.parameters()))
    return count * (4 if raw["dtype"] == "float32" else 2) / 1e9, memory.needed(model, dtype)


def table() -> str:
    """The table in Markdown."""
    lines = HEAD
    for use, target, draft, licence in PAIRS["pairs"]:
        models = [sizes(name) for name in (target, draft) if name]
        needed = [sum(by_bits[bits] for _, by_bits in models) for bits in (16, 8, 4)]
        gb = ", ".join(f"{size / 1e9:.1f}" for size in needed)
        macs = ", ".join(memory.mac_for(size).removesuffix(" GB") for size in needed)
        pair = (
            f"`{target}` | {f'`{draft}`' if draft else '[made from it](distilling.md), `--lookup`'}"
        )
        download = f"{sum(size for size, _ in models):.1f}"
        lines += f"| {use} | {pair} | {licence} | {download} | {gb} | {macs} GB |\n"
    return lines


if __name__ == "__main__":
    print(table(), end="")
