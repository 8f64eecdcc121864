"""What is prose reaches the model, and nothing else; the rest is there again, or its passage stays."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from apps.documents import FORMATS
from apps.documents.prose import FORMS, STAND_IN, changed, edges, masked, translatable

PROSE = """\
Dear Ms. O'Brien-Smith, the $1,250.50 (incl. 19% VAT) of 12/03/2024 is due; call 9:30 a.m.-5 p.m. and/or send an e-mail, he/she said.
AT&T's R&D and the Q&A of M&S: 24/7, 3/4 done, 1/2 cup, 180°C, ~100 g, 2 + 2 = 4, a < b, A | B, 5* price: 5€ / 6$, $5-$6/month, US$5bn!
lol :-) ;) :D xD <3 ^^ >_< hmmm... gr8!!! The king--who was old--slept: "Well," he said, 'no.' [sic] `Yes,' he said. `No.' word(s) (s)he
Louis XIV, World War II, pp. 12-34, No. 5, i.e. 4x4, Sec. 2(a), J. R. R. Smith, Ph.D., 10.30am, H2O, 5'10", f*** it, A+, [t]he house
Die Lehrer/innen, Schüler*innen, Leser:innen und Student_innen (5%-Hürde, 100%ig, z. B. 1.234,56 €, d.h. S. 5 ff.), L'an 50 % d'eux
Dr hab. J. Kowalski, ul. Długa 5/7; Ваш заказ № 123/45, 1 234,50 руб., и/или )))；他说：“5%的人喜欢A型。”10~20分、3LDK。ราคา 1,500 บาท ฯลฯ l@s niñ@s
"""  # noqa: RUF001
SYNTAX = r"""
:class:`~king.House` __count__ %FUNCTION% %1 %s %'d %-5.2f %(n)s %1$s Ctrl+O $$x^2$$ $x$ {#eq-x} \(x\) \cite{a} \ref{x} @sec-house {:toc}
[@king1984] (king-house)= ++ctrl+c++ H~2~O [[House]] ![[king.png|200]] ^door1 %%note%% :smile: |x| {ref}`x` `x`_ ``x`` {{name}} ${name}
{{<ref>}} {%if%} foo_bar foo() $(date) \alpha [url=x] --[no-]signed --base[=x] (eq:1)= a.b(c,d) a/b.py /etc/passwd ~/x ./x C:\x std::vector x=1 --flag --x=y [--x=(y)] “--x” "--x='y'" -vvv “/x/y” $HOME a@b.org https://a.b/c_d
*.tar.gz (@x) [king84]_ [#n]__ $[officename] :a::b: [key::x] ~~king.py ==foo_bar www.a.org README.md [^1] [1] [xii] <br/> <!--x--> &amp; sprite.jpg#xywh=0 .. #id foo.bar {count,plural,one{#}}
""".split()


def test_prose_is_not_held_back_and_syntax_does_not_reach_the_model():
    held = [match[0] for match in STAND_IN.finditer(PROSE) if letters_in(match[0])]
    assert held == []
    reaches = [each for each in [*SYNTAX, "$ make all"] if letters_in(STAND_IN.sub("", each))]
    assert reaches == []
    assert STAND_IN.sub("", "%.3fs %(link)sopen%(end)s -f/--file") == "s open /"


def letters_in(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]", text)


@pytest.mark.parametrize("text", ["XIV", "II.", "[xii]", "A", "5 (b)", "**$x$**", "{{x}} 5%"])
def test_what_has_no_words_is_not_translated(text):
    assert not translatable(text)
    assert translatable("I?") and edges("II. The king") == ("II. ", "The king", "")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "text, new, written",
    [
        ("see {x} at %s", "{2} {1} ja", "%s {x} ja"),
        ("**the house** is", "ist {1}das Haus{2}", "ist **das Haus**"),
        ("**the house** is", "ist {1} das Haus{2}", None),
        ("_Open", "{1}Öffnen", "_Öffnen"),
        ("_Open", "Öffnen{1}", None),
        ("%s of %d", "{2} von {1}", None),
        ("<b>x</b>", "{2}y{1}", None),
        ("[😀 x](u)", "{2} y {1}", None),
        ("`x`", "{1}{1}", None),
        ("`x` y", "y", None),
        ("so... a::b", "ja... {1}", "ja... a::b"),
        ("%d%% of %%x%%", "{1} von {2}", "%d%% von %%x%%"),
    ],
)
def test_stand_ins_come_back_once_in_their_order_and_at_their_words(form, text, new, written):
    _, restored = masked(text, form)
    assert restored(re.sub(r"\{(\d)\}", form.format(r"\1"), new)) == written


PIECES = st.sampled_from([*SYNTAX, "the", "King", "(house)", "**", "_", ".", "a.b", "'s", "5%"])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(PIECES, st.sampled_from(["", " "])), unique_by=lambda each: each[0]))
def test_all_that_a_translation_must_have_again_is_hidden_from_the_model(pieces):
    """Whatever stands beside it, and whatever becomes of the words."""
    text = "".join(map("".join, pieces))
    plain, restored = masked(text)
    new = restored(re.sub(r"[A-Za-z]", "ж", plain))
    assert new is not None and changed(text, new) == []


MARKS = ["**{}  \n{}**", "*{}\\\n{}*", "[{}  \n{}](u)", "**{}**", "`{}`", "[{}][]", "{}", "{}  \n{}", "\\*{}\\*", "$x$", "[[{}]]", "_{}_", "<b>{}</b>"]  # fmt: skip
BLOCKS = ["{}\n", "# {}\n", "- {}\n", "> {}\n", "| {} |\n|--|\n", "::: x\n:class: a\n\n{}\n:::\n"]
WORDS = st.sampled_from(["The old king", "the house.", "A dog &", "was paid $5 then"])


@st.composite
def markdown(draw: st.DrawFn) -> str:
    blocks = list[str]()
    for block in draw(st.lists(st.sampled_from(BLOCKS), max_size=4)):
        parts = draw(st.lists(st.sampled_from(MARKS), min_size=1, max_size=3))
        words = [part.format(draw(WORDS), draw(WORDS)) for part in parts]
        text = " ".join(words)
        blocks.append(block.format(text.replace("\n", " ") if block[0] in "#|" else text))
    return "\n".join(blocks)


def marks_in(source: str) -> list[tuple[str, str]]:
    """The marks that markdown-it finds, as it does not know the dialects."""
    tokens = MarkdownIt("commonmark").enable("table").parse(source)
    inside = [each for token in tokens for each in token.children or ()]
    opened = (each for each in inside if each.nesting > 0 or each.type == "hardbreak")
    return sorted((each.type, str(each.attrs)) for each in opened)


@settings(max_examples=60, deadline=None)
@given(markdown())
def test_the_marks_that_are_read_are_those_of_the_source(source):
    document = FORMATS[".md"](source.encode())
    found = [mark for passage in document.passages for mark in passage.marks]
    pairs = sum(mark.closes != "" and mark.opens[:1] in "*_[" for mark in found)
    assert pairs == sum(kind != "hardbreak" for kind, _ in marks_in(source))
    plain = [masked(passage.text) for passage in document.passages]
    written = document.write([restored(text.replace("king", "King")) for text, restored in plain])
    assert not written.problems and marks_in(written.data.decode()) == marks_in(source)
    assert written.data.decode().lower() == source.lower()
