"""The machine that figures were measured on."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

import blas


def describe() -> dict[str, str | int]:
    """The hardware and software that a figure depends on."""
    return {
        "processor": _processor(),
        "cores": cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": str(mx.default_device()),
        "mlx": version("mlx"),
        "blas": blas.loaded or Path(os.environ.get("LD_PRELOAD", "")).name or "of MLX",
        "threads": os.environ.get("OPENBLAS_NUM_THREADS", "default"),
    }


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = info.read_text().splitlines()
    return next((ln.partition(":")[2].strip() for ln in lines if ln.startswith("model name")), "")
