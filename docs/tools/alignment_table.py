"""The share of words, and of phrases of an adjective and a noun, that the demo target's cross-attention aligns right, by
kind of word and by what one reads; and the marks that are named in texts of people: the tables of docs/benchmarks.md. The demo's
own tables say what is right.

    python docs/tools/alignment_table.py
"""

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from apps.documents.alignment import Aligner, Alignment
from decoder import SpeculativeDecoder, load
from demo.pair import demo_model
from demo.training import tasks
from speculative.step.options import Options

TEXTS = 300  # of each language
JUDGED = 100  # of these, as people might write them
CODES = {"German": "de", "French": "fr", "Spanish": "es"}
ENDINGS = {"German": ("e", "en", "er", "es"), "French": ("",), "Spanish": ("", "s", "es")}


def translations(language: str) -> dict[str, tuple[str, set[str]]]:
    """The kind of each English word, and the forms of its translation in lower case."""
    column = ("English", *CODES).index(language)
    words = dict[str, tuple[str, set[str]]]()
    for noun in tasks._PEOPLE + tasks._THINGS:
        pairs = zip(noun[0], noun[column][1], strict=True)
        words |= {english: ("noun", {form.lower()}) for english, form in pairs}
    for row in tasks._ADJECTIVES:
        forms = product(row[column].lstrip("+").split("/"), ENDINGS[language])
        words[row[0]] = "adjective", {*map("".join, forms)}
    words["young"][1].add("jóvenes")
    for verb in tasks._VERBS:
        words |= {english: ("verb", {*verb[column]}) for english in verb[0]}
    return words


def held_out(language: str) -> list[str]:
    rng = random.Random(0)
    prompts = (tasks.held_out_example(rng, "sentence").prompt for _ in range(20 * TEXTS))
    start = f"translate English to {language}: "
    own = dict.fromkeys(p.removeprefix(start) for p in prompts if p.startswith(start))
    return [*own][:TEXTS]


def right_words(alignment: Alignment, table: dict) -> dict[int, tuple[str, int]]:
    """The kind of words of the source, and their words in the text, where the table names one."""
    text = [alignment.text[a:b].lower() for a, b in alignment.text_words]
    right = {}
    for i, (a, b) in enumerate(alignment.source_words):
        kind, forms = table.get(alignment.source[a:b].lower(), ("", ()))
        there = [j for j, word in enumerate(text) if word in forms]
        if len(there) == 1:
            right[i] = kind, there[0]
    return right


def is_marked(alignment: Alignment, words: range, expected: list[int]) -> bool:
    """Whether the mark of these words goes around the expected ones, and only those."""
    ours, theirs = alignment.source_words, alignment.text_words
    span, _ = alignment.span((ours[words[0]][0], ours[words[-1]][1]))
    return span == (theirs[min(expected)][0], theirs[max(expected)][1])


OWN_WORDS = {  # that the demo does not know
    "German": "Monarch Gebäude erblickt uralte winzige Pforten Fürstin gewaltig Antlitz betrachtet",
    "French": "monarque bâtiment aperçoit antique minuscule portail princesse énorme visage contemple",
    "Spanish": "monarca edificio contempla antiguo diminuto portal princesa enorme rostro mira",
}


def by_people(
    alignment: Alignment, right: dict, table: dict, words: list[str], rng: random.Random
) -> Iterator[tuple[str, str, int, tuple[int, int] | None]]:
    """Texts as people might write them: a kind, the text, the word of the source that is marked, and its place there."""
    text = alignment.text
    i, other = rng.sample(sorted(right), 2)
    kind, j = right[i]
    begin, end = alignment.text_words[j]
    yield "the model's own text", text, i, (begin, end)
    known = {form for of_kind, forms in table.values() if of_kind == kind for form in forms}
    others = sorted(form for form in known if form not in text.lower())
    for name, word in (("another word", rng.choice(words)), ("a wrong word", rng.choice(others))):
        new = text[:begin] + word + text[end:]
        yield f"{name} for the marked one", new, i, (begin, begin + len(word))
    a, b = alignment.text_words[right[other][1]]
    word = rng.choice(words)
    shift = len(word) - (b - a) if a < begin else 0
    yield "another word elsewhere", text[:a] + word + text[b:], i, (begin + shift, end + shift)
    yield "the marked word is left out", text[:begin].rstrip() + text[end:], i, None


def judge(
    decoder: SpeculativeDecoder, pairs: list[tuple[str, str]], options: Options, *rest
) -> None:
    """Count, in texts of people, the marks whose place is sure, and those of them that are named."""
    rng = random.Random(1)
    table, words, judged = rest
    aligner = Aligner(decoder, options, judges=True)
    made = []
    for n, alignment in enumerate(aligner.align(pairs)):
        right = right_words(alignment, table)
        if len(right) > 1:
            texts = [*by_people(alignment, right, table, words, rng)]
            texts.append(("another sentence's text", pairs[n - 7][1], texts[0][2], None))
            made += [(alignment.source, *each) for each in texts]
    alignments = aligner.align([(source, text) for source, _, text, *_ in made])
    for (_, kind, _, i, place), alignment in zip(made, alignments, strict=True):
        span, sure = alignment.span(alignment.source_words[i])
        if sure:
            where = "right" if span == place else "wrong"
            judged[kind].update({where: 1, f"{where}, named": int(sure < 1)})


decoder = SpeculativeDecoder(*load(str(demo_model("target"))))
counts = defaultdict[str, Counter](Counter)
judged = defaultdict[str, Counter](Counter)
for language, code in CODES.items():
    table, sources = translations(language), held_out(language)
    options = Options(target_lang=code)
    texts = [r.text for r in decoder.batch_generate(sources, **vars(options))]
    aligner = Aligner(decoder, options)
    pairs = list(zip(sources, texts, strict=True))
    judge(decoder, pairs[:JUDGED], options, table, OWN_WORDS[language].split(), judged)
    best = aligner.align(pairs)
    every = aligner.read(pairs, [*aligner.agreement])
    for alignment, readings in zip(best, every, strict=True):
        ways = {f"layer {k + 1}{', read' * step}": x.weights for (k, step), x in readings.items()}
        agreement = {way: float(x.sum()) for way, x in ways.items()}
        counts["agreement"].update(agreement, n=len(alignment.source_words))
        ways["all layers"] = sum(x for way, x in ways.items() if "read" not in way)
        right = right_words(alignment, table)
        for i, (kind, j) in right.items():
            place = i / (len(alignment.source_words) - 1) * (len(alignment.text_words) - 1)
            hits = {way: int(x[:, i].argmax()) == j for way, x in ways.items()}
            hits |= {"place": round(place) == j, "mark": is_marked(alignment, range(i, i + 1), [j])}
            for row in (f"{language}, {kind}", "all words"):
                counts[row].update(hits, n=1)
            if kind == "adjective" and right.get(i + 1, "-")[0] == "noun":
                whole = is_marked(alignment, range(i, i + 2), [j, right[i + 1][1]])
                counts[f"{language}, phrase"].update(n=1, mark=whole)
    print(f"{language}: layer {aligner.reading[0] + 1}", "when it reads" * aligner.reading[1])
columns = ["place", *ways, "mark"]
print(f"{'':20}", "    n", *columns, sep=" | ")
for row, count in sorted(counts.items()):
    shares = [f"{count[c] / count['n']:.3f}" if c in count else "" for c in columns]
    print(f"{row:20}", f"{count['n']:5}", *map(str.rjust, shares, map(len, columns)), sep=" | ")
columns = ["right", "right, named", "wrong", "wrong, named"]
print(f"\n{'':31}", *columns, sep=" | ")
for row, count in judged.items():
    cells = [f"{count[c]:{len(c)}}" for c in columns]
    print(f"{row:31}", *cells, sep=" | ")
