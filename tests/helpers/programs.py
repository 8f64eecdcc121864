"""The programs as a user starts them, and what the embedded pair answers."""

import io
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from terminal import cli

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "demo"
PROMPT = "translate number to German: 1284"
ANSWER = "eintausendzweihundertvierundachtzig"


def run(*arguments, cwd: Path, script: str = "main.py", **kwargs) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / script, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, **kwargs)


def call(
    *arguments, cwd: Path, script: str = "main.py", input: str = "", encoding: str = "utf-8"
) -> subprocess.CompletedProcess:
    """The same in this process, without the second that starting one takes: for what is not about that."""
    program, argv = import_module(script.removesuffix(".py")), [script, *map(str, arguments)]
    streams = {
        name: io.TextIOWrapper(io.BytesIO(content), encoding)
        for name, content in (("stdin", input.encode()), ("stdout", b""), ("stderr", b""))
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        patch.setattr(sys, "argv", argv)
        for name, stream in streams.items():
            patch.setattr(sys, name, stream)
        try:
            cli.run(program.main)
        except SystemExit as stopped:
            code = stopped.code
        else:
            code = 0
    for stream in streams.values():
        stream.flush()
    stdout, stderr = (
        streams[name].buffer.getvalue().decode(encoding) for name in ("stdout", "stderr")
    )
    return subprocess.CompletedProcess(argv, code, stdout, stderr)
