"""How often the demo target's cross-attention says which word became which, and whole phrases: the tables of
docs/translating.md. Right are the translations that the demo's own tables give.

    python docs/tools/alignment_table.py
"""

import random
import sys
from collections import Counter
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from decoder import SpeculativeDecoder, load
from demo.pair import demo_model
from demo.training import tasks
from speculative.options import Options
from text.alignment import Aligner, Alignment

TEXTS = 300  # of each language
CODES = {"German": "de", "French": "fr", "Spanish": "es"}
ENDINGS = {"German": ("e", "en", "er", "es"), "French": ("",), "Spanish": ("", "s", "es")}


def translations(language: str) -> dict[str, tuple[str, set[str]]]:
    """The kind of each English word, and the forms of its translation in lower case."""
    column = ("English", *CODES).index(language)
    words = dict[str, tuple[str, set[str]]]()
    for noun in tasks._PEOPLE + tasks._THINGS:
        for english, form in zip(noun[0], noun[column][1], strict=True):
            words[english] = "noun", {form.lower()}
    for row in tasks._ADJECTIVES:
        stems = [*row[column].lstrip("+").split("/"), "jóvene" if row[0] == "young" else ""]
        forms = {stem + ending for stem, ending in product(filter(None, stems), ENDINGS[language])}
        words[row[0]] = "adjective", forms
    for verb in tasks._VERBS:
        words |= {english: ("verb", {*verb[column]}) for english in verb[0]}
    return words


def held_out(language: str) -> list[str]:
    rng = random.Random(0)
    start = f"translate English to {language}: "
    texts = dict[str, None]()
    while len(texts) < TEXTS:
        prompt = tasks.held_out_example(rng, "sentence").prompt
        if prompt.startswith(start):
            texts[prompt.removeprefix(start)] = None
    return [*texts]


def places(alignment: Alignment, table: dict) -> dict[int, tuple[str, int]]:
    """The kind of words of the source, and their words in the text, where the table names one."""
    text = [alignment.text[a:b].lower() for a, b in alignment.text_words]
    result = {}
    for i, (a, b) in enumerate(alignment.source_words):
        kind, forms = table.get(alignment.source[a:b].lower(), ("", set()))
        there = [j for j, word in enumerate(text) if word in forms]
        if len(there) == 1:
            result[i] = kind, there[0]
    return result


def main() -> None:
    decoder = SpeculativeDecoder(*load(str(demo_model("target"))))
    counts = dict[str, Counter]()
    for language, code in CODES.items():
        options = Options(target_lang=code)
        table = translations(language)
        sources = held_out(language)
        texts = [r.text for r in decoder.batch_generate(sources, **vars(options))]
        pairs = list(zip(sources, texts, strict=True))
        aligner = Aligner.of(decoder, options)
        assert aligner
        best = aligner.align(pairs)
        readings = [*aligner.agreement]
        every = [x for i in range(0, TEXTS, 20) for x in aligner.read(pairs[i : i + 20], readings)]
        for alignment, by_reading in zip(best, every, strict=True):
            ways = {f"layer {k + 1}" + ", read" * s: x.weights for (k, s), x in by_reading.items()}
            ways["all layers"] = sum(x.weights for (_, s), x in by_reading.items() if not s)
            total = counts.setdefault("agreement", Counter())
            total["n"] += len(alignment.source_words)
            total.update({way: float(x.sum()) for way, x in ways.items() if way != "all layers"})
            right = places(alignment, table)
            for i, (kind, j) in right.items():
                share = i / max(len(alignment.source_words) - 1, 1)
                marks = {kind: (i, i, j, j)}
                if kind == "adjective" and right.get(i + 1, ("",))[0] == "noun":
                    marks["phrase"] = i, i + 1, *sorted((j, right[i + 1][1]))
                for name, (first, last, begin, stop) in marks.items():
                    mark = alignment.source_words[first][0], alignment.source_words[last][1]
                    wanted = alignment.text_words[begin][0], alignment.text_words[stop][1]
                    span, sure = alignment.span(mark)
                    count = counts.setdefault(f"{language}, {name}", Counter())
                    count.update(n=1, mark=span == wanted, sure=sure)
                count = counts[f"{language}, {kind}"]
                count["place"] += round(share * (len(alignment.text_words) - 1)) == j
                count.update({way: int(x[:, i].argmax()) == j for way, x in ways.items()})
        print(f"{language}: read layer {aligner.reading[0] + 1}, step {aligner.reading[1]}")
    counts["all words"] = sum(
        (c for name, c in counts.items() if "phrase" not in name and "," in name), Counter()
    )
    columns = ["n", "place", *ways, "mark", "sure"]
    print("|".join(["", *columns]))
    for name, count in counts.items():
        print(
            "|".join(
                [name, str(count["n"]), *(f"{count[c] / count['n']:.3f}" for c in columns[1:])]
            )
        )


if __name__ == "__main__":
    main()
