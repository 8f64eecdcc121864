"""Texts are cut into sentences, and placeholders are kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.documents.sentences import changed, keep_pattern, masked, sentences, translatable


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
    assert [*sentences(text, language, keep_pattern(), lambda _: True)] == pieces


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
