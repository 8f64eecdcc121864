"""Texts are cut into sentences, and placeholders are kept."""

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from apps.documents.prose import STAND_IN, changed, masked, translatable
from apps.documents.sentences import gap, sentences


@given(st.text(st.sampled_from("ab. ,!`%{}\n。é\u2028"), max_size=80), st.integers(1, 9))
def test_sentences_joined_are_the_text(text, most):
    for whole in (False, True):
        pieces = [
            *sentences(text, "en", regex.compile("`[^`]*`"), lambda text: len(text) <= most, whole)
        ]
        assert "".join(pieces) == text and all(len(piece) <= most for piece in pieces)


CELLS = """\
The list of all the houses
~==========================
~NAME   ~WHAT IT IS     ~COST
~door   ~a red door     ~$5 ~|
~       of wood        ~|
~Sold by the king.   ~And
~the queen.\t~Now\t~[1]""".split("~")


def test_cells_of_a_table_are_texts_of_their_own_and_stay_in_their_columns():
    assert [*sentences("".join(CELLS), "en", STAND_IN, lambda _: True)] == CELLS
    assert gap("  door   ", "Tür", "a") == "    " and gap("door   ", "das Fenster", "a") == " "
    assert gap("a   ", "漢", "b") == "  " and gap("a\t\t", "Tür", "a") == "\t\t"
    assert gap("It is.  ", "Ja.", "|") == "     " and gap("door ", "Tür", "|x|") == ""
    assert gap("The end.   ", "x", "a") == gap("door  ", "x", "a") == gap("door", "x", "a") == ""


def test_sentences_are_cut_where_a_reader_would():
    def cut(text: str, most: int = 99, **how) -> list[str]:
        pattern = regex.compile(r"!\[.*?\]")
        return [*sentences(text, "en", pattern, lambda text: len(text) <= most, **how)]

    assert cut("Dr. Ann sees. ![A dog] is.  Go!") == ["Dr. Ann sees. ", "![A dog] is.  ", "Go!"]
    assert cut("One. Two.\nThree.", whole=True) == ["One. Two.\n", "Three."]
    assert cut("Plan B. A dash: no! - He said. iPhones are here.") == [
        "Plan B. A dash: no! - He said. iPhones are here."
    ]
    assert cut("We see, as the dog sees us", 20) == ["We see, ", "as the dog sees us"]


@pytest.mark.parametrize(
    "language, pieces",
    [
        ("fr", ["M. Roi arrive avec MM. Dupont et Mme. Roi. ", "Il part."]),
        ("de", ["Im 19. Jahrhundert lebte Ludwig XIV. Er war Hr. Roi. ", "Er starb 1715. ", "Ja."]),
        ("nb", ["Den 3. oktober kom han. ", "Han gikk."]),
        ("pl", ["Spotkał dr. Nowaka i inż. Kota. ", "Poszedł."]),
        ("en", ["It was 19. ", "He went with Dr. Smith and J. R. Smith. ", "Good."]),
        ("en", ["He ate it. ", "5 went c. 40 km or approx. 5, see no. 5 and Vol. 5. ", "Ja."]),
        ("es", ["Era una casa. ", "5 son el núm. 5, o aprox. 5."]),
        ("de", ["Siehe S. 5, Bd. 5 und ca. 5 km. ", "Ja."]),
        ("ja", ["「行く。」と言った。", "そして寝た。"]),
        ("zh-Hant", ["他來了。", "她說好。"]),
    ],
)
def test_sentences_are_not_cut_after_titles_and_ordinals(language, pieces):
    text = "".join(pieces)
    assert [*sentences(text, language, STAND_IN, lambda _: True)] == pieces


def test_placeholders_are_kept():
    source = "%d of {name} at <b>https://a.org/x?y</b>, a@b.org: 50 % off"
    held = ["%d", "{name}", "<b>https://a.org/x?y</b>", "a@b.org"]
    assert sorted(changed(source, "")) == sorted(held)
    assert not changed(source, source)
    assert changed("one", "{s}") == ["{s}"]
    plain, restored = masked(source)
    assert plain == "{1} of {2} at {3}, {4}: 50 % off" and restored(plain) == source
    assert restored("{4} {1}: {3} {2}") == "a@b.org %d: <b>https://a.org/x?y</b> {name}"
    assert restored("{1} {2} {3}") is None and restored("{3} {1} {2} {4}") is None
    assert translatable("50 % off") and not translatable("<b>50</b> a@b.org")
