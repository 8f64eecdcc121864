"""A user's modules of our names are named, and not taken for ours."""

import subprocess
import sys

import pytest
from helpers.programs import ROOT

from speculative.common.own_modules import NAMES


def imported(names: str, folder) -> subprocess.CompletedProcess:
    """A program beside the folder's modules, which come before ours. It prints the modules that it has at its end."""
    code = f"import sys; sys.path.append({str(ROOT)!r}); import {names}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_the_names_are_all_that_our_programs_import_of_ours(tmp_path):
    """Others, such as main.py, do not matter."""
    for name in ("main", "documents"):
        (tmp_path / f"{name}.py").touch()
    ours = {path.name.removesuffix(".py") for path in ROOT.iterdir()}
    loaded = {*imported("decoder, model, apps.documents", tmp_path).stdout.split()} & ours
    assert loaded == {*NAMES}


@pytest.mark.parametrize(
    ("begin", "name"),
    [
        (begin, name)
        for begin in ("decoder", "apps.documents")
        for name in NAMES
        if name not in begin
    ]
    + [("model, decoder", "model"), ("apps, decoder", "apps")],  # imported already
)
def test_the_users_file_is_named(begin, name, tmp_path):
    file = tmp_path / name / "__init__.py" if name == "model" else tmp_path / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.touch()
    *_, line = imported(begin, tmp_path).stderr.splitlines()
    if name == "speculative":  # ours has the check, and is not imported
        assert line.startswith("ImportError: cannot import name 'blas' from 'speculative'")
        assert str(file) in line
    else:
        told = f"ImportError: Python takes {file} for this project's module '{name}': "
        assert line.startswith(told)
