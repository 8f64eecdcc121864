"""The checkpoint that tests convert."""

from pathlib import Path

import pytest
from helpers import checkpoints


@pytest.fixture
def folder(tmp_path) -> Path:
    """A random checkpoint that has the demo's tokenizer (and its vocabulary size)."""
    return checkpoints.make_folder(tmp_path / "checkpoint", "t5")
