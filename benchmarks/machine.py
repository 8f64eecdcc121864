"""The hardware and software that a figure depends on."""

import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

import blas


def describe() -> dict[str, str | int]:
    """What a report says first."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "device": str(mx.default_device()),
        "mlx": version("mlx"),
        "blas": blas.loaded or Path(os.environ.get("LD_PRELOAD", "")).name or "of MLX",
        "threads": os.environ.get("OPENBLAS_NUM_THREADS", "default"),
    }


def _processor() -> str:
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    info = Path("/proc/cpuinfo")
    names = re.findall("model name.*: (.*)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.processor()
