"""Which words became which: marks by hand-made alignments, readings of scripted attention, the demo's words."""

from dataclasses import replace
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from apps.documents.alignment import _WORD, Aligner, Alignment
from decoder import SpeculativeDecoder, load
from demo.pair import demo_model
from speculative.step.options import Options
from speculative.text.languages import Languages
from speculative.text.text_side import Prompt, TextSide
from speculative.text.tokenizer import byte_tokenizer


def words(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in _WORD.finditer(text)]


def aligned(source: str, text: str, links: str) -> Alignment:
    """links: for each word of the text the numbers of its words in the source, such as "0 2,3 1"; -: none."""
    weights = np.zeros((len(words(text)), len(words(source))))
    for j, numbers in enumerate(links.split()):
        for i in numbers.strip("-").split(",") if numbers != "-" else []:
            weights[j, int(i)] = 0.8
    nats = np.zeros(len(weights))
    return Alignment(source, text, words(source), words(text), weights + 0.01, nats)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("L'homme d’or, don't", ["L'", "homme", "d’", "or", "don't"]),  # noqa: RUF001
        ("Aujourd'hui п'ять king's 1,234.5", ["Aujourd'hui", "п'ять", "king's", "1,234.5"]),
        ("{0}red{name} e\u0301te\u0301-x", ["{0}", "red", "{name}", "e\u0301te\u0301", "x"]),
        ("日本のテスト ครับ", ["日", "本", "の", "テスト", "ค", "รั", "บ"]),
    ],
)
def test_marks_end_where_words_do(text, expected):
    assert [text[a:b] for a, b in words(text)] == expected


ENGLISH = "The king, today, sees “red houses”."
GERMAN = "Heute sieht der König „rote Häuser“."
FRENCH = "Aujourd'hui le roi voit des «maisons rouges»."
TO_GERMAN = aligned(ENGLISH, GERMAN, "2 3 0 1 4 5")
TO_FRENCH = aligned(ENGLISH, FRENCH, "2 0 1 3 - 5 4")


@pytest.mark.parametrize(
    "alignment, mark, expected",
    [
        (TO_GERMAN, "king", "König"),
        (TO_GERMAN, "kin", "König"),  # no word is split
        (aligned("a C6H6 (x) b", "b C6H6 (x)", "3 1 2"), "6 (x)", "6 (x)"),
        (aligned("C6H6", "C6H6", "0"), "6", "6"),
        (TO_GERMAN, " sees ", "sieht"),
        (TO_GERMAN, "The king", "der König"),
        (TO_GERMAN, "red houses", "rote Häuser"),
        (TO_GERMAN, "“red houses”", "„rote Häuser“"),
        (TO_GERMAN, "houses”.", "Häuser“."),
        (TO_GERMAN, ENGLISH, GERMAN),
        (TO_FRENCH, "red", "rouges"),
        (TO_FRENCH, "red houses", "maisons rouges"),
        (TO_FRENCH, "sees “red houses”", "voit des «maisons rouges»"),  # the gap is closed
        (TO_FRENCH, "today, sees", "Aujourd'hui"),  # a wider one is not
    ],
)
def test_marks_go_around_the_words_for_their_words(alignment, mark, expected):
    start = alignment.source.index(mark)
    (begin, stop), sure = alignment.span((start, start + len(mark)))
    assert alignment.text[begin:stop] == expected
    assert sure


@pytest.mark.parametrize(
    "before, expected",
    [
        ("", ""),
        ("The king", "Heute sieht der König"),
        ("The king,", "Heute sieht der König"),
        ("The king, ", ""),  # before "today"
        ("The ki", "Heute sieht der König"),
        ("The king, today, sees “red houses”", "Heute sieht der König „rote Häuser“"),
        (ENGLISH, GERMAN),
    ],
)
def test_notes_go_behind_the_word_that_they_touch(before, expected):
    (begin, stop), sure = TO_GERMAN.span((len(before), len(before)))
    assert (begin, stop, sure) == (len(expected), len(expected), True)


def test_what_no_words_say_is_not_sure():
    vague = Alignment(ENGLISH, GERMAN, words(ENGLISH), words(GERMAN), np.ones((6, 6)), np.zeros(6))
    assert not vague.span((4, 8))[1]
    assert aligned("a", "...", "").span((0, 0)) == ((0, 0), True)
    assert aligned("a b", "...", "").span((0, 1)) == ((0, 3), False)
    assert aligned("-- ++", "x y", "-").span((0, 2)) == ((0, 3), False)
    assert not TO_GERMAN.span((8, 9))[1]  # a comma alone


def test_the_place_of_words_that_the_model_would_not_have_written_is_half_sure():
    doubtful = replace(TO_GERMAN, nats=np.array([0, 0, 0, 0, 9, 2]))
    for mark, sure in (("red houses", 0.5), ("red", 0.5), ("houses", 1), ("king", 1)):
        start = ENGLISH.index(mark)
        place, certainty = TO_GERMAN.span((start, start + len(mark)))
        assert certainty == 1
        assert doubtful.span((start, start + len(mark))) == (place, sure)


class Scripted:
    """Two layers. The second attends to the same word of the source, one step after it was written."""

    ranks = None
    config = SimpleNamespace(pad_token_id=0, max_positions=40, max_prompt_tokens=30)
    decoder = SimpleNamespace(layers=[None, None])

    def __init__(self):
        self.calls = []

    def prefix(self, prompt):
        return [0]

    def attention(self, prompts, tokens, heads):
        self.calls.append(list(heads))
        assert tokens.shape[1] <= 40 and max(map(len, prompts)) <= 30
        decoded = byte_tokenizer().decode
        scores = np.zeros((len(prompts), 2, tokens.shape[1], max(map(len, prompts))), np.float32)
        for b, (prompt, row) in enumerate(zip(prompts, tokens.tolist(), strict=True)):
            source, text = decoded(prompt), decoded(row)
            for start, stop in words(text):
                at = source.find(text[start:stop])
                if at >= 0:
                    scores[b, :, 1 + start : 1 + stop, at : at + stop - start] = 9
        return None, {k: mx.array(scores if k else scores[..., ::-1] / 9) for k in heads}


def scripted_aligner() -> Aligner:
    tokenizer = byte_tokenizer()
    model = Scripted()
    return Aligner(SimpleNamespace(model=model, text=TextSide(tokenizer)), Options())


PAIR = "red big house", "house red big"


def test_the_reading_that_agrees_best_is_chosen_and_kept():
    aligner = scripted_aligner()
    aligner.align([PAIR] * 99)
    assert aligner.reading == (1, 1)
    (alignment,) = aligner.align([PAIR])
    assert [alignment.weights[:, i].argmax() for i in range(3)] == [1, 2, 0]
    aligner.align([PAIR] * 9)
    assert aligner._model.calls[-2:] == [[0, 1], [1]]


def test_rubbish_at_first_does_not_choose_for_ever(monkeypatch):
    """As one client of a server may send it."""
    aligner = scripted_aligner()

    def read(pairs, readings):
        for source, _ in pairs:
            best = (0, 0) if source == "rubbish" else (1, 1)
            yield {each: SimpleNamespace(agreement=1.0 * (each == best)) for each in readings}

    monkeypatch.setattr(aligner, "read", read)
    aligner.align([("rubbish", "x")] * 140)
    assert aligner.reading == (0, 0)
    for _ in range(20):
        aligner.align([PAIR] * 8)
    assert aligner.reading == (1, 1)


def test_more_texts_help_to_choose_if_there_are_few():
    aligner = scripted_aligner()
    others = iter([PAIR] * 20)
    assert len(aligner.align([PAIR], others)) == 1
    assert len(aligner._model.calls) == 2 and len(list(others)) == 5
    assert len(aligner.align([PAIR] * 3, others)) == 3


def test_long_texts_are_aligned_as_far_as_the_model_reads_and_empty_ones_not():
    source = "one two six ten big red old"
    aligner = scripted_aligner()
    text = f"six one {source[::-1]} again"
    long, empty = aligner.align([(source + " ü" * 20, text), ("one", "")])
    assert long.span((8, 11)) == ((0, 3), True)
    assert not long.span((len(source) + 3, len(source) + 4))[1]
    assert empty.span((0, 1)) == ((0, 0), False)


@pytest.mark.parametrize("kind", ["plain", "in words", "by tokens"])
def test_tokens_have_their_characters_however_a_text_is_framed(kind):
    tokenizer = byte_tokenizer()
    languages = {
        "in words": Languages({"de": "to German: "}),
        "by tokens": Languages({"de": 300, "fr": 301}, ["source", "text", 1], ["start", "target"]),
    }.get(kind)
    side = TextSide(tokenizer, languages=languages, start_token=0)
    text = "Say: hé"
    codes = {"in words": (None, "de"), "by tokens": ("fr", "de")}.get(kind, (None, None))
    encoded = side.encode(Prompt(text), *codes)
    own = tokenizer.encode(text, add_special_tokens=False)
    inside = [i for i, (a, b) in enumerate(encoded.spans) if 0 <= a < b <= len(text)]
    assert [encoded.tokens[i] for i in inside] == own.ids
    assert [encoded.spans[i] for i in inside] == own.offsets


def test_the_demos_words_and_phrases_are_where_its_texts_have_them():
    decoder = SpeculativeDecoder(*load(str(demo_model("target"))))
    aligner = Aligner(decoder, Options(target_lang="fr"))
    alignments = aligner.align(
        [
            ("The old king sees the red house.", "Le vieux roi voit la maison rouge."),
            ("My sister must paint the heavy door.", "Ma sœur doit peindre la porte lourde."),
            ("Today, the girl buys three hats.", "Aujourd'hui, la fille achète trois chapeaux."),
        ]
    )
    assert aligner.reading == (2, 0)
    for alignment, mark, expected in zip(
        alignments,
        ("red house", "heavy", "three hats"),
        ("maison rouge", "lourde", "trois chapeaux"),
        strict=True,
    ):
        start = alignment.source.index(mark)
        (begin, stop), sure = alignment.span((start, start + len(mark)))
        assert (alignment.text[begin:stop], sure) == (expected, True)
