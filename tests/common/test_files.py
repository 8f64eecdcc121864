"""Files and folders appear whole or not at all, and a journal gives back what it was given."""

import errno
import math
from contextlib import closing
from pathlib import Path

import pytest

from speculative.common.errors import InputError
from speculative.common.files import Journal, hidden, replacing


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


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path):
    (tmp_path / "inner").mkdir()
    target, link = tmp_path / "inner/out", tmp_path / "link"
    link.symlink_to(target)
    for text in ("new", "newer"):  # at first, nothing is there
        with replacing(link) as partial:
            partial.write_text(text)
        assert link.is_symlink() and target.read_text() == text
    with closing(Journal(link)), pytest.raises(InputError, match="another run is writing it"):
        Journal(target)


def test_what_appeared_meanwhile_is_the_users(tmp_path):
    path = tmp_path / "out"
    with pytest.raises(InputError, match="already exists"), replacing(path, False) as partial:
        partial.write_text("ours")
        path.write_text("mine")
    assert path.read_text() == "mine" and [*tmp_path.iterdir()] == [path]
    with replacing(path, False) as partial:  # as after an interruption
        partial.write_text("mine")


def test_a_journal_gives_each_whole_entry_once(tmp_path):
    output = tmp_path / "out"
    path = hidden(output, "journal")
    Journal(output).close()
    assert not path.exists()
    entries = [["a", 1], ["a", "zwei\n"], ["b", {"c": [None, -math.inf]}]]
    with closing(Journal(output)) as journal:
        assert not journal.has_entries and journal.take("a") is None
        for entry in entries:
            journal.append(*entry)
        with pytest.raises(InputError, match="another run is writing it"):
            Journal(output)
    whole = path.read_bytes()
    with path.open("a") as file:
        file.write("b 1234")  # the last write was cut off
    for _ in range(2):
        with closing(Journal(output)) as journal:
            assert journal.has_entries
            assert [journal.take(key) for key, _ in entries] == [entry for _, entry in entries]
            assert journal.take("a") is journal.take("c") is None
        assert path.read_bytes() == whole
    path.write_bytes(whole.replace(b"zwei", b"drei").replace(b"b ", b"\xff\n"))
    with closing(Journal(output)) as journal:  # a damaged entry is none
        assert [journal.take(key) for key in "aab"] == [1, None, None]
