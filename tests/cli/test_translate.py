"""translate.py with the embedded pair."""

import json
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import programs

from apps.documents import FORMATS, translator
from apps.documents.alignment import Aligner, Alignment
from apps.documents.files import FileTranslator, load, output_of
from decoder import Options, SpeculativeDecoder
from speculative.common.files import locked
from speculative.step.driver import Tasks
from speculative.step.row import respond
from speculative.text.memory import Memory, Pair

KING, HAUS = "The old king sees two red doors.", "The king sees the house."
GERMAN = {KING: "Der alte König sieht zwei rote Türen.", HAUS: "Der König sieht das Haus."}
SOURCE = f"{KING} {HAUS}\n\n1234, a@b.org\n{KING}\n"
TEXT = f"{GERMAN[KING]} {GERMAN[HAUS]}\n\n1234, a@b.org\n{GERMAN[KING]}\n"


@pytest.fixture
def run(demo_folders, tmp_path, monkeypatch):
    """Call translate.py in a folder where a.txt is."""
    (tmp_path / "mlx_models").symlink_to(demo_folders / "mlx_models")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(SOURCE)

    def run(*arguments: str):
        return programs.call(*arguments, cwd=tmp_path, script="translate.py")

    return run


def files(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "mlx_models")


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
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("out/**/*.de.*"))
    assert written == ["out/a.de.md", "out/part/b.de.html"]
    assert (tmp_path / "out/a.de.md").read_text() == GERMAN[HAUS]


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
        (["x/a.txt", "a.txt", "-o", "out"], "x/a.txt and a.txt would both be out/a.de.txt"),
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
        "b.po, line 5: check %s",
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


@pytest.fixture
def into_french(demo_pair, monkeypatch):
    """Translate a document with the demo's target. How many texts were aligned, too."""
    aligned = []
    align = Aligner.align
    monkeypatch.setattr(Aligner, "align", lambda *args: aligned.extend(args[1]) or align(*args))

    def translate(source: str, ending: str = ".html", terms=None):
        by = translator.Translator(
            SpeculativeDecoder(*demo_pair[:2]),
            Options(target_lang="fr"),
            terms=terms and Memory(terms),
        )
        new = by.translate(FORMATS[ending](source.encode()))
        return new.data.decode(), new.problems, len(aligned)

    return translate


def test_marks_of_a_document_follow_their_words(into_french):
    text = "The king must paint the <b>red</b> <i>house</i> in the kitchen."
    new = "Le roi doit peindre la <i>maison</i> <b>rouge</b> dans la cuisine."
    assert into_french(text) == (new, [], 1)  # a fragment of HTML stays one
    bare = "<p>The king must paint the red house in the kitchen.</p> <h1><b>The king</b></h1>"
    assert into_french(bare)[2] == 1  # no more than before: there is nothing to place


def test_documents_in_another_order_are_aligned_in_the_same_way(demo_pair, tmp_path, monkeypatch):
    choose, chosen = Aligner.choose, []
    monkeypatch.setattr(Aligner, "choose", lambda *args: chosen.append(args[1]) or choose(*args))
    names = ["a.md", "b.md", "c.md"]
    for name, noun in zip(names, ("king", "queen", "girl"), strict=True):
        (tmp_path / name).write_text(f"The *{noun}* sees the house.\n\n{HAUS}\n")
    for order in (names, names[::-1]):
        by = translator.Translator(SpeculativeDecoder(*demo_pair[:2]), Options(target_lang="de"))
        by.decoder.learner = SimpleNamespace(total=0)
        files = [load(str(tmp_path / name), None) for name in order]
        outputs = [file._replace(output=tmp_path / f"{file.name}.new") for file in files]
        assert len([*FileTranslator(by, "model", force=True).run(outputs)]) == 3
        assert by.decoder.learner.total == 0  # what was chosen from is no work that is done twice
    assert len(chosen) == 6 and all(each == chosen[0] for each in chosen)
    assert len(chosen[0]) == 3 and by.aligner.reading == (2, 0)


def test_what_belongs_to_words_that_the_model_is_not_sure_of_is_named(into_french, monkeypatch):
    monkeypatch.setattr(Alignment, "span", lambda self, mark: ((0, 2), False))
    text = "The king must paint the <b>red</b> <a>house</a> in the kitchen."
    new, problems, _ = into_french(text)
    assert new == "Le roi doit peindre la <b></b>maison <a>rouge</a> dans la cuisine."
    assert problems == [f"line 1: check what belongs to {word!r}" for word in ("red", "house")]


def test_a_term_is_checked_at_its_own_words(into_french):
    text = "The red king must paint the green house in the kitchen."
    terms = [Pair("house", "roi"), Pair("house", "cuisine"), Pair("green house", "maison verte")]
    problems = ["line 1: 'house' is not 'roi' or 'cuisine'"]
    assert into_french(text, ".txt", terms)[1] == problems
    # One of several is enough, and only those of these languages count.
    terms += [Pair("house", "maison"), Pair("king", "reine", "en", "de"), Pair("king", "x", "de")]
    assert into_french(text, ".txt", terms)[1] == []


@pytest.fixture
def stub(demo_pair, monkeypatch):
    """Call a translator that writes what a function makes of each sentence."""

    def stub(new, source: str, ending: str):
        def respond(row):
            text = row.prompt_text
            return SimpleNamespace(prompt=text, text=new(text), finish_reason="stop")

        def run(self, tasks, *args, at_once, on_row):
            source = Tasks(tasks, 1)
            while rows := source.take(1, wait=True):
                on_row(rows[0])
                source.finish(rows[0])
            return source.results

        monkeypatch.setattr(translator, "respond", respond)
        monkeypatch.setattr(SpeculativeDecoder, "run", run)
        decoder = SpeculativeDecoder(*demo_pair[:2])
        by = translator.Translator(decoder, Options(target_lang="de"))
        new = by.translate(FORMATS[ending](source.encode()))
        return new.data.decode(), new.problems

    return stub


@pytest.mark.parametrize(
    "source, text, expected",
    [
        ("他来了。她说好。", "The king waits.", "The king waits. The king waits."),
        ("他来了。\u3000她说好。", "The king waits.", "The king waits. The king waits."),
        ("He waits. She waits.", "国王在等。", "国王在等。国王在等。"),
        ("He waits.\n\nShe waits.", "国王在等。", "国王在等。\n\n国王在等。"),
        ("He waits. She waits.", "Er wartet.", "Er wartet. Er wartet."),
    ],
)
def test_the_space_between_sentences_is_that_of_their_scripts(stub, source, text, expected):
    assert stub(lambda _: text, source, ".txt")[0] == expected


def test_sentences_end_where_their_lines_do(stub):
    cue = "1\n00:00:01,000 --> 00:00:02,000\n{}\n"
    texts = {HAUS: "Das Haus.", KING: "Ein viel längerer Satz über zwei Türen und den König."}
    source = cue.format(f"{HAUS}\n{KING}")
    assert stub(texts.get, source, ".srt")[0] == cue.format("\n".join(texts.values()))
    po = 'msgid "The king sees\\nthe house.\\n\\n- {}\\n"\nmsgstr ""\n'
    data, _ = stub(lambda text: text.upper(), po.format("an x"), ".po")
    assert '"THE KING SEES\\n"\n"THE HOUSE.\\n"\n"\\n"\n"- AN X\\n"' in data


def test_pictures_are_copied_or_named(stub):
    data, _ = stub(lambda text: text.upper(), "♪ la la 😀👍🏽\n", ".txt")
    assert data == "♪ LA LA 😀👍🏽\n"
    data, problems = stub(lambda text: text.replace("😀", ""), "a 😀 king\n", ".txt")
    assert (data, problems) == ("a 😀 king\n", [])  # from a second try with a plain token
    _, problems = stub(lambda text: "nein", "a 😀 king\n", ".txt")
    assert problems == ["line 1: check 😀"]


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
def test_a_languages_name_in_a_files_name_is_replaced(name, output):
    languages = ["eng_Latn", "fra_Latn"]
    assert output_of(name, None, languages) == Path(output)


def test_a_sentence_cut_short_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setattr(translator, "_FULL", 99)
    result = run("a.txt", "--to", "de", "-m", "3")
    assert "a.txt, line 4: a sentence was cut short; see --max-tokens" in result.stderr


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
