"""Where a sentence and its correction differ, by words, and in what."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import regex
from rapidfuzz import fuzz
from rapidfuzz.distance import Levenshtein

from apps.documents.sentences import UNIT

_END = regex.compile(r"(?<=\S)[\p{P} ]$")  # a mark or space at the end of a word
_MARKS = regex.compile(r"[^\p{L}\p{M}\p{N} ]+")
_ALIKE = 60  # per cent, of a misspelled word


class Difference(NamedTuple):
    """category: LanguageTool's; start, stop: the characters of the sentence that change, into text"""

    category: str
    start: int
    stop: int
    text: str


def differences(sentence: str, correction: str, as_one: bool = True) -> list[Difference]:
    """The words that change; neighbours change together. Both texts have single spaces. as_one: a sentence that is mostly
    rewritten changes as a whole."""
    old = UNIT.findall(sentence)
    new = UNIT.findall(correction)
    found = list[Difference]()
    for first, last, new_first, new_last in _blocks(old, new):
        start = len("".join(old[:first]))
        text = "".join(old[first:last])
        new_text = "".join(new[new_first:new_last])
        while text[-1] == new_text[-1] and _END.search(text) and _END.search(new_text):
            text = text[:-1]
            new_text = new_text[:-1]
        found.append(Difference(_category(text, new_text), start, start + len(text), new_text))
    rewritten = sum(each.stop - each.start for each in found if each.category == "GRAMMAR")
    if as_one and len(found) > 1 and 2 * rewritten > len(sentence):
        return [Difference("STYLE", 0, len(sentence), correction)]
    return found


def _blocks(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """The words that differ: the first and the one behind the last, in both. If one has none, the word before is among them:
    so the first words are compared with each other."""
    start = new_start = int(old[0] == new[0])
    for same in Levenshtein.opcodes(old[1:], new[1:]).as_matching_blocks():
        stop = same.a + 1
        new_stop = same.b + 1
        if start < stop and new_start < new_stop:
            yield start, stop, new_start, new_stop
        elif start < stop or new_start < new_stop:
            yield start - 1, stop, new_start - 1, new_stop
        start = stop + same.size
        new_start = new_stop + same.size


def _category(old: str, new: str) -> str:
    """What changes, as far as the texts alone tell: a word with another ending is not a misspelled one."""
    if old.casefold() == new.casefold():
        return "CASING"
    words, new_words = (_MARKS.sub("", text.casefold()).split() for text in (old, new))
    if words == new_words:
        return "PUNCTUATION"
    is_same_form = len(words) == len(new_words) and all(map(_is_misspelled, words, new_words))
    return "TYPOS" if is_same_form or "".join(words) == "".join(new_words) else "GRAMMAR"


def _is_misspelled(old: str, new: str) -> bool:
    is_alike = old[-1] == new[-1] and fuzz.ratio(old, new) >= _ALIKE
    return is_alike or sorted(old) == sorted(new)
