"""Files and folders appear whole or not at all, and a journal is for its key alone."""

import errno
from contextlib import closing
from pathlib import Path

import pytest

from common.errors import InputError
from common.files import Journal, hidden, replacing


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_what_fails_leaves_what_was_there(tmp_path, is_folder, error):
    path = tmp_path / ("x" * 255)
    inner = "inner" if is_folder else ""
    for text in ("old", "new"):
        there = [*tmp_path.rglob("*")]
        hidden(path, "partial").write_text("of a run that was killed")
        with pytest.raises(type(error)) as caught, replacing(path) as partial:
            fill(partial, inner, "half")
            raise error
        assert getattr(caught.value, "filename", str(path)) == str(path)
        assert [*tmp_path.rglob("*")] == there
        with replacing(path) as partial:
            fill(partial, inner, text)
        assert (path / inner).read_text() == text


def fill(partial: Path, inner: str, text: str) -> None:
    if inner:
        partial.unlink(missing_ok=True)
        partial.mkdir()
    (partial / inner).write_text(text)


def test_errors_about_other_files_keep_their_names(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "out"):
        (tmp_path / "source").read_text()
    assert caught.value.filename == str(tmp_path / "source")


def test_a_journal_is_for_its_key(tmp_path):
    output = tmp_path / "out"
    path = hidden(output, "journal")
    for kept in ([], [[1]], [[1], "zwei\n"]):
        with closing(Journal(output, "key")) as journal:
            assert journal.entries == kept
            with pytest.raises(InputError, match="another run is writing it"):
                Journal(output, "key", force=True)
            journal.append("zwei\n" if kept else [1])
        with path.open("a") as file:
            file.write('["cut off')
    before = path.read_bytes()
    with pytest.raises(InputError, match="with another model, input or options was interrupted"):
        Journal(output, "other")
    assert path.read_bytes() == before
    Journal(output, "other", force=True).close()
    assert not path.exists()  # nothing was finished
