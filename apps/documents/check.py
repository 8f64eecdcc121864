"""The check of what is written, the same for all formats: beside its words, a passage has the markup that its source has."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from apps.documents.inline import STAND_IN, Event

_KEPT = "kept"
_WORD = re.compile(r"\w+|[^\w\s]")
Events = Callable[[str], Iterable[Event]]  # of some markup


@dataclass
class Outline:
    """The parts of a passage that must not change."""

    # What has no words of the text, and elements, each with the one that it is in if that matters
    parts: Counter[tuple[str, str]] = field(default_factory=Counter)
    loose: list[str] = field(default_factory=list)  # tags that have no partner, in their order
    looks: Counter[str] = field(default_factory=Counter)
    shown: str = ""  # the words that a reader sees


def outline_of(events: Iterable[Event]) -> Outline:
    outline = Outline()
    stack = list[Event]()  # of elements that are open
    parents = [""]
    shown = list[str]()
    for event in events:
        if event.kind == "text":
            shown.append(event.words)
        elif event.mark == "run":
            continue
        elif event.kind == "anchor":
            outline.parts[event.raw, _KEPT] += 1
        elif event.kind == "open":
            stack.append(event)
            if event.mark == "look":
                outline.looks[event.raw] += 1
            else:
                around = parents[-1] or f"after {len(outline.loose)} tags without partners"
                outline.parts[event.raw, around] += 1
                parents.append(event.raw)
        elif stack and stack[-1].name == event.name:
            if stack.pop().mark != "look":
                parents.pop()
        else:
            outline.loose.append(f"{event.raw} in {len(stack)}")
    outline.loose += [event.raw for event in stack]
    outline.shown = "".join(shown)
    return outline


def with_kept(events: Events, raw: str, kept: Mapping[str, str]) -> Iterator[Event]:
    """The parts of some markup, of which some pieces stay as they are. kept: these, with what they show in the text"""
    pieces = re.compile("|".join(map(re.escape, sorted(kept, key=len, reverse=True))))
    end = 0
    for event in events(raw):
        if event.start < end:
            continue
        piece = pieces.match(raw, event.start) if event.kind != "text" else None
        if not piece or not piece[0]:
            yield event
            continue
        end = piece.end()
        shown = kept[piece[0]]
        if shown in ("", STAND_IN):
            yield Event("anchor", event.start, end, raw=piece[0])
        yield Event("text", event.start, end, shown.replace(STAND_IN, " "))


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
