"""Documents with the demo's target: formatting and terms at their words, and the lines of what it writes."""

from types import SimpleNamespace

import pytest
from helpers.translations import HAUS, KING

from apps.documents import FORMATS, translator
from apps.documents.alignment import Aligner, Alignment
from apps.documents.files import FileTranslator, load
from decoder import Options, SpeculativeDecoder
from speculative.step.driver import Tasks
from speculative.text.memory import Memory, Pair


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
            memories=translator.Memories(terms and Memory(terms)),
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
    # What the model does not read stays as it is.
    kept = into_french("{house} sees.", ".txt", [Pair("{house}", "maison")])[1]
    assert kept == ["line 1: not translated: check {house}"]


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
    data, _ = stub(lambda text: "JA", po.format("an x"), ".po")  # no empty lines
    assert '"JA\\n"\n"\\n"\n"JA\\n"' in data


@pytest.mark.parametrize("ending", [".md", ".txt"])
def test_what_is_kept_may_be_wrapped_in_the_source(stub, ending):
    source = "The old king [@king84,\np. 3] sees the {{< house\nx >}} now.\n"
    data, problems = stub(lambda text: text.upper(), source, ending)
    assert " ".join(data.split()) == "THE OLD KING [@king84, p. 3] SEES THE {{< house x >}} NOW."
    assert not problems and data.count("\n") == 3


def test_pictures_are_copied_or_named(stub):
    data, _ = stub(lambda text: text.upper(), "♪ la la 😀👍🏽\n", ".txt")
    assert data == "♪ LA LA 😀👍🏽\n"
    data, problems = stub(lambda text: text.replace("{1}", ""), "a 😀 king\n", ".txt")
    assert (data, problems) == ("a 😀 king\n", [])  # from a second try with a plain token
    _, problems = stub(lambda text: "nein", "a 😀 king\n", ".txt")
    assert problems == ["line 1: not translated: check 😀"]
    _, problems = stub(lambda text: "nein", "a <i>b</i> <code>x <b>1</b></code>", ".html")
    assert problems == ["line 1: not translated: check x 1"]
