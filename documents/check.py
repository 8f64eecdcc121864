"""The check of what is written, the same for all formats: beside its words, a passage has the markup that its source has."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

STAND_IN = "{}"  # shows a field or the like in the text, where it is numbered
_KEPT = "kept"
_WORD = re.compile(r"\w+|[^\w\s]")


class Item(NamedTuple):
    """A part of written markup.

    kind: "text"; "open" and "close", of an element; "kept", which is there as often as in the source; or "run", which may be
          lost, doubled or split
    raw:  the markup, or the words that a reader sees
    name: an element's
    role: of an element: "element", which stays in the one that it is in; "phrase", which may be in another one; "look", which
          may be lost; or "run", which may be lost, doubled or split
    """

    kind: str
    start: int
    stop: int
    raw: str
    name: str = ""
    role: str = "element"


Items = Callable[[str], Iterable[Item]]  # of some markup


@dataclass
class Outline:
    """The parts of a passage that must not change.

    parts: how often things are there that have no words of the text, and elements, each with the one that it is in if that
           matters
    loose: tags that have no partner, in their order
    looks: how often looks are there
    shown: the words that a reader sees
    """

    parts: Counter[tuple[str, str]] = field(default_factory=Counter)
    loose: list[str] = field(default_factory=list)
    looks: Counter[str] = field(default_factory=Counter)
    shown: str = ""


def outline_of(items: Iterable[Item]) -> Outline:
    outline = Outline()
    stack = list[Item]()  # of elements that are open
    parents = [""]
    shown = list[str]()
    for item in items:
        if item.kind == "text":
            shown.append(item.raw)
        elif item.kind == "kept":
            outline.parts[item.raw, _KEPT] += 1
        elif item.kind == "open":
            stack.append(item)
            if item.role == "element":
                around = parents[-1] or f"after {len(outline.loose)} tags without partners"
                outline.parts[item.raw, around] += 1
                parents.append(item.raw)
            elif item.role == "phrase":
                outline.parts[item.raw, ""] += 1
            else:
                outline.looks[item.raw] += 1
        elif item.kind == "close" and stack and stack[-1].name == item.name:
            if stack.pop().role == "element":
                parents.pop()
        elif item.kind == "close":
            outline.loose.append(f"{item.raw} in {len(stack)}")
    outline.loose += [item.raw for item in stack]
    outline.shown = "".join(shown)
    return outline


def with_kept(items: Items, raw: str, kept: Mapping[str, str]) -> Iterator[Item]:
    """The items of some markup, of which some pieces stay as they are. kept: these, with what they show in the text"""
    pieces = re.compile("|".join(map(re.escape, sorted(kept, key=len, reverse=True))))
    end = 0
    for item in items(raw):
        if item.start < end:
            continue
        piece = pieces.match(raw, item.start) if item.kind != "text" else None
        if not piece or not piece[0]:
            yield item
            continue
        end = piece.end()
        shown = kept[piece[0]]
        if shown in ("", STAND_IN):
            yield Item("kept", item.start, end, piece[0])
        yield Item("text", item.start, end, shown.replace(STAND_IN, " "))


def fault_of(source: Outline, new: Outline, text: str, own_words: Iterable[str] = ()) -> str | None:
    """The fault of a written passage; None: it has none. text: its words; own_words: others that are added anywhere"""
    lost = [*(source.parts - new.parts), *(new.parts - source.parts)]
    for raw, around in lost:
        if around == _KEPT:
            return f"{raw:.40} is not there as often as in the source"
    if lost or source.loose != new.loose or new.looks - source.looks:
        return "its elements are not those of the source"
    shown = _WORD.findall(new.shown)
    expected = _WORD.findall(text)
    if own_words:
        expected = sorted("".join([*expected, *own_words]).replace(" ", ""))
        shown = sorted("".join(shown))
    return None if shown == expected else "its words are not those of the translation"
