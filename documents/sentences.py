"""The sentences of a text, and what must not change in them."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise

import sentencex

# Addresses, tags, and placeholders: {name}, ${name}, %s, %(name)s, %1$s, &amp;, \n
_PLACEHOLDER = (
    r"(?:https?://|www\.)[^\s<>]*[^\s<>.,;:!?)\]]|[\w.+-]+@[\w-]+(?:\.[\w-]+)+|</?\w[^<>]*>|\$?\{[^{}]*\}"
    r"|%(?:\(\w+\)|\d+\$)?[-+ #0]?[\d.]*(?:h|l|ll|z)?[diouxXeEfFgGcrsa](?!\w)|&#?\w+;|\\[Nnht]"
)
_CLAUSE = re.compile(r"[,;:–—]\s+|[،、，；：]\s*")  # noqa: RUF001
_SPACE = re.compile(r"\s+")
_MASK = re.compile(r"X\d+")
# Words; single characters in scripts that do not separate words.
UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"  # Thai to Han
_WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")


def keep_pattern(marks: str = "") -> re.Pattern:
    """A pattern of what a translation must keep: placeholders and a format's own `marks`."""
    return re.compile(f"{marks}|{_PLACEHOLDER}" if marks else _PLACEHOLDER)


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def sentences(
    text: str, language: str, pattern: re.Pattern, fits: Callable[[str], bool], whole: bool = False
) -> Iterator[str]:
    """The sentences of each line, with the space after them; what does not fit is cut at clauses. Joined they are the
    text. pattern: what is not cut apart. whole: leave a line whole if it fits."""
    for line in text.splitlines(keepends=True):
        if whole and fits(line):
            yield line
            continue
        ends = accumulate(map(len, sentencex.segment(language, line)))
        inside = {
            i for match in pattern.finditer(line) for i in range(match.start() + 1, match.end())
        }
        for start, end in pairwise([0, *(end for end in ends if end not in inside)]):
            yield from _clauses(line[start:end], fits)


def _clauses(text: str, fits: Callable[[str], bool]) -> Iterator[str]:
    if len(text) < 2 or fits(text):
        yield text
        return
    middle = len(text) // 2
    for cut in (_CLAUSE, _SPACE):
        ends = [match.end() for match in cut.finditer(text) if 0 < match.end() < len(text)]
        if ends:
            middle = min(ends, key=lambda end: abs(end - middle))
            break
    yield from _clauses(text[:middle], fits)
    yield from _clauses(text[middle:], fits)


def translatable(text: str, pattern: re.Pattern) -> bool:
    """Whether there is a letter besides what must be kept."""
    return any(map(str.isalpha, pattern.sub("", text)))


def changed(source: str, text: str, pattern: re.Pattern) -> list[str]:
    """The placeholders that one of the two has more often than the other."""
    wanted = Counter(match[0] for match in pattern.finditer(source))
    present = Counter(match[0] for match in pattern.finditer(text))
    return [*((wanted - present) + (present - wanted))]


def masked(text: str, pattern: re.Pattern) -> tuple[str, Callable[[str], str]]:
    """The text with plain tokens, X1 and so on, for placeholders, and a function that puts them back."""
    names = {f"X{i}": match[0] for i, match in enumerate(pattern.finditer(text), 1)}
    tokens = iter(names)
    plain = pattern.sub(lambda _: next(tokens), text)
    return plain, lambda new: _MASK.sub(lambda match: names.get(match[0], match[0]), new)
