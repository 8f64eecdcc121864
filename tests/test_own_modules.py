"""A user's modules of our names are named, and not taken for ours."""

import subprocess
import sys

import pytest
from helpers.programs import ROOT

from own_modules import NAMES


def imported(names: str, folder) -> subprocess.CompletedProcess:
    """A program beside the folder's modules, which come before ours. It prints the modules that it has at its end."""
    code = f"import sys; sys.path.append({str(ROOT)!r}); import {names}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_the_names_are_those_that_decoder_imports(tmp_path):
    """Others, such as main.py, do not matter."""
    (tmp_path / "main.py").touch()
    (tmp_path / "documents.py").touch()
    ours = {path.name.removesuffix(".py") for path in ROOT.iterdir()}
    loaded = {*imported("decoder", tmp_path).stdout.split()} & ours
    assert loaded == {*NAMES, "decoder", "own_modules"}


@pytest.mark.parametrize("begin", ["decoder", "speech.audio", "documents", "{0}, decoder"])
@pytest.mark.parametrize("name", NAMES)
def test_the_users_file_is_named(name, begin, tmp_path):
    """Where it is first in the path, and where it is imported already."""
    file = (
        tmp_path / name / "__init__.py" if name in ("text", "errors") else tmp_path / f"{name}.py"
    )
    file.parent.mkdir(exist_ok=True)
    file.touch()
    *_, line = imported(begin.format(name), tmp_path).stderr.splitlines()
    assert line.startswith(f"ImportError: Python takes {file} for this project's module '{name}': ")
