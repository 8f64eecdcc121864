"""The programs as a user starts them, and what the embedded pair answers."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "demo"
PROMPT = "translate number to German: 1284"
ANSWER = "eintausendzweihundertvierundachtzig"


def run(*arguments, cwd: Path, script: str = "main.py", **kwargs) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / script, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, **kwargs)
