"""What all tests have: the environment, and the embedded pair."""

import gc
import os
import signal
from pathlib import Path

import pytest

# Modules and tests stay, so they are not searched for garbage again and again: while they are loaded, and afterwards.
gc.disable()

os.environ["HF_HUB_OFFLINE"] = "1"
# On a processor MLX compiles functions with g++, a second each.
os.environ["MLX_DISABLE_COMPILE"] = "1"
# Before torch and MLX are imported: the models are so small that threads only wait for each other.
for _library in ("OMP", "OPENBLAS", "BLIS"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")
from speculative.common import blas  # noqa: E402, F401 (before MLX)

# MLX's thread is woken for each operation. Where that interrupts the thread that asks for them, tests of small models
# take nearly twice the time.
if hasattr(os, "SCHED_BATCH"):
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

# Started in the background, a shell has interrupts ignored, and what is started from here as well.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def cpu():
    """For tests that compare bits or texts of quantized models, or count calls: a GPU rounds calls of one token and of
    several differently, and begins calls ahead. All others run on MLX's default device."""
    import mlx.core as mx

    device = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(device)


@pytest.fixture
def compiled():
    """As users have it."""
    import mlx.core as mx

    mx.enable_compile()
    yield
    mx.disable_compile()


@pytest.fixture(scope="session")
def demo_folders(tmp_path_factory) -> Path:
    """A folder that holds mlx_models/demo-target and mlx_models/demo-draft."""
    from helpers.programs import DEMO

    from speculative.models.conversion import convert

    folder = tmp_path_factory.mktemp("demo")
    for role in ("target", "draft"):
        output = folder / "mlx_models" / f"demo-{role}"
        convert(str(DEMO / role), output, dtype="float32")
    return folder


@pytest.fixture
def work(demo_folders, tmp_path) -> Path:
    """A working folder with the converted pair."""
    (tmp_path / "mlx_models").mkdir()
    for converted in (demo_folders / "mlx_models").iterdir():
        (tmp_path / "mlx_models" / converted.name).symlink_to(converted)
    return tmp_path


@pytest.fixture(scope="session")
def demo_pair(demo_folders):
    """The embedded pair: target, tokenizer, draft model."""
    from decoder import load

    target, tokenizer = load(demo_folders / "mlx_models" / "demo-target")
    draft, _ = load(demo_folders / "mlx_models" / "demo-draft")
    return target, tokenizer, draft


@pytest.fixture(scope="module")
def decoder(demo_pair):
    from decoder import SpeculativeDecoder

    target, tokenizer, draft = demo_pair
    return SpeculativeDecoder(target, tokenizer, draft)


@pytest.fixture(scope="session")
def spm_models() -> dict[str, bytes]:
    from helpers.bart_tokenizers import train_models

    return train_models()


@pytest.fixture(scope="session")
def bart_folders(tmp_path_factory, spm_models) -> dict[str, tuple[Path, Path]]:
    """Tokenizers of BART's family, by name: the hub's folder, and what is made of it."""
    from helpers.bart_tokenizers import build

    return build(tmp_path_factory.mktemp("tokenizers"), spm_models)


@pytest.fixture
def admitted(monkeypatch):
    """The rows that were decoded."""
    from speculative.step.driver import Driver

    rows = []
    admit = Driver.admit
    monkeypatch.setattr(Driver, "admit", lambda self, new: rows.extend(new) or admit(self, new))
    return rows
