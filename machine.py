"""The machine that models run on: what it is, its wired memory, and what steps took on it in earlier runs."""

import hashlib
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

import blas
from speculative.estimates import LENGTHS
from speculative.options import Options
from speculative.schedule import Costs

SWITCH = "SPECULATIVE_CACHE"  # 0: nothing is kept between runs; a path: the folder to keep it in
AGAIN = 60  # seconds until what has been kept is written anew, unless something new is known


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


@contextmanager
def wired_memory() -> Iterator[None]:
    """On a Mac's GPU: as much memory as the system recommends is not paged out meanwhile, as mlx-lm has it."""
    most = mx.device_info().get("max_recommended_working_set_size")
    if most is None:
        yield
        return
    before = mx.set_wired_limit(int(most))
    try:
        yield
    finally:
        mx.synchronize()
        mx.set_wired_limit(before)


# ---------------------------------------------------------------------------------------------
# What steps took


def folder() -> Path | None:
    """Where costs are kept; None: nowhere."""
    choice = os.environ.get(SWITCH, "")
    if choice:
        return None if choice == "0" else Path(choice)
    try:
        home = Path.home()
    except RuntimeError:
        return None
    caches = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    if platform.system() == "Darwin":
        caches = home / "Library/Caches"
    return Path(caches) / "speculative-decoding"


class KeptCosts:
    """A file with what the steps of these models took on this machine. What cannot be read or written is not
    there: keeping costs is never in the way. Processes that share a target keep nothing, as each would
    have costs of its own."""

    def __init__(self, target: object, draft: object | None, options: Options):
        how = {name for name, value in options.distribution.items() if value}
        rule = options.rule if isinstance(options.rule, str) else "own"
        what = {
            "target": _weights_of(target),
            "draft": _weights_of(draft),
            "sampling": sorted(how | {rule}) if options.temp else None,
            "lookup": options.lookup,
        }
        self._of = json.loads(json.dumps(describe() | what))
        name = hashlib.sha256(json.dumps(self._of, sort_keys=True).encode()).hexdigest()[:32]
        alone = getattr(getattr(target, "ranks", None), "size", 1) == 1
        inside = folder() if alone else None
        self._path = inside / f"{name}.json" if inside else None
        self._written, self._known = -math.inf, set[tuple]()

    def load(self) -> Costs | None:
        if self._path is None:
            return None
        try:
            kept = json.loads(self._path.read_bytes())
            return _checked(kept["costs"]) if kept["of"] == self._of else None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def save(self, costs: Costs | None) -> None:
        """Keep these, unless much the same has just been kept."""
        if self._path is None or costs is None:
            return
        known = {(rows, k) for rows, both in costs.steps.items() for steps in both for k in steps}
        if known == self._known and time.monotonic() < self._written + AGAIN:
            return
        self._known, self._written = known, time.monotonic()
        steps = {str(rows): both for rows, both in costs.steps.items()}
        text = json.dumps({"of": self._of, "costs": {"steps": steps, "reading": costs.reading}})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            own = self._path.with_suffix(f".{os.getpid()}")
            own.write_text(text)
            own.replace(self._path)
        except OSError:
            pass


def _checked(kept: Mapping) -> Costs:
    """ValueError and its kin for what are no costs."""
    steps = {int(rows): (_seconds(a), _seconds(b)) for rows, (a, b) in kept["steps"].items()}
    reading = None if kept["reading"] is None else _positive(kept["reading"])
    if not steps or not all(
        rows > 0 and (without or any(with_model)) for rows, (without, with_model) in steps.items()
    ):
        raise ValueError("nothing to go by")
    return Costs(steps, reading)


def _seconds(kept: Mapping) -> dict[int, float]:
    found = {int(length): _positive(seconds) for length, seconds in kept.items()}
    if not all(0 <= length <= LENGTHS[-1] for length in found):
        raise ValueError("no number of drafted tokens")
    return found


def _positive(number: float) -> float:
    if not 0 < float(number) < math.inf:
        raise ValueError(f"{number} is not a time")
    return float(number)


def _weights_of(model: object) -> str | None:
    """A name for what a model's steps cost by: its class, and its weights' names, shapes and types."""
    if not hasattr(model, "parameters"):
        return None
    weights = dict(tree_flatten(model.parameters()))
    shapes = sorted((name, weight.shape, str(weight.dtype)) for name, weight in weights.items())
    return hashlib.sha256(repr((type(model).__name__, shapes)).encode()).hexdigest()
