"""The programs as a user starts them, and what the embedded pair answers."""

import io
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from apps.cli import cli

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "demo"
PROMPT = "translate number to German: 1284"
ANSWER = "eintausendzweihundertvierundachtzig"


def run(*arguments, cwd: Path, script: str = "main.py", **kwargs) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / script, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, **kwargs)


def call(
    *arguments, cwd: Path, script: str = "main.py", terminal: int | None = None, typed: str = ""
) -> subprocess.CompletedProcess:
    """The same in this process, which has all the modules already: for what is not about the process.

    terminal: the file that stderr is, whose text is then not in the result.
    typed: what stdin holds.
    """
    program, argv = import_module(script.removesuffix(".py")), [script, *map(str, arguments)]
    stdin = io.TextIOWrapper(io.BytesIO(typed.encode()), "utf-8")
    stdout, stderr = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    shown = stderr if terminal is None else os.fdopen(os.dup(terminal), "w")
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        for name, value in dict(argv=argv, stdin=stdin, stdout=stdout, stderr=shown).items():
            patch.setattr(sys, name, value)
        try:
            cli.run(program.main)
        except SystemExit as stopped:
            code = stopped.code
    shown.flush()
    stdout.flush()
    printed, errors = (stream.buffer.getvalue().decode() for stream in (stdout, stderr))
    return subprocess.CompletedProcess(argv, code, printed, errors)
