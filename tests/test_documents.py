"""Formats of documents: only their texts change; sentences and placeholders."""

import io
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from documents import FORMATS, gettext
from documents.document import Passage, by_length
from documents.sentences import changed, keep_pattern, masked, sentences, translatable
from errors import InputError

WRAPPED = "An old king sees a door that is red, and\nhis old dog sees it too."
CUES = "1\n00:00:01,000 --> 00:00:02,000\nan old king\r\nsees\n\n2\n00:00:03,000 --> 00:00:04,500\n<i>an old door.</i>\n"
VTT = "WEBVTT\n\nNOTE it stays\n\nit stays\n" + CUES.replace(",", ".").partition("\n")[2]
MARKDOWN = "---\nit: stays\n---\n# An old *king*\n\n- old one `x. y`\n  old two\n\n| old | old |\n|--|--|\n| old | d |\n\n```\nit stays\n```\n<p>it stays</p>\n"
READ = [
    (".txt", f"\ufeffan old.\r\n\r\n  {WRAPPED}\n", ["an old.", WRAPPED.replace("\n", " ")]),
    (".txt", "old roses\nold violets\n", ["old roses", "old violets"]),
    (".srt", CUES + "\n3\n00:01,000 --> 00:02,000\n- old.\n- old.", ["an old king sees an old door.", "- old.", "- old."]),
    (".vtt", VTT, ["an old king sees an old door."]),
    (".md", MARKDOWN, ["An old *king*", "old one `x. y` old two", "old", "old", "old", "d"]),
]  # fmt: skip


@pytest.mark.parametrize("ending, source, texts", READ)
def test_only_texts_change(ending, source, texts):
    document = FORMATS[ending](source.encode())
    assert [passage.text for passage in document.passages] == texts
    assert document.write([None] * len(texts)) == source.encode()
    new = [text.replace("old", "new") for text in texts]
    assert document.write(new).decode() == source.replace("old", "new")


def test_a_po_files_messages_without_a_translation_get_one():
    head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    done = '\nmsgid "done"\nmsgstr "fertig"\n\n#, fuzzy, c-format\nmsgid "%d"\nmsgstr "stays"\n'
    asked = 'msgid "one\\n"\n"more"\nmsgid_plural "many"\n'
    fuzzy = f'#, c-format, fuzzy\n#| msgid "old"\n{asked}msgstr[0] "x"\nmsgstr[1] ""\n'
    document = FORMATS[".po"](f"{head}{fuzzy}{done}".encode())
    assert [passage.text for passage in document.passages] == ["one\nmore", "many", "%d"]
    new = f'#, c-format, fuzzy\n{asked}msgstr[0] ""\n"eins\\n"\n"\\"mehr\\""\nmsgstr[1] "viele"\n'
    written = document.write(['eins\n"mehr"', "viele", None]).decode()
    assert written == f"{head}{new}{done}" and document.place(document.passages[1]) == "line 10"
    bare = b'msgid "one"\nmsgstr ""\n'  # without a head
    assert gettext.parse(bare, fuzzy=False).write(["eins"]) == bare.replace(b'""', b'"eins"')


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
        ("Ann & ich", ["", "Ann", " &amp; ich", ""], []),
        ("Wir, Ann, <b>", ["Wir, ", "Ann", ", &lt;b&gt;", ""], []),
        ("Wir", ["Wir", "", "", ""], ["Ann"]),
    ],
)
def test_words_of_a_docx_keep_their_formatting_where_they_are_found(text, runs, plain):
    formats = ["", "<w:b/>", '<w:lang w:val="de"/>', ""]
    old = docx(*zip(formats, ["We, ", "Ann", " &amp; a d", "og"], strict=True))
    document = FORMATS[".docx"](old)
    assert [passage.text for passage in document.passages] == ["We, Ann & a dog"]
    for texts, body in (([None], old), ([text], docx(*zip(formats, runs, strict=True)))):
        one, other = (zipfile.ZipFile(io.BytesIO(x)) for x in (document.write(texts), body))
        assert one.namelist() == other.namelist()
        assert all(one.read(name) == other.read(name) for name in one.namelist())
    assert document.plain == plain


@pytest.mark.parametrize(
    "ending, data, message",
    [
        (".txt", b"\xff\xfe\xff", "not UTF-16-LE text"),
        (".txt", "Zürich".encode("latin-1"), "not UTF-8 text; convert it"),
        (".md", b"a\0b", "not text"),
        (".srt", b"1\n00:00:01,000 -> 00:00:02,000\nA\n", "line 2: no cue's times"),
        (".srt", b"1\n00:00:01,000 --> late\nA\n", "line 2: no cue's times"),
        (".vtt", b"WEBVTT\n\nA king.\n", "no cues with times"),
        (".po", b"no messages", "not a .po file"),
        (".po", b'msgid ""\nmsgstr "charset=ISO-8859-1\\n"\n', "msgconv -t UTF-8"),
        (".docx", b"PK", "not a .docx file"),
        (".docx", docx(("", "a"))[:-40], "not a .docx file"),
        (".docx", docx(("", "<")), "not a .docx file: document.xml: "),
        (".docx", docx(("", "<!DOCTYPE x>")), "document.xml has a document type"),
    ],
)
def test_what_cannot_be_read_is_one_line(ending, data, message):
    with pytest.raises(InputError, match=message):
        FORMATS[ending](data)


@pytest.mark.parametrize(
    "lengths, text, parts",
    [
        ([10, 10], "a bb ccc dddd", ["a bb ccc", "dddd"]),
        ([1, 50], "Donaudampfschiff fährt", ["Donaudampfschiff", "fährt"]),
        ([5, 3, 2], "x", ["x", "", ""]),
        ([5, 5], "これはペンです", ["これはペ", "ンです"]),
    ],
)
def test_a_text_is_spread_by_length(lengths, text, parts):
    assert by_length(Passage("", tuple((0, length) for length in lengths)), text) == parts


@given(st.text(st.sampled_from("ab. ,!`%{}\n。é\u2028"), max_size=80), st.integers(1, 9))
def test_sentences_joined_are_the_text(text, most):
    for whole in (False, True):
        pieces = [
            *sentences(text, "en", keep_pattern("`[^`]*`"), lambda text: len(text) <= most, whole)
        ]
        assert "".join(pieces) == text and all(len(piece) <= most for piece in pieces)


def test_sentences_are_cut_where_a_reader_would():
    def cut(text: str, most: int = 99, **how) -> list[str]:
        pattern = keep_pattern(r"!\[.*?\]")
        return [*sentences(text, "en", pattern, lambda text: len(text) <= most, **how)]

    assert cut("Dr. Ann sees. ![A dog] is.  Go!") == ["Dr. Ann sees. ", "![A dog] is.  ", "Go!"]
    assert cut("One. Two.\nThree.", whole=True) == ["One. Two.\n", "Three."]
    assert cut("We see, as the dog sees us", 20) == ["We see, ", "as the dog sees us"]


def test_placeholders_are_kept():
    source = "%d of {name} at <b>https://a.org/x?y</b>, a@b.org: 50 % off"
    held = ["%d", "{name}", "<b>", "https://a.org/x?y", "</b>", "a@b.org"]
    assert changed(source, "", keep_pattern("%d")) == held
    assert not changed(source, source, keep_pattern("%d"))
    assert changed("one", "{s}", keep_pattern()) == ["{s}"]
    plain, restored = masked(source, keep_pattern("%d"))
    assert plain == "X1 of X2 at X3X4X5, X6: 50 % off" and restored(plain) == source
    assert translatable("50 % off", keep_pattern()) and not translatable(
        "<b>50</b> a@b.org", keep_pattern()
    )
