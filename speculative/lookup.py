"""Drafting without a second model: what follows, in the source or in the text so far, the place that
the last tokens match.

For an encoder-decoder model the source is the place to copy from: correction, simplification and
rewriting repeat most of it. The idea is that of input-guided (aggressive) decoding, Ge et al. 2022
(arXiv 2205.10350), and of prompt lookup; matching and taking up again after a corrected word are
described at `Copier`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

UNBOUNDED = 1 << 30
NEAR = 8  # tokens ahead in the source that a corrected text may have skipped
LONG = 4  # tokens that do not match by chance
LOST = 4  # tokens since the text left the source, after which its place there is forgotten
_PREFIX = 16  # tokens within which a task's prefix ("summarize:") ends


@dataclass(frozen=True)
class Offer:
    """Tokens that a drafter could propose for a row.

    kind: what acceptance depends on; offers of a kind are expected to fare alike
    most: how many tokens there are
    place: where to copy from; None for a draft model
    """

    kind: str
    most: int
    place: int | None = None

    @property
    def modelled(self) -> bool:
        """Whether it is a draft model's: only that costs time before the target's call."""
        return self.place is None


class Copier:
    """Finds what to copy for one row.

    `text` is the source and then the output. Every place in it where the last output token occurs is
    known with the length of the match that ends there; one more token extends or ends each match, so
    that a step costs as much as the token has occurrences.

    The longest match is followed; of equal ones that in the source which comes soonest after the
    place copied last. A match further on in the source moves that place only when it is LONG: words
    recur. When the last token matches nothing there, it is taken for a correction: the word at the
    present place has been replaced, and the next word follows. Where words were left out instead, the
    last token matches a few tokens ahead; where words were put in, a token later it matches here.
    """

    def __init__(self, source: Sequence[int], piece: Callable[[int], str]):
        """piece: the text of a token as the vocabulary has it, with its mark of a word's start."""
        self.text = list(source)
        self._piece = piece
        self._source_size = len(source)
        self._places: dict[int, list[int]] = {}
        for place, token in enumerate(source):
            self._places.setdefault(token, []).append(place)
        self._matches: dict[int, int] = {}  # place: how many tokens up to it are the output's last
        self._next = self._after_prefix()  # the place in the source that the output has reached
        self._lost = 0  # output tokens since it was there

    @property
    def output_size(self) -> int:
        return len(self.text) - self._source_size

    def _after_prefix(self) -> int:
        """Where copying begins: after the first colon, where tasks are named, else at the start."""
        first = range(min(_PREFIX, self._source_size))
        colons = (i for i in first if self._piece(self.text[i]).endswith(":"))
        return next(colons, -1) + 1

    def extend(self, tokens: Sequence[int]) -> None:
        """Take note of new output tokens."""
        for token in tokens:
            places = self._places.setdefault(token, [])
            self._matches = {place: self._matches.get(place - 1, 0) + 1 for place in places}
            self._follow(token)
            places.append(len(self.text))
            self.text.append(token)

    def _follow(self, token: int) -> None:
        place = self._best(place for place in self._matches if place < self._source_size)
        if place is not None and (self._is_near(place) or self._matches[place] >= LONG):
            self._next, self._lost = place + 1, 0
            return
        if self._lost and self._starts_word(token):  # one more word that the source has otherwise
            self._next = self._next_word(self._next)
        self._lost += 1

    def _best(self, places: Iterable[int]) -> int | None:
        def rank(place: int) -> tuple:
            length, ahead = self._matches[place], place - self._next
            trusted = length if length >= LONG or self._is_near(place) else 0
            return trusted, length, place < self._source_size, ahead >= 0, -abs(ahead)

        return max(places, key=rank, default=None)

    def _is_near(self, place: int) -> bool:
        return 0 <= place - self._next < NEAR

    def _starts_word(self, token: int) -> bool:
        piece = self._piece(token)
        return piece[:1] in ("▁", "Ġ", " ") or not any(map(str.isalnum, piece))

    def _next_word(self, place: int) -> int:
        """The first place after `place` in the source where a word begins, or its end."""
        rest = range(place + 1, self._source_size)
        return next((i for i in rest if self._starts_word(self.text[i])), self._source_size)

    def offers(self) -> list[Offer]:
        """What could be copied now, the likeliest first."""
        if not self.output_size:
            return self._from_source("start", self._next)
        place, length, in_order = self._best(self._matches), 0, []
        if self._lost == 0:
            length = self._matches[self._next - 1]
            in_order = self._from_source(f"match {_bucket(length)}", self._next)
        elif self._lost <= LOST:
            in_order = self._from_source("correction", self._next_word(self._next))
        if place is None or place == self._next - 1:
            return in_order
        kind = f"repetition {_bucket(self._matches[place])}"
        elsewhere = self._from_source(kind, place + 1) or self._from_output(kind, place + 1)
        longer = self._matches[place] >= max(LONG, length + 1)
        return elsewhere + in_order if longer else in_order + elsewhere

    def _from_source(self, kind: str, place: int) -> list[Offer]:
        left = self._source_size - place
        return [Offer(kind, left, place)] if left > 0 else []

    def _from_output(self, kind: str, place: int) -> list[Offer]:
        return [Offer(kind, UNBOUNDED, place)] if self._source_size < place < len(self.text) else []

    def copy(self, place: int, count: int) -> list[int]:
        """`count` tokens from `place` on; at the end of the output, its last part over again."""
        found = self.text[place : place + count]
        while len(found) < count:
            found += found[: count - len(found)]
        return found


def _bucket(length: int) -> str:
    """Lengths of matches that are worth about the same."""
    return "1" if length == 1 else f"2-{LONG - 1}" if length < LONG else f"{LONG}+"


WEAK = tuple(f"repetition {_bucket(length)}" for length in (1, 2))
"""Kinds of offers that may be there by chance."""
