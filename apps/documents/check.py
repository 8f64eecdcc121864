"""The check of what is written, the same for all formats: beside its words, a passage has the markup that its source has."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from apps.documents.inline import Event
from apps.documents.paragraph import ATOM, STOOD_FOR, is_glued
from apps.documents.prose import any_of, changed

_KEPT = "kept"
_ENDS = slice(1), slice(-1, None)
Events = Callable[[str], Iterable[Event]]  # of some markup


@dataclass
class Outline:
    """The parts of a passage that must not change."""

    # What has no words of the text, and elements, each with the one that it is in if that matters
    parts: Counter[tuple[str, str]] = field(default_factory=Counter)
    loose: list[str] = field(default_factory=list)  # tags that have no partner, in their order
    looks: Counter[str] = field(default_factory=Counter)
    shown: str = ""  # what a reader sees
    atoms: list[str] = field(default_factory=list)  # what is kept and shown, but has no words


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
            if event.words:
                shown.append(STOOD_FOR)
            elif not event.mark:
                shown.append(ATOM)
                outline.atoms.append(event.raw)
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


def _sides(outline: Outline) -> Iterator[tuple[tuple[str, str], str, str]]:
    """The sides of what is shown, but has no words, each with what stands before and behind it."""
    for raw, place in zip(outline.atoms, re.finditer(ATOM, outline.shown), strict=False):
        start, end = place.span()
        yield (raw, "before"), outline.shown[max(start - 2, 0) : start], ATOM
        yield (raw, "behind"), ATOM, outline.shown[end : end + 2]


def with_kept(events: Events, raw: str, kept: Mapping[str, Event]) -> Iterator[Event]:
    """The parts of some markup, of which some pieces stay as they are. kept: by what is written"""
    for piece in re.split(f"({any_of(kept).pattern})", raw):
        if piece in kept:
            yield kept[piece]._replace(raw=piece)
        else:
            yield from events(piece)


def fault_of(
    source: Outline, new: Outline, text: str, own_words: Iterable[str] = (), dropped: int = 0
) -> str | None:
    """The fault of a written passage, if any. text: its words; own_words: others, added anywhere; dropped: number of lost looks"""
    lost = [*(source.parts - new.parts), *(new.parts - source.parts)]
    for raw, around in lost:
        if around == _KEPT:
            return f"{raw:.40} is not there as often as in the source"
    other_looks = new.looks - source.looks or (source.looks - new.looks).total() > dropped
    if lost or source.loose != new.loose or other_looks:
        return "its elements are not those of the source"
    for stand_in in changed(source.shown, new.shown):
        if stand_in in source.shown:
            return f"{stand_in:.40} is not there as often as in the source"
    spaced = (of for of, one, other in _sides(source) if re.search(r"\s", one[-1:] + other[:1]))
    glued = (of for of, *beside in _sides(new) if is_glued(*beside))
    for (raw, side), count in Counter([*spaced, *glued]).items():
        if count > source.parts[raw, _KEPT]:
            return f"the white space {side} {raw:.40} is lost"
    if any(source.shown[end].isspace() > new.shown[end].isspace() for end in _ENDS):
        return "the white space at its ends is lost"
    expected = text.replace(ATOM, "").split()
    shown = new.shown.replace(STOOD_FOR, " ").split(ATOM)
    if own_words:
        expected = sorted("".join([*expected, *own_words]).replace(" ", ""))
        is_same = expected == sorted("".join("".join(shown).split()))
    else:  # but for the space beside what has none
        pattern = r"\s?".join(re.escape(" ".join(each.split())) for each in shown)
        is_same = re.fullmatch(pattern, " ".join(expected)) is not None
    return None if is_same else "its words are not those of the translation"
