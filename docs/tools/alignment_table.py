"""How often the demo's target says which word became which, by the layer that one reads: the table of
docs/translating.md. Words are those whose translations the demo's own tables give.

    python docs/tools/alignment_table.py
"""

import random
import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from decoder import SpeculativeDecoder, load
from demo.pair import demo_model
from demo.training import tasks
from speculative.options import Options
from text.alignment import Aligner

TEXTS = 300  # of each language
CODES = {"German": "de", "French": "fr", "Spanish": "es"}


def translations(language: str) -> dict[str, tuple[str, set[str]]]:
    """The kind of each English word, and the forms that its translation may have."""
    column = ("English", *CODES).index(language)
    words = dict[str, tuple[str, set[str]]]()
    for noun in tasks._PEOPLE + tasks._THINGS:
        for english, form in zip(noun[0], noun[column][1], strict=True):
            words[english] = "noun", {form}
    for adjective in tasks._ADJECTIVES:
        forms = adjective[column].lstrip("+").split("/")
        endings = {"German": ("e", "en", "er", "es"), "Spanish": ("", "s", "es")}.get(
            language, ("",)
        )
        words[adjective[0]] = "adjective", {form + end for form in forms for end in endings}
    words["young"][1].add("jóvenes")
    for verb in tasks._VERBS:
        for english in verb[0]:
            words[english] = "verb", {*verb[column]}
    return words


def held_out(language: str) -> list[str]:
    rng = random.Random(0)
    start = f"translate English to {language}: "
    texts = set[str]()
    while len(texts) < TEXTS:
        prompt = tasks.held_out_example(rng, "sentence").prompt
        if prompt.startswith(start):
            texts.add(prompt.removeprefix(start))
    return sorted(texts)


def main() -> None:
    decoder = SpeculativeDecoder(*load(str(demo_model("target"))))
    right = dict[tuple[str, str], Counter]()  # by language and kind: of each way
    agreed = Counter()
    source_words = 0
    for language, code in CODES.items():
        options = Options(target_lang=code)
        known = translations(language)
        sources = held_out(language)
        responses = decoder.batch_generate(sources, **vars(options))
        pairs = [(s, r.text) for s, r in zip(sources, responses, strict=True)]
        aligner = Aligner.of(decoder, options)
        assert aligner
        best = aligner.align(pairs)
        readings = [*aligner.agreement]
        read = [a for i in range(0, TEXTS, 20) for a in aligner.read(pairs[i : i + 20], readings)]
        print(language, "reads", aligner.reading)
        for alignment, each in zip(best, read, strict=True):
            source_words += len(alignment.source_words)
            for reading, other in each.items():
                agreed[reading] += other.agreement
            theirs = [alignment.text[slice(*span)].lower() for span in alignment.text_words]
            places = {}
            for i, span in enumerate(alignment.source_words):
                kind, forms = known.get(alignment.source[slice(*span)].lower(), ("", set()))
                hits = [j for j, word in enumerate(theirs) if word in {f.lower() for f in forms}]
                if len(hits) == 1:
                    places[i] = kind, hits[0]
            for i, (kind, j) in places.items():
                count = right.setdefault((language, kind), Counter())
                count["words"] += 1
                share = i / max(len(alignment.source_words) - 1, 1)
                count["by place"] += round(share * (len(theirs) - 1)) == j
                for reading, other in each.items():
                    count[reading] += int(other.weights[:, i].argmax()) == j
                for shift in (0, 1):
                    total = np.sum(
                        [other.weights for r, other in each.items() if r[1] == shift], axis=0
                    )
                    count["all layers", shift] += int(total[:, i].argmax()) == j
                span, sure = alignment.span(alignment.source_words[i])
                count["span"] += span == alignment.text_words[j]
                count["sure"] += sure
                count["sure and right"] += sure and span == alignment.text_words[j]
                if kind == "adjective" and places.get(i + 1, ("",))[0] == "noun":
                    ends = sorted((j, places[i + 1][1]))
                    phrase = right.setdefault((language, "phrase"), Counter())
                    phrase["words"] += 1
                    mark = alignment.source_words[i][0], alignment.source_words[i + 1][1]
                    wanted = alignment.text_words[ends[0]][0], alignment.text_words[ends[1]][1]
                    span, sure = alignment.span(mark)
                    phrase["span"] += span == wanted
                    phrase["sure"] += sure
                    phrase["sure and right"] += sure and span == wanted
                    if span != wanted:
                        print(
                            alignment.source[slice(*mark)],
                            "|",
                            alignment.text[slice(*span)],
                            "|",
                            alignment.text,
                            sure,
                        )
    for key, count in sorted(right.items()):
        print(
            key,
            count["words"],
            {k: round(v / count["words"], 3) for k, v in count.items() if k != "words"},
        )
    whole = sum((c for (_, kind), c in right.items() if kind != "phrase"), Counter())
    print(
        "all",
        whole["words"],
        {k: round(v / whole["words"], 3) for k, v in whole.items() if k != "words"},
    )
    print({r: round(n / source_words, 3) for r, n in agreed.items()})


if __name__ == "__main__":
    main()
