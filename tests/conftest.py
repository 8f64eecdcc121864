"""Fixtures: converted checkpoints, the embedded pair, the shared real tokenizer."""

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))
