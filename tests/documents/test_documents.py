"""Formats of documents: only their texts change."""

import io
import zipfile
from pathlib import Path

import pytest

from apps.documents import FORMATS, gettext, read
from apps.documents.document import Passage, by_length
from apps.documents.encodings import decoded
from apps.documents.language import LanguageChange
from speculative.common.errors import InputError

WRAPPED = "An old king sees a door that is red, and\nhis old dog sees it too."
CUES = "1\n00:00:01,000 --> 00:00:02,000\nan old king\r\nsees\n\n2\n00:00:03,000 --> 00:00:04,500\n<i>an old door.</i>\n"
VTT = "WEBVTT\n\nNOTE it stays\n\nit stays\n" + CUES.replace(",", ".").partition("\n")[2]
MARKDOWN = "---\nit: stays\n---\n# An old *king*\n\n- old one `x. y`\n  old two\n\n| old | old |\n|--|--|\n| old | d |\n\n```\nit stays\n```\n<p>it stays</p>\n"
MARKS = ["- ", "* ", "☐ ", "a) ", "(12) ", "— ", "- [x] ", "✔️ ", "  >> ", "♪ "]
READ = [
    (".txt", f"\ufeffan old.\r\n\r\n  {WRAPPED}\n", ["an old.", WRAPPED.replace("\n", " ")]),
    (".txt", "old roses\n\u00a0\nold violets\n", ["old roses", "old violets"]),
    (".txt", f"\ufeffa) {WRAPPED}\n".replace("\n", "\na) ", 1), WRAPPED.split("\n")),
    (".txt", f"> {WRAPPED}\n>> An old\n>\n> - old\n".replace("\n", "\n> ", 1), [WRAPPED.replace("\n", " "), "An old", "old"]),
    (".txt", "".join(f"{mark}A. old\n" for mark in MARKS), ["A. old"] * len(MARKS)),
    (".txt", "“Old” dogs\n¿Qué?\n5 dogs\n(Old) dogs\n", ["“Old” dogs", "¿Qué?", "5 dogs", "(Old) dogs"]),
    (".srt", CUES + "\n3\n00:01,000 --> 00:02,000\n- old.\n- old.", ["an old king sees an old door.", "old.", "old."]),
    (".vtt", VTT, ["an old king sees an old door."]),
    (".md", MARKDOWN, ["An old king", "old one {1} old two", "old", "old", "old", "d"]),
]  # fmt: skip


@pytest.mark.parametrize("ending, source, texts", READ)
def test_only_texts_change(ending, source, texts):
    document = FORMATS[ending](source.encode())
    assert [passage.text for passage in document.passages] == texts
    assert document.write([None] * len(texts)).data == source.encode()
    new = [text.replace("old", "new") for text in texts]
    assert document.write(new).data.decode() == source.replace("old", "new")


def test_a_po_files_messages_without_a_translation_get_one():
    head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    done = '\nmsgid "done"\nmsgstr "fertig"\n\n#, fuzzy, c-format\nmsgid "%d"\nmsgstr "stays"\n'
    asked = 'msgid "one\\n"\n"more"\nmsgid_plural "many"\n'
    fuzzy = f'#, c-format, fuzzy\n#| msgid "old"\n{asked}msgstr[0] "x"\nmsgstr[1] ""\n'
    document = FORMATS[".po"](f"{head}{fuzzy}{done}".encode())
    assert [passage.text for passage in document.passages] == ["one\nmore", "many", "%d"]
    new = f'#, c-format, fuzzy\n{asked}msgstr[0] ""\n"eins\\n"\n"\\"mehr\\""\nmsgstr[1] "viele"\n'
    written = document.write(['eins\n"mehr"', "viele", None]).data.decode()
    assert written == f"{head}{new}{done}" and document.passages[1].location == "line 10"
    bare = b'msgid "one"\nmsgstr ""\n'  # without a head
    assert gettext.parse(bare, fuzzy=False).write(["eins"]).data == bare.replace(b'""', b'"eins"')


HEAD = """msgid ""
msgstr ""
"Language: \\n"
"Content-Type: text/plain; charset=ASCII\\n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\\n"

"""
PLURAL = '#. a , fuzzy comment\nmsgid "One file, fuzzy"\nmsgid_plural "%d files"\n'


@pytest.mark.parametrize(
    "language, forms, texts",
    [
        ("de", "nplurals=2;plural=n!=1;", ["One file, fuzzy", "%d files"]),
        ("ja", "nplurals=1;plural=0;", ["%d files"]),
        ("pl", "nplurals=3;plural=n==1?0:", ["One file, fuzzy", "%d files", "%d files"]),
        ("ru", "nplurals=3;plural=n%10==1", ["%d files"] * 3),  # 21 has the form of 1, too
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_new_po_gets_its_languages_plural_forms(language, forms, texts, newline):
    source = f'{HEAD}{PLURAL}msgstr[0] ""\nmsgstr[1] ""\n'.replace("\n", newline)
    change = LanguageChange(None, language)
    document = gettext.parse(source.encode(), change=change)
    assert [passage.text for passage in document.passages] == texts
    assert document.write([None] * len(texts)).data == source.encode()
    written = document.write(texts).data.decode()
    assert written.count(newline) == written.count("\n")
    head, _, entry = written.replace(newline, "\n").partition("\n\n")
    assert f"Language: {language}\\n" in head and "charset=UTF-8" in head
    assert forms in head.translate(
        dict.fromkeys(map(ord, " ()"))
    )  # Babel's versions differ in these
    strings = "".join(f'msgstr[{i}] "{text}"\n' for i, text in enumerate(texts))
    assert entry == PLURAL.replace("msgid ", "#, fuzzy\nmsgid ", 1) + strings


@pytest.mark.parametrize("charset", ["utf8", "latin1", "windows-1252", "ASCII", "no-such"])
def test_a_po_is_written_in_its_charset_or_says_that_it_is_not(charset):
    source = f'{HEAD}msgid "door"\nmsgstr ""\n'.replace("ASCII", charset)
    document = read(Path("a.po"), source.encode())
    change = LanguageChange(None, "de")
    for text in ("Tür", "дверь"):
        data = document.write([text], change=change).data
        is_latin = charset in ("latin1", "windows-1252") and text == "Tür"
        declared = charset if is_latin or charset in ("utf8", "no-such") else "UTF-8"
        assert f"charset={declared}\\n".encode() in data
        assert text in data.decode("latin1" if is_latin else "utf-8")


def test_a_half_filled_plural_keeps_what_it_has():
    (passage,) = FORMATS[".po"](f'{PLURAL}msgstr[0] "eine"\nmsgstr[1] ""\n'.encode()).passages
    assert passage.text == "%d files"


def cues(*texts: str, gap: float = 1, newline: str = "\n") -> bytes:
    """An .srt with these texts, each shown for a second, with seconds between them."""
    source = ""
    for i, text in enumerate(texts):
        start = round(1000 * i * (1 + gap))
        times = [
            f"00:{t // 60000:02}:{t // 1000 % 60:02},{t % 1000:03}" for t in (start, start + 1000)
        ]
        source += f"{i + 1}\n{' --> '.join(times)}\n{text}\n\n"
    return source.replace("\n", newline).encode()


def texts_of(data: bytes, ending: str = ".srt", **options) -> list[str]:
    return [passage.text for passage in FORMATS[ending](data, **options).passages]


@pytest.mark.parametrize(
    "texts, joined",
    [
        (["[DOOR OPENS]", "I am here."], False),
        (["(door opens)", "i am here."], False),
        (["THE LONG NIGHT", "Where were you?"], False),
        (["I thought you--", "No."], False),
        *((["a king waits" + mark, "he sleeps."], False) for mark in "؟।॥۔။։｡．…♪"),  # noqa: RUF001
        (["你去哪儿了", "我在家里"], False),
        (["I see the king", "and his dog."], True),
        (["I see the king,", "Anna and Tom."], True),
        (["他来了，", "她走了。"], True),  # noqa: RUF001
        (["I see the king", "- and his dog."], False),
    ],
)
def test_a_sentence_runs_over_cues_only_if_it_goes_on(texts, joined):
    assert len(texts_of(cues(*texts))) == (1 if joined else 2)
    assert len(texts_of(cues(*texts, gap=2.1))) == 2
    assert len(texts_of(cues(*texts), cue_by_cue=True)) == 2


@pytest.mark.parametrize(
    "text, units",
    [
        ("- The old king\nsees two doors.\n- Yes.", ["The old king sees two doors.", "Yes."]),
        ("[BELL]\nWho is it?", ["[BELL]", "Who is it?"]),
        ("国王在\n等。", ["国王在等。"]),
        (">> Who?\n>> I.", ["Who?", "I."]),
        ("KING: Who?\n- QUEEN 2: I.", ["Who?", "I."]),
        ("<i>KING</i>: Who?\n<b>QUEEN:</b> (LAUGHS) I.", ["Who?", "I."]),
        ("(SIGHS) Who?\n- [x] — I.", ["Who?", "I."]),
        ("THE END\n(SIGHS)", ["THE END", "(SIGHS)"]),
        ("<ruby>国王<rt>おう</rt></ruby>在", ["国王在"]),
    ],
)
def test_speakers_of_a_cue_are_translated_alone(text, units):
    assert texts_of(cues(text)) == units


@pytest.mark.parametrize(
    "texts, new, shown",
    [
        (["What", "is", "it?"], ["Was?"], ["Was?"] * 3),
        (["What", "is", "it?"], ["Was ist?"], ["Was", "ist?", "ist?"]),
        (["- What is\nit?\n- It"], ["Was?", "Es"], ["- Was?\n- Es"]),
        (["<i>What\nis</i>", "it\nthere?"], ["Was?\n\n\nJa?"], ["<i>Was?</i>", "Ja?"]),
        (["<i>Is</i>", "<i>it</i> <b>old?</b>"], ["Ja?"], ["<i>Ja?</i>", "Ja?"]),
    ],
)
def test_no_cue_and_no_line_of_a_cue_becomes_empty(texts, new, shown):
    assert FORMATS[".srt"](cues(*texts)).write(new).data == cues(*shown)


def test_what_has_no_times_that_can_be_read_stays_and_is_named():
    odd = b"3\n00:00:0,500 --> 00:00:2,00\nAn advertisement.\n\n4\nno times\n"
    document = FORMATS[".srt"](cues("A king.", "A dog.") + odd)
    assert document.write(["EIN", "ZWEI"]).data == cues("EIN", "ZWEI") + odd
    stays = "no cue's times; the cue stays as it is"
    assert document.notes == [f"line 10: {stays}", f"line 14: {stays}"]
    unspaced = b"1\n00:00:01,000 --> 00:00:02,000\nA.\n2\n00:00:02,000 --> 00:00:03,000\nB.\n"
    assert texts_of(unspaced) == ["A.", "B."]  # without an empty line between them


@pytest.mark.parametrize("ending", [".srt", ".vtt", ".txt"])
def test_lines_may_end_in_two_carriage_returns(ending):
    data = cues("A king.", "A dog.", newline="\r\r\n")
    document = FORMATS[ending](data)
    assert [passage.text for passage in document.passages][-1] == "A dog."
    assert document.write([passage.text for passage in document.passages]).data == data


def test_a_line_of_one_space_does_not_end_a_webvtt_cue():
    cue = "\n00:00.160 --> 00:02.470 align:start\n \n{}\n"
    data = f"WEBVTT\n{cue.format('<v Ann>so today,')}{cue.format('<v Bob>no.')}\nNOTE no\n"
    assert texts_of(data.encode(), ".vtt") == ["so today,", "no."]  # nor goes on in another voice


ASS = """[Events]\r
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\r
Dialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,{\\i1}an old king\\Nsees{\\i0}\r
Dialogue: 0,0:00:02.00,0:00:03.00,Default,,0,0,0,,an old,\\N\\Nold\\hdoor.\r
Comment: 0,0:00:02.00,0:00:03.00,Default,,0,0,0,,it stays\r
Dialogue: 0,0:00:02.00,0:00:03.00,Sign,,0,0,0,,{\\p1}m 0 0 l 1 1{\\p0}\r
"""


def test_an_ass_keeps_all_but_its_dialogue():
    document = FORMATS[".ass"](ASS.encode())
    (passage,) = document.passages
    assert passage.text == "an old king sees an old, old\u00a0door."
    new = document.write([passage.text.replace("old", "new")]).data.decode()
    assert new.replace("\u00a0", "\\h") == ASS.replace("old", "new")
    few = document.write(["EIN ZWEI"]).data.decode()
    assert "}EIN\\NZWEI{" in few and ",,ZWEI\r" in few  # no empty lines
    both = FORMATS[".ass"](ASS.encode(), bilingual=True).write(["EIN\nZWEI\nDREI\nVIER"]).data
    assert rb"sees\NEIN\NZWEI{" in both and b"old\\hdoor.\\NDREI\\NVIER\r" in both


def test_both_languages_in_one_file():
    both = FORMATS[".txt"](b"A king.\r\n\r\nA dog.", bilingual=True).write(["EIN", "ZWEI"]).data
    assert both == b"A king.\r\nEIN\r\n\r\nA dog.\r\nZWEI"
    two = FORMATS[".srt"](cues("a king", "and a dog."), bilingual=True).write(["EIN ZWEI"]).data
    assert two == cues("a king\nEIN", "and a dog.\nZWEI")


@pytest.mark.parametrize(
    "source, texts",
    [
        ("    It was he, the one\nwith the red door,\nand he saw it.\nThe End", 2),
        ("   The King lives in a big old house with the\nQueen and dogs that bark at the moon.", 1),
        ("apples\npears\nplums", 3),
        ("You need:\nan old dog", 2),
        ("* A dog, which\n  barks.\n* A cat", 2),
        ("- Where before silver another, mountain\n- another where while evening heavy\n- Old", 3),
        ("1. Where before silver another, mountain\n   river\n2. Another where while evening", 2),
        (
            "The old king - it was he who came in - saw\n- and this was new - all of his dogs at the",
            1,
        ),
        ("Usage\n  a dog\n  a cat", 3),
        ('{\n"version": 1,\n"loggers": false', 3),
        ("@old\ndef a_view(request):", 2),
        ("国王住在一座很大的老房子里他有很多狗和猫\n他们晚上对着月亮叫。", 1),
    ],
)
def test_lines_are_a_paragraph_if_sentences_run_over_them(source, texts):
    assert len(texts_of(source.encode(), ".txt")) == texts


@pytest.mark.parametrize("name", ["latin-1", "cp1250", "shift_jis"])
def test_other_encodings_are_read_and_written(name):
    text = {"shift_jis": "国王は家を見る。"}.get(name, "Žofia" if name == "cp1250" else "Zürich")
    document = decoded(FORMATS[".txt"], text.encode(name), name)
    assert document.write([text + text]).data == (text + text).encode(name)
    written = document.write(["ᚠ"])
    assert written.data == "ᚠ".encode() and "written as UTF-8" in written.notes[0]
    with pytest.raises(InputError, match="say its encoding with --encoding"):
        decoded(FORMATS[".txt"], text.encode(name), "utf-8")


def test_an_encoding_is_guessed_and_named():
    text = "Où est passé le garçon qui a vu la forêt ? Il est allé là-bas, près du château. " * 5
    document = decoded(FORMATS[".txt"], text.encode("cp1252"))
    (passage,) = document.passages
    assert passage.text == text.strip() and "--encoding changes that" in document.notes[0]
    for name in ("utf-16-le", "utf-16-be"):  # without a byte-order mark
        document = decoded(FORMATS[".txt"], "The king.".encode(name))
        assert document.write(["Ja."]).data == "Ja.".encode(name) and document.notes


RUN = '<w:r><w:rPr>{}</w:rPr><w:t xml:space="preserve">{}</w:t></w:r>'
TYPES = '<Types><Override PartName="/word/document.xml" ContentType="document.main+xml"/></Types>'
BODY = '<w:p xmlns:w="urn:w"><w:pPr><w:rPr><w:b/></w:rPr></w:pPr>{}</w:p>'


def docx(*runs: tuple[str, str]) -> bytes:
    with zipfile.ZipFile(output := io.BytesIO(), "w") as archive:
        archive.writestr("[Content_Types].xml", TYPES)
        archive.writestr("word/document.xml", BODY.format("".join(RUN.format(*r) for r in runs)))
        archive.writestr("word/picture.bin", b"\0\1")
    return output.getvalue()


@pytest.mark.parametrize(
    "text, runs, plain",
    [
        ("Ann & ich", [("<w:b/>", "Ann"), ("", " &amp; ich")], []),
        ("Wir, Ann, <b>", [("", "Wir, "), ("<w:b/>", "Ann"), ("", ", &lt;b&gt;")], []),
        ("Wir", [("", "Wir")], ["Ann"]),
    ],
)
def test_words_of_a_docx_keep_their_formatting_where_they_are_found(text, runs, plain):
    formats = ["", "<w:b/>", '<w:lang w:val="de"/>', ""]
    old = docx(*zip(formats, ["We, ", "Ann", " &amp; a d", "og"], strict=True))
    document = FORMATS[".docx"](old)
    assert [passage.text for passage in document.passages] == ["We, Ann & a dog"]
    written = document.write([text])
    for new, body in ((document.write([None]).data, old), (written.data, docx(*runs))):
        one, other = (zipfile.ZipFile(io.BytesIO(x)) for x in (new, body))
        assert one.namelist() == other.namelist()
        assert all(one.read(name) == other.read(name) for name in one.namelist())
    assert written.plain == plain


@pytest.mark.parametrize(
    "ending, data, message",
    [
        (".txt", b"\xff\xfe\xff", "not utf-16-le text"),
        (".txt", "Zürich".encode("latin-1"), "not utf-8 text; say its encoding"),
        (".md", b"a\0b", "not text, or in an encoding"),
        (".srt", b"1\n00:00:01,000 -> 00:00:02,000\nA\n", "line 2: no cue's times"),
        (".srt", b"1\n00:00:01,000 --> late\nA\n", "line 2: no cue's times"),
        (".vtt", b"WEBVTT\n\nA king.\n", "no cues with times"),
        (".po", b"no messages", "not a .po file"),
        (".docx", b"PK", "not a .docx file"),
        (".docx", docx(("", "a"))[:-40], "not a .docx file"),
        (".docx", docx(("", "<")), "document.xml: "),
    ],
)
def test_what_cannot_be_read_is_one_line(ending, data, message):
    with pytest.raises(InputError, match=message):
        read(Path(f"a{ending}"), data, "utf-8")


@pytest.mark.parametrize(
    "lengths, text, parts",
    [
        ([10, 10], "a bb ccc dddd", ["a bb ccc", "dddd"]),
        ([1, 50], "Donaudampfschiff fährt", ["Donaudampfschiff", "fährt"]),
        ([5, 3, 2], "x", ["x", "", ""]),
        ([5, 5], "これはペンです", ["これはペ", "ンです"]),
        ([4, 5], "พระราชา", ["พระ", "ราชา"]),  # vowels stay with their consonants
        ([3, 3], "他来。了", ["他来。", "了"]),
        ([2, 6], "国王「Arthur」在", ["国王", "「Arthur」在"]),
        ([2, 2], "国 王在等着他", ["国 王在", "等着他"]),  # a space does not make it a spaced text
        ([1, 1], "- Ja", ["- Ja", ""]),
        ([1, 1], "{https://a.b/{x c}!", ["{https://a.b/{x c}!", ""]),  # a stand-in in another one
    ],
)
def test_a_text_is_spread_by_length(lengths, text, parts):
    assert by_length(Passage("", tuple((0, length) for length in lengths)), text) == parts
