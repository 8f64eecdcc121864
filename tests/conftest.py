"""Fixtures shared by the test files."""

import os
import sys
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

DEMO = Path(__file__).parent.parent / "demo"


@pytest.fixture(scope="session")
def demo_folders(tmp_path_factory) -> Path:
    """A folder that holds mlx_models/demo-target and mlx_models/demo-draft."""
    from convert import convert

    folder = tmp_path_factory.mktemp("demo")
    for role in ("target", "draft"):
        output = folder / "mlx_models" / f"demo-{role}"
        convert(str(DEMO / role), output, dtype="float32")
    return folder


@pytest.fixture(scope="session")
def demo_pair(demo_folders):
    """The embedded pair: target, tokenizer, draft model."""
    from decoder import load

    target, tokenizer = load(demo_folders / "mlx_models" / "demo-target")
    draft, _ = load(demo_folders / "mlx_models" / "demo-draft")
    return target, tokenizer, draft
