"""What a user does is no traceback, and one line."""

import signal
import subprocess
import sys

import pytest
from helpers.programs import ROOT, call

INTERRUPT_TWICE = """
import atexit, os, signal
from terminal import interrupts
interrupts.expect()
from terminal import cli
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000): pass
atexit.register(interrupt)
cli.run(interrupt)
"""


def test_a_second_interrupt_while_exiting_is_no_traceback():
    command = [sys.executable, "-c", INTERRUPT_TWICE]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--prompt-file", "no\nsuch"], 1),
        (["-p", "x", "a\nb\u2028c"], 2),
    ],
)
def test_a_mistake_with_a_line_break_is_one_line(tmp_path, arguments, code):
    result = call(*arguments, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (code, "")
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("main.py: ")


def test_a_bad_line_of_a_file_whose_name_has_a_line_break_is_one_line(demo_folders, tmp_path):
    (tmp_path / "mlx_models").symlink_to(demo_folders / "mlx_models")
    (tmp_path / "a\nb.txt").write_text(" \n")
    result = call("--prompt-file", "a\nb.txt", cwd=tmp_path)
    assert result.stderr.splitlines() == [
        "a b.txt, line 1: the prompt is empty",
        "main.py: a b.txt: 1 of 1 lines have no prompt",
    ]
