"""translate.py with the embedded pair: what it asks, says and lists."""

import json
from dataclasses import replace
from functools import partial

import pytest
from helpers import programs
from helpers.translations import GERMAN, HAUS, KING, SOURCE, TEXT, files, in_folder

from apps.documents import translator
from speculative.common.files import locked
from speculative.step.row import respond


@pytest.fixture
def run(demo_folders, tmp_path, monkeypatch):
    return in_folder(demo_folders, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("folder", "config", "reason"),
    [
        ("f", "{}", "f is something else: choose another folder"),
        ("f", '{"model_type": "distilled"}', "f: damaged"),
        ("f", "{", "f/config.json: not JSON"),
        ("a.txt/f", "", "a.txt/f: Not a directory"),
    ],
)
def test_a_folder_that_cannot_hold_a_draft_model_is_a_line(run, tmp_path, folder, config, reason):
    if config:
        (tmp_path / "f").mkdir()
        (tmp_path / "f/config.json").write_text(config)
        (tmp_path / "f/weights.npz").write_text("damaged")
    result = run("a.txt", "--to", "de", "--distill", folder)
    assert result.stderr.startswith(f"--distill: {reason}") and result.stderr.count("\n") == 2
    assert result.returncode == 0 and (tmp_path / "a.de.txt").read_text() == TEXT


def test_one_run_at_a_time_learns_in_a_folder(run, tmp_path):
    with locked(tmp_path / "f"):
        for script, argv in (
            ("translate.py", "a.txt --distill"),
            ("distill.py", "--document a.txt --output"),
        ):
            result = programs.call(*argv.split(), "f", "--to", "de", cwd=tmp_path, script=script)
            assert result.returncode == 1 and result.stderr.endswith(
                "f: another run is writing it\n"
            )
    assert run("a.txt", "--to", "de", "--distill", "f").returncode == 0
    assert files(tmp_path) == ["a.de.txt", "a.txt"]
    result = run("--to", "de", "--distill", "a.txt")
    assert result.returncode == 2 and "a.txt is a file, not a folder" in result.stderr


def test_standard_input_is_translated_to_standard_output_or_a_format(run, tmp_path):
    ask = partial(programs.run, "-", "--to", "de", cwd=tmp_path, script="translate.py")
    assert ask(input=SOURCE).stdout == TEXT
    cue = "WEBVTT\n\n00:01.000 --> 00:02.000\n"
    assert ask("-o", "b.vtt", input=f"{cue}{HAUS}\n").stdout == "b.vtt\n"
    assert (tmp_path / "b.vtt").read_text() == f"{cue}{GERMAN[HAUS]}\n"


def test_what_a_reader_should_look_at_is_listed(run, tmp_path):
    (tmp_path / "terms.tsv").write_text("doors\tTore\nking\tKönig\tnoun\n")
    (tmp_path / "b.po").write_text(f'msgid "{KING}"\nmsgstr ""\n\nmsgid "%s sees"\nmsgstr ""\n')
    memory = ["--terms", "terms.tsv", "--memory", "m.jsonl", "--memory-append"]
    result = run("b.po", "--to", "de", *memory)
    assert result.returncode == 0, result.stderr
    assert result.stderr.splitlines()[1:] == [
        "b.po, line 2: 'doors' is not 'Tore'",
        "b.po, line 5: not translated: check %s",
    ]
    assert (tmp_path / "b.de.po").read_text().count('msgstr ""') == 1  # the one without %s
    pairs = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert dict(prompt=KING, text=GERMAN[KING], target_lang="de") in pairs
    again = run("b.po", "--to", "de", "--force", "--verbose", *memory)
    assert len((tmp_path / "m.jsonl").read_text().splitlines()) == len(pairs)
    assert "accepted" in again.stderr  # copied from the memory


def test_a_placeholder_lost_is_tried_again_as_a_plain_token(run, tmp_path, monkeypatch):
    def copying(row):
        return replace(respond(row), text=row.prompt_text.replace("{n}", ""))

    monkeypatch.setattr(translator, "respond", copying)
    (tmp_path / "a.txt").write_text("We see {n}. It is X1.\n")
    result = run("a.txt", "--to", "de")
    assert (tmp_path / "a.de.txt").read_text() == "We see {n}. It is X1.\n"
    assert "check" not in result.stderr


def test_a_human_memorys_text_is_used_as_it_is_and_reported(run, tmp_path):
    (tmp_path / "m.tsv").write_text(f"{KING}\tMein König!\n")
    arguments = ["--memory", "m.tsv", "--memory-exact", "--report", "r.tsv"]
    result = run("a.txt", "--to", "de", *arguments)
    assert "a.txt: 1 of 3 texts are the memory's" in result.stderr
    texts = (tmp_path / "a.de.txt").read_text()
    assert texts == f"Mein König! {GERMAN[HAUS]}\n\n1234, a@b.org\nMein König!\n"
    rows = [row.split("\t") for row in (tmp_path / "r.tsv").read_text().splitlines()]
    assert rows[0] == ["file", "place", "source", "text", "check"]
    assert rows[-1] == ["a.txt", "line 4", KING, "Mein König!", "from the memory"]
    assert "r.tsv already exists" in run("a.txt", "--to", "de", *arguments).stderr


def test_formatting_of_a_persons_words_that_the_model_finds_unlikely_stays_and_is_named(
    run, tmp_path
):
    source, own = HAUS.replace("king", "<b>king</b>"), GERMAN[HAUS]
    (tmp_path / "a.html").write_text(source)
    for word, named in (("König", False), ("Monarch", True)):
        (tmp_path / "m.tsv").write_text(f"{HAUS}\t{own.replace('König', word)}\n")
        result = run("a.html", "--to", "de", "--memory", "m.tsv", "--memory-exact", "--force")
        assert f"<b>{word}</b>" in (tmp_path / "a.de.html").read_text()
        assert ("a.html, line 1: check what belongs to 'king'" in result.stderr) == named


def test_a_sentence_cut_short_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setattr(translator, "_FULL", 99)
    result = run("a.txt", "--to", "de", "-m", "3")
    assert "a.txt, line 4: a sentence was cut short; see --max-tokens" in result.stderr


def test_a_report_shows_stand_ins_and_what_is_missing_in_words(run, tmp_path):
    (tmp_path / "a.html").write_text(f"<p>{HAUS}</p>\n<p>See <code>x <b>= 1</b></code> sees.</p>")
    result = run("a.html", "--to", "de", "--report", "r.tsv")
    assert "a.html, line 2: not translated: check x = 1" in result.stderr
    assert (tmp_path / "r.tsv").read_text().splitlines()[1:] == [
        f"a.html\tline 1\t{HAUS}\t{GERMAN[HAUS]}\t",
        "a.html\tline 2\tSee {1} sees.\tSee {1} sees.\tnot translated: check x = 1",
    ]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["a.txt"], "into which language? Say so with --to"),
        (["a.txt", "--to", "Klingon"], "--to: no language 'Klingon'; there are"),
        (
            ["a.xyz", "--to", "de"],
            "a.xyz: not a document: they end in .txt, .md, .markdown, .mdx, ",
        ),
        (["a.pdf", "--to", "de"], "a.pdf: a PDF has no paragraphs; convert it"),
        (["a.txt", "b.txt", "-o", "c.txt"], "--output is one file, for one document, or a folder"),
        (["b.txt", "--to", "de"], "b.txt: No such file"),
        (["a.po", "--to", "de", "--bilingual"], "--bilingual is for .txt, .md, .markdown, .mdx"),
        (["a.txt", "--to", "de", "--memory-exact"], "--memory-exact needs --memory"),
        (["a.txt", "--to", "de", "--terms", "t.csv"], "t.csv: none of 2 pairs is in these"),
    ],
)
def test_a_users_mistake_is_one_line(run, tmp_path, arguments, message):
    for name in ("a.pdf", "a.xyz"):
        (tmp_path / name).touch()
    (tmp_path / "t.csv").write_text("en,fr\nhouse,maison\n")
    result = run(*arguments)
    assert result.returncode and message in result.stderr and "Traceback" not in result.stderr
