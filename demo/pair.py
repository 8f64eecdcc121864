"""The embedded pairs as models to load: converted on first use to mlx_models/ in the current folder."""

from pathlib import Path

import mlx.core as mx

from checkpoints.folder import MODELS, WEIGHTS
from common.reporting import reporter
from families.conversion import convert

DEMO = Path(__file__).resolve().parent


def usual_dtype() -> str:
    """16 bits on a GPU, where nobody decodes in more; float32 on a processor, where MLX is slow in 16 bits. Not float16,
    in which T5 overflows."""
    return "bfloat16" if mx.default_device() == mx.gpu else "float32"


def demo_model(role: str) -> Path:
    """The converted folder of the embedded `role` ("target" or "draft", or either after "speech/"). It is converted
    on first use, and again if the embedded model is newer."""
    source, output = DEMO / role, MODELS / f"demo-{role.replace('/', '-')}"
    converted = output / WEIGHTS
    newest = max(file.stat().st_mtime for file in source.iterdir())
    stale = converted.exists() and converted.stat().st_mtime < newest
    if stale or not converted.exists():
        reporter.note(f"converting the demo {role} model to {output}")
        convert(str(source), output, dtype=usual_dtype(), force=stale, exist_ok=not stale)
    return output
