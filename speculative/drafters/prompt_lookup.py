"""Drafting without a second model: find the last tokens in the prompt or the text so far, and copy what follows
(aggressive decoding, Ge et al. 2022, arXiv 2205.10350; prompt lookup)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from speculative.drafters.drafter import Drafter
from speculative.models.contract import TokenLists
from speculative.step.draft import Candidate
from speculative.step.row import Row

UNBOUNDED = 1 << 30
NEAR = 8  # tokens ahead in the prompt that a corrected text may have skipped
LONG = 4  # a match of this many tokens is no chance
LOST = 4  # tokens since the text left the prompt, after which its position there is forgotten
_PREFIX = 16  # tokens within which a task's prefix ("summarize:") ends
# Drafters: of what the prompt or the text so far has, and of what a reference has
COPY = "copy"
REFERENCE = "reference"


def _bucket(length: int) -> str:
    """Group lengths of matches that are worth about the same."""
    if length == 1:
        return "1"
    return f"2-{LONG - 1}" if length < LONG else f"{LONG}+"


# States of candidates that may match by chance
WEAK = tuple(f"repetition {_bucket(length)}" for length in (1, 2))


class PromptMatcher:
    """Finds what to copy for one row.

    It follows the longest match; of equal ones, the first in the prompt after the position last copied.
    Words recur, so a distant match moves that position only if it is LONG. If the last token matches
    nothing there, it counts as a correction: it replaces the word at this position, and the next word
    follows. If words were left out instead, the last token matches a few tokens ahead; if words were
    inserted, a later token matches here.
    """

    def __init__(self, prompt: Sequence[int], piece: Callable[[int], str], reference: bool = False):
        """piece: the text of a token as the vocabulary has it, with its mark of a word's start.
        reference: `prompt` is a text that the output resembles; do not look for repetitions in the output."""
        self.text = list(prompt)  # and then the output
        self._piece = piece
        self._drafter = REFERENCE if reference else COPY
        self._prompt_size = len(prompt)
        self._positions: dict[int, list[int]] = {}
        for position, token in enumerate(prompt):
            self._positions.setdefault(token, []).append(position)
        # By position: how many tokens up to it match the output's end. A new token extends or ends each match.
        self._matches: dict[int, int] = {}
        # The position in the prompt that the output has reached. It begins after a task's prefix, which ends in a colon.
        colons = (i for i, token in enumerate(prompt[:_PREFIX]) if piece(token).endswith(":"))
        self._next = 0 if reference else next(colons, -1) + 1
        self._lost = 0  # output tokens since it was there

    def _extend(self, output: Sequence[int]) -> None:
        """Take note of what is new in the output."""
        for token in output[len(self.text) - self._prompt_size :]:
            positions = self._positions.setdefault(token, [])
            self._matches = {at: self._matches.get(at - 1, 0) + 1 for at in positions}
            position = self._best(at for at in self._matches if at < self._prompt_size)
            if position is not None and self._is_trusted(position):
                self._next = position + 1
                self._lost = 0
            else:
                if self._lost and self._starts_word(token):  # one more word differs from the prompt
                    self._next = self._next_word(self._next)
                self._lost += 1
            if self._drafter == COPY:
                positions.append(len(self.text))
            self.text.append(token)

    def _best(self, positions: Iterable[int]) -> int | None:
        def rank(position: int) -> tuple:
            length = self._matches[position]
            ahead = position - self._next
            trusted = length if self._is_trusted(position) else 0
            return trusted, length, position < self._prompt_size, ahead >= 0, -abs(ahead)

        return max(positions, key=rank, default=None)

    def _is_trusted(self, position: int) -> bool:
        return self._matches[position] >= LONG or 0 <= position - self._next < NEAR

    def _starts_word(self, token: int) -> bool:
        piece = self._piece(token)
        return piece[:1] in ("▁", "Ġ", " ") or not any(map(str.isalnum, piece))

    def _next_word(self, position: int) -> int:
        """The first position after `position` in the prompt where a word begins, or its end."""
        rest = range(position + 1, self._prompt_size)
        return next((i for i in rest if self._starts_word(self.text[i])), self._prompt_size)

    def candidates(self, output: Sequence[int]) -> list[Candidate]:
        """The copies that could be made after the output so far, likeliest first."""
        self._extend(output)
        if len(self.text) == self._prompt_size:  # no output so far
            return self._from("start", self._next)
        position = self._best(self._matches)
        length = 0
        in_order = []
        if self._lost == 0:
            length = self._matches[self._next - 1]
            in_order = self._from(f"match {_bucket(length)}", self._next)
        elif self._lost <= LOST:
            in_order = self._from("correction", self._next_word(self._next))
        if position is None or position == self._next - 1:
            return in_order
        elsewhere = self._from(f"repetition {_bucket(self._matches[position])}", position + 1)
        longer = self._matches[position] >= max(LONG, length + 1)
        return elsewhere + in_order if longer else in_order + elsewhere

    def _from(self, state: str, position: int) -> list[Candidate]:
        """A candidate that copies from `position`, if there is anything: in the output it has no end."""
        if position < self._prompt_size:
            length = self._prompt_size - position
        elif self._prompt_size < position < len(self.text):
            length = UNBOUNDED
        else:
            return []
        return [Candidate(self._drafter, length, partial(self.copy, position), state)]

    def copy(self, position: int, count: int) -> list[int]:
        """`count` tokens from `position` on; past the output's end, they repeat."""
        tokens = self.text[position : position + count]
        while len(tokens) < count:
            tokens += tokens[: count - len(tokens)]
        return tokens


@dataclass(eq=False)
class PromptLookup(Drafter):
    """Drafts by copying from a row's reference, its prompt and its text so far."""

    piece: Callable[[int], str] = lambda token: "▁"  # see PromptMatcher; each token is a word
    # Maps a prompt's token to the text's vocabulary; None: copy only from references
    to_target: Callable[[int], int] | None = int
    _matchers: dict[Row, list[PromptMatcher]] = field(default_factory=dict)  # texts to copy from

    def admit(self, batch: Sequence[Row], new: Sequence[int]) -> None:
        super().admit(batch, new)
        self._matchers = {row: self._matchers.get(row, []) for row in batch}
        for row in (batch[b] for b in new):
            matchers = []
            if row.reference:
                matchers.append(PromptMatcher(row.reference, self.piece, reference=True))
            if self.to_target:
                matchers.append(PromptMatcher(list(map(self.to_target, row.prompt)), self.piece))
            self._matchers[row] = matchers

    def candidates(self, contexts: TokenLists) -> list[list[Candidate]]:
        offered: list[list[Candidate]] = [[] for _ in contexts]
        for row, context, candidates in zip(self._batch, contexts, offered, strict=True):
            if context:
                for matcher in self._matchers[row]:
                    candidates += matcher.candidates(context[row.prefix_size :])
        return offered
