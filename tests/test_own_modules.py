"""A user's modules of our names are named, and not taken for ours."""

import subprocess
import sys

import pytest
from helpers.programs import ROOT

from own_modules import NAMES


def python(code: str, folder) -> subprocess.CompletedProcess:
    """A program beside the folder's modules, which come before ours."""
    code = f"import sys; sys.path.append({str(ROOT)!r}); {code}"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_the_names_are_those_that_decoder_imports(tmp_path):
    """Others (main.py, documents/) do not matter."""
    for name in ("main.py", "demo.py", "documents.py"):
        (tmp_path / name).write_text("")
    done = python("old = {*sys.modules}; import decoder; print(*{*sys.modules} - old)", tmp_path)
    ours = {path.stem for path in ROOT.glob("*.py")}
    ours |= {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert {*done.stdout.split()} & ours - {"decoder", "own_modules"} == {*NAMES}


@pytest.mark.parametrize("begin", ["decoder", "speech.audio", "documents", "{0}, decoder"])
@pytest.mark.parametrize("name", NAMES)
def test_the_users_file_is_named(name, begin, tmp_path):
    """Where it is first in the path, and where it is imported already."""
    file = (
        tmp_path / name / "__init__.py" if name in ("text", "errors") else tmp_path / f"{name}.py"
    )
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    *_, line = python(f"import {begin.format(name)}", tmp_path).stderr.splitlines()
    expected = f"ImportError: Python takes {file} for this project's module '{name}': rename it, or"
    assert line.startswith(expected)
