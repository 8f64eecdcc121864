"""The files that translate.py reads and writes, and going on where a run was interrupted."""

from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.translations import GERMAN, HAUS, KING, TEXT, files, in_folder

from apps.documents import translator
from apps.documents.files import output_of


@pytest.fixture
def run(demo_folders, tmp_path, monkeypatch):
    return in_folder(demo_folders, tmp_path, monkeypatch)


def test_a_document_appears_beside_its_source_and_is_not_replaced(run, tmp_path):
    result = run("a.txt", "--to", "German", "--verbose")
    assert result.returncode == 0 and result.stdout == "a.de.txt\n"
    assert result.stderr.splitlines()[0] == "translating from English (en); --from changes that"
    assert "2 outputs" in result.stderr  # each distinct sentence once
    assert (tmp_path / "a.de.txt").read_text() == TEXT and files(tmp_path) == ["a.de.txt", "a.txt"]
    (tmp_path / "a.de.txt").write_text("mine")
    result = run("a.txt", "--to", "de", "--num-beams", "2")
    assert (
        result.returncode == 1 and "a.de.txt already exists; --force replaces it" in result.stderr
    )
    assert (tmp_path / "a.de.txt").read_text() == "mine"
    assert run("a.txt", "--to", "deu", "--whole", "--force").returncode == 0
    assert (tmp_path / "a.de.txt").read_text() == TEXT  # the pair knows paragraphs too


@contextmanager
def interrupting(monkeypatch, admitted, rows: int):
    """Let a run be interrupted once it has finished so many rows."""
    finish = translator.Translator.finish
    finished = []

    def some(self, row):
        if len(finished) == rows:
            raise KeyboardInterrupt
        finished.append(row)
        finish(self, row)

    with monkeypatch.context() as patch:
        patch.setattr(translator.Translator, "finish", some)
        yield
    admitted.clear()


def test_an_interrupted_run_goes_on_where_it_stopped(run, tmp_path, monkeypatch, admitted):
    with interrupting(monkeypatch, admitted, 0):
        assert run("a.txt", "--to", "de", "--batch-size", "1").returncode == 130
    journal_name, _ = files(tmp_path)
    with (tmp_path / journal_name).open("a") as journal:
        journal.write('1234 "The ki')  # the last write was cut off
    result = run("a.txt", "--to", "German")
    assert result.returncode == 0 and "a.de.txt: going on where it was interrupted" in result.stderr
    assert len(admitted) == 1 and files(tmp_path) == ["a.de.txt", "a.txt"]
    assert (tmp_path / "a.de.txt").read_text() == TEXT


def test_small_files_share_batches_and_an_interrupted_run_goes_on_with_the_next(
    run, tmp_path, monkeypatch, admitted
):
    names = [f"{i}.txt" for i in range(6)]
    sentences = [HAUS, KING, "The queen sees the house.", "The king sees the door."]
    for i, name in enumerate(names):
        (tmp_path / name).write_text(f"{sentences[i % 4]}\n")
    arguments = [*names, "--to", "de", "--report", "r.tsv"]
    assert run(*arguments).returncode == 0
    # What two files wait for is decoded once
    assert sorted(row.prompt_text for row in admitted) == sorted(sentences)
    texts = [(tmp_path / f"{i}.de.txt").read_text() for i in range(6)]
    for each in (*tmp_path.glob("*.de.txt"), tmp_path / "r.tsv"):
        each.unlink()
    (tmp_path / "0.txt").write_text(f"{HAUS} A new dog.\n")
    with interrupting(monkeypatch, admitted, 3):
        assert run(*arguments, "--batch-size", "1").returncode == 130
    done = [*tmp_path.glob("*.de.txt")]
    assert 0 < len(done) < 6
    terms = tmp_path / "t.tsv"
    terms.write_text("queen\tPrinz\n")
    result = run(*arguments, "--terms", "t.tsv", "--lookup")
    assert result.returncode == 0 and len(admitted) == 1
    assert [(tmp_path / f"{i}.de.txt").read_text() for i in range(1, 6)] == texts[1:]
    lines = (tmp_path / "r.tsv").read_text().splitlines()
    assert len(lines) == 7 and sum("'queen' is not 'Prinz'" in line for line in lines) == 1
    assert not [*tmp_path.glob(".*")]


def test_a_finished_output_that_the_user_changed_is_left_alone(
    run, tmp_path, monkeypatch, admitted
):
    (tmp_path / "b.txt").write_text(f"{KING}\n")
    with interrupting(monkeypatch, admitted, 1):
        assert run("b.txt", "a.txt", "--to", "de", "--batch-size", "1").returncode == 130
    (tmp_path / "b.de.txt").write_text("mine")
    result = run("b.txt", "a.txt", "--to", "de")
    assert result.returncode == 1 and "b.de.txt already exists; --force" in result.stderr
    assert (tmp_path / "b.de.txt").read_text() == "mine"
    assert (tmp_path / "a.de.txt").read_text() == TEXT


def test_an_output_that_appears_while_it_works_is_left_alone(run, tmp_path, monkeypatch):
    finish = translator.Translator.finish

    def slow(self, row):
        (tmp_path / "a.de.txt").write_text("mine")
        finish(self, row)

    monkeypatch.setattr(translator.Translator, "finish", slow)
    result = run("a.txt", "--to", "de")
    assert result.returncode == 1 and "a.de.txt already exists; --force" in result.stderr
    assert (tmp_path / "a.de.txt").read_text() == "mine"


def test_a_folders_translations_are_not_its_sources(run, tmp_path):
    book = tmp_path / "book"
    book.mkdir()
    for name in ("a.txt", "part.one.txt", "film.en.txt"):
        (book / name).write_text(f"{HAUS}\n")
    for language in ("de", "fr", "de"):
        result = run("book", "--from", "en", "--to", language, "--force")
        assert result.returncode == 0
    assert "book/a.fr.txt is left out: a translation of book/a.txt" in result.stderr
    texts = [f"{name}.{language}.txt" for name in ("a", "part.one") for language in ("de", "fr")]
    sources = ["a.txt", "part.one.txt", "film.en.txt"]
    assert files(book) == sorted([*sources, *texts, "film.de.txt", "film.fr.txt"])
    assert run("book/a.de.txt", "--to", "fr").returncode == 0  # one that is named is
    assert (book / "a.de.fr.txt").exists()
    for language in ("fr", "de", "fr"):  # into folders
        result = run("book", "--from", "en", "--to", language, "-o", f"book/{language}", "--force")
    assert "book/de/a.txt is left out: a translation of book/a.txt" in result.stderr
    assert not [*book.glob("*/*/*")] and len(files(book / "fr")) == len(files(book / "de")) == 3
    (tmp_path / "book/book").mkdir()  # where the folder's name would have led
    (tmp_path / "book/book/a.txt").write_text(f"{HAUS}\n")
    for output in ("new", "new/deep", "fr"):  # in folders of no language, names tell it
        result = run("book", "--from", "en", "--to", "fr", "-o", f"book/{output}", "--force")
        assert result.returncode == 0
    names = ["a.fr.txt", "book", "film.fr.txt", "part.one.fr.txt"]
    assert files(book / "new") == sorted([*names, "deep"]) and files(book / "new/deep") == names
    assert files(book / "new/book") == ["a.fr.txt"] and files(book / "fr/book") == ["a.txt"]


def test_a_name_that_no_file_can_have_costs_that_file_alone(run, tmp_path):
    (tmp_path / f"{'x' * 250}.txt").write_text(HAUS)
    result = run("a.txt", f"{'x' * 250}.txt", "--to", "de")
    assert result.returncode == 1 and "File name too long" in result.stderr
    assert (tmp_path / "a.de.txt").read_text() == TEXT


def test_a_folder_is_translated_and_what_cannot_be_read_is_named(run, tmp_path):
    for name in ("book/a.md", "book/part/b.html", "book/.git/c.txt", "book/d.bin", "out/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(HAUS)
    (tmp_path / "book/bad.docx").write_bytes(b"PK")
    result = run("book", "--to", "de", "-o", "out")
    assert result.returncode == 1
    assert "translate.py: book/bad.docx: not a .docx file" in result.stderr
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("out/**/*.*"))
    assert written == ["out/a.md", "out/part/b.html"]
    assert (tmp_path / "out/a.md").read_text() == GERMAN[HAUS]


@pytest.mark.parametrize("place, language", [("book", ".de"), ("out", ""), ("book/de", "")])
def test_the_files_of_a_folder_lead_to_each_other(run, tmp_path, place, language):
    for folder in ("book/de", "out"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "book/a.md").write_text(
        f"# {HAUS}\n\n[{KING}](b.md#the-old-king-sees-two-red-doors)\n"
    )
    (tmp_path / "book/b.md").write_text(f"# {KING}\n\n[1](a.md)\n")
    for _ in range(2):  # the second time the translations are there
        result = run("book", "--to", "de", "-o", place, "--force")
        assert result.returncode == 0
    assert result.stderr.count("left out") == (0 if place == "out" else 2)
    a, b = ((tmp_path / place / f"{name}{language}.md").read_text() for name in "ab")
    assert (
        b
        == f'# <a id="the-old-king-sees-two-red-doors"></a>{GERMAN[KING]}\n\n[1](a{language}.md)\n'
    )
    assert (
        a
        == f"# {GERMAN[HAUS]}\n\n[{GERMAN[KING]}](b{language}.md#the-old-king-sees-two-red-doors)\n"
    )
    assert len([*tmp_path.glob("*/**/*.md")]) == 4


def test_two_runs_do_not_write_one_output(run, tmp_path, monkeypatch):
    """The other run begins while this one decodes."""
    finish = translator.Translator.finish
    results = []

    def interleaved(*args):
        if not results:
            results.append(run("a.txt", "--to", "de", "--force"))
        finish(*args)

    monkeypatch.setattr(translator.Translator, "finish", interleaved)
    results.append(run("a.txt", "--to", "de", "--force"))
    assert [each.returncode for each in results] == [1, 0]
    assert "a.de.txt: another run is writing it" in results[0].stderr
    assert (tmp_path / "a.de.txt").read_text() == TEXT and files(tmp_path) == ["a.de.txt", "a.txt"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["x/a.txt", "a.txt", "-o", "out"], "x/a.txt and a.txt would both be out/a.txt"),
        (["a.txt", "./a.txt"], "a.txt and ./a.txt would both be a.de.txt"),
        (["a.txt", "a.de.txt"], "a.de.txt and a.txt would both be a.de.txt"),
        (["a.txt", "--report", "a.de.txt"], "a.txt and --report would both be a.de.txt"),
        (["a.txt", "--report", "a.txt"], "a.txt and --report would both be a.txt"),
    ],
)
def test_translations_that_would_be_one_file_are_refused_first(run, tmp_path, arguments, message):
    for folder in ("x", "out"):
        (tmp_path / folder).mkdir()
    for name in ("x/a.txt", "a.de.txt"):
        (tmp_path / name).write_text(HAUS)
    result = run(*arguments, "--to", "de", "--force")
    assert result.returncode == 1 and not result.stdout
    (line,) = result.stderr.splitlines()[1:]
    assert line.startswith(f"translate.py: {message}; name another file")
    assert (tmp_path / "a.de.txt").read_text() == HAUS and not any((tmp_path / "out").iterdir())


def test_a_document_may_be_replaced_by_its_own_translation(run, tmp_path):
    assert run("a.txt", "--to", "de", "-o", "a.txt", "--force").returncode == 0
    assert (tmp_path / "a.txt").read_text() == TEXT


@pytest.mark.parametrize(
    "name, output",
    [
        ("film.en.srt", "film.fr.srt"),
        ("film.eng.forced.srt", "film.fr.forced.srt"),
        ("en.srt", "en.fr.srt"),
        ("film.de.srt", "film.de.fr.srt"),
        ("a.en.pot", "a.fr.po"),
    ],
)
def test_a_languages_name_in_a_files_name_is_replaced(name, output, tmp_path):
    languages = ["eng_Latn", "fra_Latn"]
    assert output_of(name, None, languages) == Path(output)
    is_named = ".en" in name
    assert output_of(name, tmp_path, languages) == tmp_path / (output if is_named else name)
