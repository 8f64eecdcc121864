"""Documents that nobody would write: each is read or is one line, in linear time."""

import time
from contextlib import suppress
from pathlib import Path

import pytest

from apps.documents import FORMATS, read
from apps.documents.prose import STAND_IN, edges
from apps.documents.sentences import sentences
from speculative.common.errors import InputError

PO = 'msgid ""\nmsgstr "Plural-Forms: nplurals={}; plural={};\\n"\n\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n'
HOSTILE = [
    (".po", "/etc/passwd"),
    (".po", PO.format(10**8, 0)),
    (".po", PO.format(2, "1/n")),
    (".po", PO.format(2, "(" * 5000)),
    (".srt", "1\n" + "9" * 400 + ":00:01,000 --> 00:00:02,000\nA\n"),
    (".html", "&#" + "9" * 5000 + ";"),
    (".html", '<meta charset="hex">a king'),
    (".md", "Press **{**"),
    (".md", "Press **{12**"),
    (".ass", "Format:\nDialogue: x"),
]


@pytest.mark.parametrize("ending, source", HOSTILE)
def test_a_hostile_document_is_read_or_is_one_line(ending, source):
    try:
        document = read(Path(f"a{ending}"), source.encode())
    except InputError as error:
        assert len(str(error).splitlines()) == 1
    else:
        document.write([f"{passage.text} {{" for passage in document.passages])


LONG = {
    "a\n{} \nb": " ", "{}'\">": "<a ", "{}x": "<code>", "<p>x <a>{}": " ", "a{}b": "\r", "{}y": "<b>x ",
    "{}x</i>y": "<b></u>", "{} ": "<!--", "{} b": "{{a", "{} c": "[[a", "{}\n": "a<br>", "a {}": "*b ", "1\n00:00:01,000 --> 00:00:02,000\n{}": "x\n",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", [".txt", ".html", ".md", ".srt"])
@pytest.mark.parametrize("source", LONG)
def test_time_is_linear(kind, source):
    """Quadratic time takes minutes with five times as much."""
    data = source.format(LONG[source] * 2500).encode()
    began = time.process_time()
    try:
        document = read(Path(f"a{kind}"), data, "utf-8")
        document.write([passage.text[::2] for passage in document.passages])
    except InputError as error:
        assert "no cue" in str(error)
    assert time.process_time() - began < 2


def test_the_marks_of_a_long_paragraph_do_not_take_quadratic_time():
    """It took 1.5 s, and takes 0.1 s."""
    document = FORMATS[".html"]("".join(f"<b>{i}th</b> {'king ' * 9}" for i in range(199)).encode())
    began = time.process_time()
    assert document.write([document.passages[0].text.upper()]).plain == []
    assert time.process_time() - began < 0.8


@pytest.mark.parametrize(
    "kind, source, repeated",
    [
        (".po", 'msgid "{}"\nmsgstx ""\n', '"'),
        (".po", 'msgid "a"\nmsgid_plural {}\nmsgstx ""\n', '"" '),
        (".po", 'msgid "%{0}"\nmsgid_plural "%{0}"\nmsgstr[0] ""\n', "0"),
        (".html", "<p>a{}", "<?"),
        (".html", "<p>a{}b<br>king", ". "),
        (".ass", "Dialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,a <{}", "a"),
    ],
)
def test_what_a_pattern_could_give_back_piece_by_piece_takes_linear_time(kind, source, repeated):
    began = time.process_time()
    with suppress(InputError):  # no message
        read(Path(f"a{kind}"), source.format(repeated * 50_000).encode())
    assert time.process_time() - began < 5


@pytest.mark.parametrize("kind", [".txt", ".html"])
@pytest.mark.parametrize(
    "text",
    [
        "a" * 50_000,
        f"a{' ' * 50_000}a",
        f"a{'😀' * 9000}a",
        "<a" * 3000,
        "漢a" * 9000,
        "[^a" * 9000,
    ],
)
def test_cutting_takes_linear_time(kind, text):
    began = time.process_time()
    for passage in FORMATS[kind](f"{text} {'The king sees. ' * 900}".encode()).passages:
        pieces = [*sentences(passage.text, "en", STAND_IN, lambda _: True)]
        assert "".join(map("".join, map(edges, pieces))) == passage.text
    assert time.process_time() - began < 3
