"""Translation memories: what is close, which files, what is passed over."""

import json
import random

import pytest

from errors import InputError
from text.memory import Memory, MemoryFile, Pair, load_memory

HOUSE = "The old house stands on the hill behind the church."


def memory(*pairs: Pair) -> Memory:
    return Memory(pairs)


def test_the_closest_prompt_gives_its_text():
    rng = random.Random(0)
    words = [f"w{i}" for i in range(300)]
    prompts = [" ".join(rng.choices(words, k=12)) for _ in range(500)]
    found = memory(*(Pair(prompt, str(i)) for i, prompt in enumerate(prompts)))
    for i, prompt in enumerate(prompts):
        assert found.reference(prompt) == str(i)
        changed = prompt.split()
        changed[rng.randrange(12)] = "something"
        assert found.reference(" ".join(changed)) == str(i)
    assert found.reference(" ".join(rng.choices(words, k=12))) is None
    assert found.reference("quite another") is found.reference("") is None
    assert memory().reference(HOUSE) is None


def test_of_equal_prompts_the_latest_text_counts():
    assert memory(Pair(HOUSE, "first"), Pair(HOUSE, "last")).reference(HOUSE) == "last"


def test_where_words_are_not_written_apart_characters_count():
    found = memory(
        Pair("我们在教堂后面的山上看到了一座老房子", "house"), Pair("今天天气很好", "weather")
    )
    assert found.reference("他们在教堂后面的山上看到了一座新房子") == "house"


@pytest.mark.parametrize(
    ("pair", "asked", "used"),
    [
        (dict(), dict(target_lang="fra_Latn"), True),
        (dict(target_lang="fr-CA"), dict(), True),
        (dict(target_lang="fr-CA"), dict(target_lang="fra_Latn"), True),
        (dict(target_lang="de"), dict(target_lang="fra_Latn"), False),
        (dict(target_lang="zh-TW"), dict(target_lang="zho_Hans"), False),
        (dict(source_lang="es"), dict(source_lang="fr_XX"), False),
        (dict(target_lang="no code!"), dict(target_lang="fr"), False),
    ],
)
def test_languages_have_to_fit(pair, asked, used):
    assert (memory(Pair(HOUSE, "text", **pair)).reference(HOUSE, **asked) == "text") == used


@pytest.mark.parametrize(
    ("earlier", "now", "used"),
    [
        ("<2de> ", "<2de> ", True),
        ("<2de> ", "<2fr> ", False),
        (">>deu<< ", ">>fra<< ", False),
        ("summarize: ", "translate English to German: ", False),
        ("", "translate English to German: ", True),  # from a file of texts alone
    ],
)
def test_tasks_have_to_be_the_same(earlier, now, used):
    assert (memory(Pair(earlier + HOUSE, "text")).reference(now + HOUSE) == "text") == used


def test_a_tag_names_the_language():
    found = memory(Pair(HOUSE, "maison", "en", "fr"), Pair(HOUSE, "Haus", "en", "de"))
    assert found.reference("<2de> " + HOUSE) == "Haus"
    assert found.reference(">>fra<< " + HOUSE) == "maison"


TMX = """<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx version="1.4">
<header srclang="en" datatype="plaintext"><prop type="x">not a text</prop></header><body>
<tu><note>nor this</note><tuv xml:lang="en"><seg>A <bpt i="1">&lt;b&gt;</bpt>red<ept i="1"/> house &amp; a <hi>tree</hi></seg></tuv>
<tuv xml:lang="de-DE"><seg>Ein rotes Haus</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>alone</seg></tuv></tu></body></tmx>"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_tmx_is_read_in_both_directions_without_its_codes(tmp_path, encoding):
    (tmp_path / "m.tmx").write_text(TMX.replace("?>", f' encoding="{encoding}"?>', 1), encoding)
    found = load_memory(tmp_path / "m.tmx", pytest.fail)
    english, german = "A red house & a tree", "Ein rotes Haus"
    pairs = Pair(english, german, "en", "de-DE"), Pair(german, english, "de-DE", "en")
    assert tuple(found.pairs) == pairs


def test_tmx_that_declares_entities_is_refused_and_damage_named(tmp_path):
    bomb = TMX.replace('SYSTEM "tmx14.dtd"', '[<!ENTITY a "b"><!ENTITY c "&a;&a;">]')
    (tmp_path / "m.tmx").write_text(bomb)
    with pytest.raises(InputError, match="declares entities"):
        load_memory(tmp_path / "m.tmx", pytest.fail)
    (tmp_path / "m.tmx").write_text(TMX[: TMX.index("<tu><tuv")] + "<broken")
    reports = []
    found = load_memory(tmp_path / "m.tmx", lambda *report: reports.append(report))
    assert len(found.pairs) == 2
    assert [line for line, reason in reports] == [5]


def test_damaged_lines_are_named_by_number_and_the_rest_is_used(tmp_path):
    good = json.dumps({"index": 0, "prompt": "a", "text": "b", "stats": {}, "target_lang": None})
    lines = [
        b"\xef\xbb\xbf" + good.encode(),
        b"",
        b"{",
        b"[1]",
        b'{"prompt": "a"}',
        b"\xff",
        b"[" * 9000,
    ]
    (tmp_path / "m.jsonl").write_bytes(b"\r\n".join([*lines, b'{"prompt": "c", "text": "d"}']))
    reports = []
    found = load_memory(tmp_path / "m.jsonl", lambda *report: reports.append(report))
    assert found.pairs == [Pair("a", "b"), Pair("c", "d")]
    assert [line for line, reason in reports] == [3, 4, 5, 6, 7]
    (tmp_path / "m.tsv").write_text("a\tb\nno tab\n\tb\nc d\te\tf\n")
    reports.clear()
    found = load_memory(tmp_path / "m.tsv", lambda *report: reports.append(report))
    assert found.pairs == [Pair("a", "b"), Pair("c d", "e\tf")]
    assert [line for line, reason in reports] == [2, 3]


def test_a_memory_grows_by_whole_lines_also_after_a_crash(tmp_path):
    path, pair = tmp_path / "m.jsonl", Pair("zwei\nZeilen", "\u2028 deux", None, "fr")
    for _ in range(2):
        growing = MemoryFile(path)
        growing.append(pair)
        with open(path, "ab") as file:
            file.write(b'{"prompt": "cut in the mi')
    reports = []
    found = load_memory(path, lambda *report: reports.append(report))
    assert found.pairs == [pair]
    assert [line for line, reason in reports] == [2, 4]
    with pytest.raises(InputError, match="JSON lines"):
        MemoryFile(tmp_path / "m.tmx")
