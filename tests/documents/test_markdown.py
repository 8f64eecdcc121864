"""Markdown's dialects: only their texts change, and a translation does not become other markup."""

import pytest

from apps.documents import FORMATS

DIALECTS = [
    ("> [!WARNING]\n> old.\n\n> [!tip]+ old one\n> old.\n", ["old.", "old one", "old."]),
    (":::note old\nold *one*.\n\n- old\n:::\n", ["old", "old one.", "old"]),
    ("+++\ntitle = 'it stays'\n+++\nold\n", ["old"]),
    ("| old \\| one | old |\n|--|--|\n| old | `x` |\n", ["old \\| one", "old", "old"]),
    ("old[^1]\n\n[^1]: old\n    one.\n\n    old two.\n\n[^2]: old\n", ["old", "old one.", "old two.", "old"]),
    ("old $a_1$ for $5\n\n$$\nit stays\n$$\n", ["old {1} for $5"]),
    ("$a$ is old 5\n", ["{1} is old 5"]),
    ("old\n$$\nit stays\n  = x$$\nold\n$$ x = 1 $$\nold\n", ["old", "old", "old"]),
    ("(it:stays)=\nold\n: old [](it-stays), <it:stays> \\@it(stays).\n", ["old", "old {1}, {2} {3}."]),
    ("$$\nit stays\n$$ {#eq-x}\n\n%%\nit stays\n%%\n\nold\n", ["old"]),
    ("old.  \nTwo\\\nold\\\nThree\n", ["old.", "Two old", "Three"]),
    ("old <kbd>Ctrl</kbd> <code>it stays</code> old\n", ["old {1} {2} old"]),
    ('An old {{ "*a*" }} king [[it *stays*]] sees {a_b} _one_ <code>{"_"}</code>\n', ['An old {{ "*a*" }} king [[it *stays*]] sees {a_b} one {1}']),
    ("```{note} An old *one*\n:class: x\nold ones\n```\n\n> ```{tip}\n> old\n> ```\n", ["An old one", "old ones", "old"]),
    ("| An old king\n| sees old doors.\n\n:::{card} old\nold\n+++\nold ones\n+++ old\n:::\n", ["An old king", "sees old doors.", "old", "old", "old ones", "old"]),
    ("A word\n: old\n\n- [x] old\n", ["A word", "old", "old"]),
    ('!!! note "old note"\n    old\n\n!!! Note\n    old\n', ["old note", "old", "old"]),
    ("```{.py a=`b`}\nit stays\n```\n\nold\n% it stays\n\n50\n% stays\n", ["old", "50 % stays"]),
    ("/// note | old\nold\n///\n\n/// html | it.stays\nold\n///\n", ["old", "old", "old"]),
    ("old ==old== ^^old^^ {++old++} [old]{.x} [old][it] {ref}`x`<sup>1</sup> x<sup>2</sup>\n", ["old old old old old old {1} x2"]),
    ("#. old one\n#. old\n\n\\begin{x}\nit stays\n\\end{x}\n\n---\nit: stays\n---\n", ["old one", "old"]),
    ('> === "old"\n>\n>     old\n\n> {% raw %}\n> it stays\n> {% endraw %}\n', ["old", "old"]),
    ("[old [[x]] one](u) [[@x, p. 3]](u) ([#15]) [[x]][^1]\n\n[#15]: u\n\n[^1]: old\n", ["old [[x]] one [@x, p. 3] (#15) [[x]]", "old"]),
    ("[old\\\n{{< x >}} {{< y >}}](u)\n", ["old\n{{< x >}} {{< y >}}"]),
]  # fmt: skip


@pytest.mark.parametrize("source, texts", DIALECTS)
def test_only_texts_of_a_dialect_change(source, texts):
    document = FORMATS[".markdown"](source.encode())
    assert [passage.text for passage in document.passages] == texts
    assert document.write([p.text for p in document.passages]).data.decode() == source
    new = [passage.text.replace("old", "new") for passage in document.passages]
    assert document.write(new).data.decode() == source.replace("old", "new")


BESIDE = """\
# An ![old *king*](k.png "The old house")

See [it](d.md "The old door"), ![old][] and [![old `x`][b]](u).

:::note The old king
Yes.
:::

```{tip} An old one
Yes.
```

[old]: x.png "An old title"
[b]: y.png

    [c]: z.png "it stays"
"""


def test_alternative_texts_titles_and_boxes_heads_are_texts():
    document = FORMATS[".md"](BESIDE.encode())
    texts = [passage.text for passage in document.passages]
    assert document.write(texts).data.decode() == BESIDE
    titles = {"The old house", "The old door", "The old king", "An old one", "An old title"}
    assert {text for text in texts if "old" in text} == titles | {"old king", "old {1}"}
    new = document.write([text.replace("old", "new") for text in texts]).data.decode()
    assert new == BESIDE.replace("old", "new").replace("![new][]", "![old][]").replace(
        "[new]:", "[old]:"
    )


@pytest.mark.parametrize("prefix", ["", "> ", "  "])
@pytest.mark.parametrize("ending", ["  ", "\\"])
def test_a_line_that_a_short_text_leaves_empty_goes(prefix, ending):
    document = FORMATS[".md"](f"{prefix}a\n{prefix}b{ending}\n{prefix}Next\n".encode())
    new = document.write(["Ja", "Eva"]).data.decode()
    assert new == f"{prefix}Ja{ending}\n{prefix}Eva\n"


NOTES = "> old^[one *red*\n> `x`], `^[stays]`\n\n| old^[two] |\n|--|\n"


def test_an_inline_note_is_a_text_of_its_own():
    document = FORMATS[".md"](NOTES.encode())
    texts = [passage.text for passage in document.passages]
    assert texts == ["old, {1}", "old", "one red {1}", "two"]
    assert document.write(texts).data.decode() == NOTES
    new = document.write(["` new, {1}", "new", "three red] {1}", "4 `"]).data.decode()
    changed = NOTES.replace("old", "new").replace("one *red*\n> `x`], ", "three *red*\\] `x`],\n> ")
    assert new == changed.replace("two", "4 &#96;").replace("> ", "> &#96; ", 1)


def test_a_line_of_a_note_is_not_its_paragraphs():
    source = "An old^[the old\nold doors\nare old] king\n"
    document = FORMATS[".md"](source.encode())
    new = document.write([each.text.replace("old", "new") for each in document.passages])
    assert new.data.decode().split() == source.replace("old", "new").split()


@pytest.mark.parametrize("bilingual, before", [(False, ""), (True, "The *king*'s `x`<br/>")])
def test_a_heading_that_a_link_leads_to_keeps_its_id(bilingual, before):
    source = "# The *king*'s `x`\n\n[he](#the-kings-x) [door][]\n\n[door]: <#b-ü-1>\n\n# B ü\n\nB ü\n===\n\n# C\n"
    document = FORMATS[".md"](source.encode(), bilingual=bilingual)
    texts = [passage.text.upper() for passage in document.passages]
    lines = document.write(texts).data.decode().splitlines()
    assert lines[0] == f'# <a id="the-kings-x"></a>{before}THE *KING*\'S `x`'
    assert lines[6].startswith("# B") and lines[8].startswith('<a id="b-ü-1"></a>B')
    assert (
        lines[2].endswith("[HE](#the-kings-x) [DOOR][door]") != bilingual and "<a" not in lines[-1]
    )


@pytest.mark.parametrize(
    "source, text, written",
    [
        ("It was winter\nwhen he came.\n", "Er kam gut am 1. Januar an", "Er kam gut am 1.\nJanuar an\n"),
        ("one\ntwo\nthree\n", "a\n\nb c", "a\nb\nc\n"),
        ("- one\n  two\n", "1. Mai - 5", "- 1\\.\n  Mai - 5\n"),
        ("one\n", "# zwei", "\\# zwei\n"),
        ("See [the king][] and [Ann].\n\n[the king]: x\n[ann]: y\n", "Siehe the king und Ann.", "Siehe [the king][the king] und [Ann][Ann].\n\n[the king]: x\n[ann]: y\n"),
        ("{{% notice %}}\nA king.\n{{% /notice %}}\n", "Ein {{< ref >}}.", "{{% notice %}}\nEin {{< ref >}}.\n{{% /notice %}}\n"),
        ("one\ntwo <!-- b -->\n", "eins", "eins <!-- b -->\n"),
        ("[^a] :x: one two three\n\n[^a]: \n", ":x: eins", "[^a] :x: eins\n\n[^a]: \n"),
        ("| <!-- a --> one\n", "eins", "| <!-- a --> eins\n"),
        ("**one two**{#a} three\n", "eins", "**eins**{#a}\n"),
        ("| a |\n|--|\n| b |\n", "x | y", "| x \\| y |\n|--|\n| b |\n"),
    ],
)  # fmt: skip
def test_a_translation_does_not_begin_a_list_or_the_like(source, text, written):
    document = FORMATS[".md"](source.encode())
    others = [None] * (len(document.passages) - 1)
    assert document.write([text, *others]).data.decode() == written
