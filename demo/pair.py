"""The embedded pairs as models to load: converted on first use to mlx_models/ in the current folder."""

from pathlib import Path

import mlx.core as mx

from checkpoints.folder import MODELS, WEIGHTS, is_outdated
from common.reporting import reporter
from families.conversion import convert

DEMO = Path(__file__).resolve().parent


def default_dtype() -> str:
    """16 bits on a GPU, but not float16, in which T5 overflows; float32 on a processor, where MLX is slow in 16 bits."""
    return "bfloat16" if mx.default_device() == mx.gpu else "float32"


def demo_model(role: str) -> Path:
    """The converted folder of the embedded `role`: "target" or "draft", or either after "speech/"."""
    output = MODELS / f"demo-{role.replace('/', '-')}"
    if not (output / WEIGHTS).exists() or is_outdated(output):
        reporter.note(f"converting the demo {role} model to {output}")
        convert(str(DEMO / role), output, dtype=default_dtype(), exist_ok=True)
    return output
