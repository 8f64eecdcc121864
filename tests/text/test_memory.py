"""Translation memories: what is close, which files, what is passed over."""

import csv
import io
import json
import random
import re
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz import fuzz

from speculative.common.errors import InputError
from speculative.text.memory import CLOSE, Memory, MemoryFile, Pair, load_memory

HOUSE = "The old house stands on the hill behind the church."


@pytest.fixture
def read(tmp_path):
    """The pairs of a file of this name and content, and the lines that are reported."""

    def of(name: str, content: bytes | str) -> tuple[list[Pair], list[int]]:
        path, reports = tmp_path / name, []
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        memory = load_memory(path, reports.append)
        return list(memory.pairs), [int(re.search(r", line (\d+):", line)[1]) for line in reports]

    return of


def test_the_closest_prompt_gives_its_text():
    rng = random.Random(0)
    words = [f"w{i}" for i in range(300)]
    prompts = [" ".join(rng.choices(words, k=12)) for _ in range(500)]
    memory = Memory([Pair(prompt, str(i)) for i, prompt in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        assert memory.reference(prompt) == str(i)
        changed = prompt.split()
        changed[rng.randrange(12)] = "something"
        assert memory.reference(" ".join(changed)) == str(i)
    assert memory.reference(" ".join(rng.choices(words, k=12))) is None
    assert memory.reference("quite another") is memory.reference("") is None
    assert Memory([]).reference(HOUSE) is None
    # Of equal prompts the latest counts.
    assert Memory([Pair(HOUSE, "first"), Pair(HOUSE, "last")]).reference(HOUSE) == "last"


def test_a_close_prompt_in_the_right_language_is_found_behind_an_exact_one_in_another():
    german, french = Pair(HOUSE, "DE", "en", "de"), Pair(HOUSE[:-1], "FR", "en", "fr")
    for other in (german, Pair(f"<2de> {HOUSE}", "DE")):
        memory = Memory([other, french])
        assert memory.reference(other.prompt.replace("de", "fr"), "en", "fr") == "FR"


@settings(deadline=None)  # the first call loads the languages
@given(st.lists(st.sampled_from("ab ,"), min_size=5, max_size=60), st.randoms())
def test_the_reference_is_the_closest_of_all_pairs_and_the_latest_of_equals(letters, rng):
    languages = [None, "de", "fr", "fr-CA"]
    pairs = []
    for i in range(30):
        prompt = letters[:]
        for _ in range(rng.randint(0, 4)):
            prompt[rng.randrange(len(prompt))] = rng.choice("abcd")
        task = rng.choice(["", "", "<2de> ", "task: "])
        pairs.append(Pair(f"{task}x{''.join(prompt)}", str(i), None, rng.choice(languages)))
    query, language = rng.choice(pairs).prompt, rng.choice(languages)
    scores = [_score(query, language, pair) for pair in pairs]
    best = max(reversed(range(30)), key=scores.__getitem__)
    expected = pairs[best].text if scores[best] >= 100 * CLOSE else None
    assert Memory(pairs).reference(query, None, language) == expected


def _score(query: str, language: str | None, pair: Pair) -> float:
    """By the definition in Memory."""
    task, _, rest = query.rpartition("> " if ">" in query else ": ")
    names_a_task = ">" in pair.prompt or ":" in pair.prompt
    if task and names_a_task and not pair.prompt.startswith(task):
        return 0
    language = language or ("de" if "<2de>" in query else None)
    if language and pair.target_lang and language[:2] != pair.target_lang[:2]:
        return 0
    queries = [query, rest] if task and not names_a_task else [query]
    return max(fuzz.ratio(each, pair.prompt) for each in queries)


def test_where_words_are_not_written_apart_characters_count():
    house, weather = "我们在教堂后面的山上看到了一座老房子", "今天天气很好"
    memory = Memory([Pair(house, "house"), Pair(weather, "weather")])
    assert memory.reference("他们在教堂后面的山上看到了一座新房子") == "house"


@pytest.mark.parametrize(
    ("pair", "languages", "used"),
    [
        (dict(), dict(target_lang="fra_Latn"), True),
        (dict(target_lang="fr-CA"), dict(), True),
        (dict(target_lang="fr-CA"), dict(target_lang="fra_Latn"), True),
        (dict(target_lang="de"), dict(target_lang="fra_Latn"), False),
        (dict(target_lang="zh-TW"), dict(target_lang="zho_Hans"), False),
        (dict(source_lang="es"), dict(source_lang="fr_XX"), False),
        (dict(target_lang="no code!"), dict(target_lang="fr"), False),
        (dict(target_lang="French"), dict(target_lang="fr"), True),
        (dict(target_lang="fr" + "-1996" * 3600), dict(target_lang="fr"), False),
    ],
)
def test_languages_have_to_fit(pair, languages, used):
    assert (Memory([Pair(HOUSE, "text", **pair)]).reference(HOUSE, **languages) == "text") == used


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
    assert (Memory([Pair(earlier + HOUSE, "text")]).reference(now + HOUSE) == "text") == used


def test_a_tag_names_the_language():
    memory = Memory([Pair(HOUSE, "maison", "en", "fr"), Pair(HOUSE, "Haus", "en", "de")])
    assert memory.reference("<2de> " + HOUSE) == "Haus"
    assert memory.reference(">>fra<< " + HOUSE) == "maison"


TMX = """<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx version="1.4">
<header srclang="en" datatype="plaintext"><prop type="x">not a text</prop></header><body>
<tu><note>nor this</note><tuv xml:lang="en"><seg>A <bpt i="1">&lt;b&gt;</bpt><g>red</g><ept i="1"/> house &amp; a <hi>tree</hi></seg></tuv>
<tuv xml:lang="de-DE"><seg>Ein rotes Haus</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>alone</seg></tuv></tu></body></tmx>"""


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_tmx_is_read_in_both_directions_without_its_codes(read, encoding):
    english, german = "A red house & a tree", "Ein rotes Haus"
    pairs = [Pair(english, german, "en", "de-DE"), Pair(german, english, "de-DE", "en")]
    declared = TMX.replace("?>", f' encoding="{encoding}"?>', 1)
    assert read("m.tmx", declared.encode(encoding)) == (pairs, [])
    assert read("m.tmx", TMX.encode("utf-16-be"))[0][0].prompt == english  # no mark, no declaration
    with pytest.raises(InputError, match=r"m\.tmx: not valid XML: .*line 5"):
        read("m.tmx", declared[: declared.index("<tu><tuv")].encode(encoding))


BILLION_LAUGHS = "".join(f'<!ENTITY a{i + 1} "{f"&a{i};" * 10}">' for i in range(9))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('<?xml version="1.0" encoding="klingon"?><tmx/>', "not valid XML: unknown encoding"),
        ('<?xml version="1.0" encoding="zlib"?><tmx/>', "not valid XML: 'zlib' is not a text"),
        (b'<?xml version="1.0" encoding="GB2312"?>\n<tmx>\xff</tmx>', "not valid XML: multi-byte"),
        (f'<!DOCTYPE a [<!ENTITY a0 "ha">{BILLION_LAUGHS}]><a>&a9;</a>', "not valid XML: limit"),
        ("<html><p>not found", "not valid XML: no element found"),
    ],
)
def test_tmx_that_cannot_be_read_whole_is_refused(read, content, message):
    with pytest.raises(InputError, match=rf"m\.tmx: .*{message}"):
        read("m.tmx", content)


def test_damaged_lines_are_named_by_number_and_the_rest_is_used(read):
    good = json.dumps({"index": 0, "prompt": "a", "text": "b", "stats": {}, "target_lang": None})
    lines = [good.encode("utf-8-sig"), b"", b"{", b"[1]", b'{"prompt": "a"}', b"\xff", b"[" * 9000]
    lines += [good.replace('"b"', r'"\ud800"').encode(), good.replace("null", r'"\udfff"').encode()]
    content = b"\r\n".join([*lines, b'{"prompt": "c", "text": "d"}'])
    assert read("m.jsonl", content) == ([Pair("a", "b"), Pair("c", "d")], [3, 4, 5, 6, 7, 8, 9])
    tabs = b"a\tb\nno tab\n\tb\n\xff\tb\nc d\te\ta comment\n"
    assert read("m.tsv", tabs) == ([Pair("a", "b"), Pair("c d", "e")], [2, 3, 4])


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("m.tsv", "no tab\n\nnor here\n", r"none of its 2 lines can be used; line 1: not two"),
        ("m.jsonl", "[1]\n", r"none of its 1 lines can be used; line 1: not a JSON object"),
        ("m.csv", 'a,b\n"c" d,e\n', r"not CSV: line 2: ',' expected after '\"'"),
        ("m.tmx", '<tmx><tu><tuv lang="en"><seg>a</seg></tuv></tu></tmx>', "none of its 1 units"),
        ("m.tbx", "<html/>", "none of its 0 units has texts in two languages"),
    ],
)
def test_a_memory_without_a_pair_is_refused_in_a_line(read, name, content, problem):
    with pytest.raises(InputError, match=f"{name}: {problem}"):
        read(name, content)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("header", [[], ["Source term", "Target"]])
def test_csv_has_any_delimiter_and_perhaps_a_header(read, delimiter, header):
    cells = [["the old king", "der alte, große; König", "noun", "pl"], ['"5" key"', "Schlüssel"]]
    rows = [header, cells[0], ["no translation", ""], cells[1], ["red", "rot", "EN", "de"]]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows(filter(None, rows))
    pairs = [*(Pair(*row[:2]) for row in cells), Pair("red", "rot", "en", "de")]
    assert read("m.csv", text.getvalue()) == (pairs, [2 + bool(header)])


def test_a_table_whose_first_line_names_languages_has_pairs_of_these(read):
    pairs = [Pair("red", "rot", "en", "de"), Pair("rot", "red", "de", "en")]
    assert read("m.csv", "English;POS;Deutsch\nred;adj;rot\n")[0] == pairs
    assert read("m.tsv", "en\tde\nred\trot\n")[0] == pairs
    several = read("m.csv", "en,de,fr\nred,rot,rouge\n")[0]
    assert len(several) == 6 and several[1] == Pair("red", "rouge", "en", "fr")


@pytest.mark.parametrize(
    "first, told",
    [
        ("the\tder", []),
        ("it\tes", [1]),
        ("IT\tTI", [1]),
        ("no\tne", [1]),
        ("to\tzu\ta comment", [1]),
        ("it\tes\nso\tsi", []),
        ("\0\0\t\0\0\0\0", []),
        ("German" * 3000 + "\tde" + "-1996" * 3600, []),
        ("red\trot\ten\tde", []),
    ],
)
def test_a_first_line_of_words_is_a_pair_and_so_are_all_others(read, first, told):
    """Also of words that are codes of languages; what was guessed is told."""
    other = "king\tKönig" + ("\ten\tde" if first.endswith("en\tde") else "")
    lines = [line.split("\t") for line in (*first.split("\n"), other)]
    pairs = [Pair(*line[: 2 if "comment" in first else 4]) for line in lines]
    content = "".join("\t".join(line) + "\n" for line in lines)
    assert read("m.tsv", content) == (pairs, told)
    assert len(Memory(pairs).fitting("en", "de")) == len(lines)
    assert read("m.tsv", "source\ttarget\n" + content) == (pairs, [])


TERMS = """<{0} xmlns="urn:iso:std:iso:30042:ed-2"><text><body><{1} id="1"><note>on it</note>
<{2} xml:lang="en"><{3}><term>town  hall</term><termNote type="partOfSpeech">noun</termNote></{3}></{2}>
<{2} xml:lang="de"><{3}><term>Rathaus</term></{3}><{3}><term>Stadthaus</term></{3}>
<{3}><term>Rathauß</term><termNote type="administrativeStatus">deprecatedTerm-admn-sts</termNote></{3}></{2}>
</{1}></body></text></{0}>"""


@pytest.mark.parametrize(
    "elements",
    [("martif", "termEntry", "langSet", "tig"), ("tbx", "conceptEntry", "langSec", "termSec")],
)
def test_tbx_gives_each_term_with_its_translations(read, elements):
    pairs, _ = read("m.tbx", TERMS.format(*elements))
    ours = [pair for pair in pairs if pair.source_lang == "en"]
    assert ours == [Pair("town  hall", text, "en", "de") for text in ("Rathaus", "Stadthaus")]
    assert len(pairs) == 4


def test_omegats_tags_are_no_words(read):
    tagged = "<b0>The <a1>old </a1></b0>king <c2/> sees,<br3/>or so.<i4></i4> x <g5><h6/> y"
    escaped = tagged.replace("<", "&lt;")
    unit = (
        '<tmx><tu><tuv lang="en"><seg>{}</seg></tuv><tuv lang="de"><seg>{}</seg></tuv></tu></tmx>'
    )
    (pair, _), _ = read("m.tmx", unit.format(escaped, "&lt;b0&gt;Der&lt;/b0&gt; König"))
    assert pair == Pair("The old king sees, or so. x y", "Der König", "en", "de")


def test_a_memory_grows_by_whole_lines_also_after_a_crash(tmp_path, read):
    path, pair = tmp_path / "m.jsonl", Pair("zwei\nZeilen", "\u2028 deux", None, "fr")
    for _ in range(2):
        MemoryFile(path).append(pair)
        with open(path, "ab") as file:
            file.write(b'{"prompt": "cut in the mi')
    assert read(path.name, path.read_bytes()) == ([pair], [2, 4])
    with pytest.raises(InputError, match="JSON lines"):
        MemoryFile(tmp_path / "m.tmx")


def test_a_memory_file_is_closed_when_nobody_has_it_any_more(tmp_path):
    """Otherwise a run of some hundred documents has too many open files: a Mac allows 256."""
    before = len([*Path("/dev/fd").iterdir()])
    for i in range(20):
        MemoryFile(tmp_path / f"{i}.jsonl")
    assert len([*Path("/dev/fd").iterdir()]) < before + 5


def test_a_pair_that_the_disk_has_no_room_for_is_told(tmp_path):
    """Then the system writes a part of it, and says so."""
    file, limit = MemoryFile(tmp_path / "m.jsonl"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            file.append(Pair("a", "b"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert caught.value.filename.endswith("m.jsonl")
