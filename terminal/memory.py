"""Whether the models that a command has loaded fit in memory."""

import sys

import mlx.core as mx


def report_memory() -> None:
    """Say on stderr if the loaded models need nearly all the memory that macOS recommends for the GPU: 0.9, as in
    mlx-lm."""
    most = int(mx.device_info().get("max_recommended_working_set_size") or 0)
    used = mx.get_active_memory()
    if 0 < 0.9 * most < used:
        print(
            f"the models take {used / 1e9:.1f} GB, and macOS recommends {most / 1e9:.1f} GB at most for the GPU: "
            "decoding may be slow; convert them with --quantize, or use smaller ones",
            file=sys.stderr,
        )
