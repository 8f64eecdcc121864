"""Which words of a text stand for which words of its prompt: the cross-attention of the model that translates says it.

The layer that says it best is the one whose two directions agree most often (Chen et al. 2020, arXiv 2004.14837), so no
labels are needed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import regex

from speculative.model import padded
from speculative.options import Options
from text.text_side import Conversation, Encoded, check_prompt

Span = tuple[int, int]
Reading = tuple[int, int]  # a decoder layer, and how many steps after a token was written

_TRIAL = 100  # texts by which the layer is chosen
_TOGETHER = 8  # texts in a call
_HALF = 0.5
# A placeholder or a word; l' and homme are two, king's is one; in scripts without spaces, a character
_WORD = regex.compile(
    r"(?w)\{[^{}\s]*\}|\w.*?(?:(?<=\w['’])(?!(?:s|t|re|ve|ll|d|m)\b)|\b)"  # noqa: RUF001
)
_PUNCTUATION = regex.compile(r"[^\w\s{}]*")


def word_spans(text: str) -> list[Span]:
    """Where the words are that a mark does not split."""
    return [match.span() for match in _WORD.finditer(text)]


@dataclass(frozen=True)
class Alignment:
    """Of a prompt's words with its text's.

    source_words, text_words: spans of characters
    weights: how much each word of the text attends to each of the source, [text_words, source_words]
    """

    source: str
    text: str
    source_words: Sequence[Span]
    text_words: Sequence[Span]
    weights: np.ndarray

    @property
    def agreed(self) -> int:
        """How many words of the source are the best ones of their best words in the text."""
        if not self.weights.size:
            return 0
        back = self.weights.argmax(axis=1)[self.weights.argmax(axis=0)]
        return int((back == np.arange(len(back))).sum())

    def span(self, mark: Span) -> tuple[Span, bool]:
        """Where a mark of the source goes in the text, around whole words, and whether both directions agree on them.

        Punctuation stays with its word. An empty mark, such as a note, stands behind the word that it touches or, if it
        touches only the next one, before that.
        """
        start, end = _trimmed(self.source, mark)
        first, last = _trimmed(self.source, (0, len(self.source)))
        begin, stop = _trimmed(self.text, (0, len(self.text)))
        if start <= first and end >= last:
            return (begin, stop), True
        if end <= first:
            return (begin, begin), True
        if start >= last:
            return (stop, stop), True
        inside = [i for i, (a, b) in enumerate(self.source_words) if a < end and start < b]
        return self._around(inside, (start, end)) if inside else self._between(start, end)

    def _around(self, inside: Sequence[int], mark: Span) -> tuple[Span, bool]:
        """Where words of the source are in the text, with the punctuation at their sides if the mark has some there."""
        if not self.text_words:
            return _trimmed(self.text, (0, len(self.text))), False
        total = self.weights.sum(axis=1)
        marked = self.weights[:, inside]
        share = marked.sum(axis=1) / np.maximum(total, 1e-9)  # of each text word
        first, last = _best_run(share - _HALF)
        begin = self.text_words[first][0]
        stop = self.text_words[last][1]
        if mark[0] < self.source_words[inside[0]][0]:
            begin -= _punctuation(self.text[:begin][::-1])
        if mark[1] > self.source_words[inside[-1]][1]:
            stop += _punctuation(self.text[stop:])
        best = marked.argmax(axis=0)  # the text word of each marked word
        agreed = (first <= best) & (best <= last)
        agreed &= np.isin(self.weights[best].argmax(axis=1), inside) & marked.any(axis=0)
        return (begin, stop), bool(agreed.mean() >= _HALF)

    def _between(self, start: int, end: int) -> tuple[Span, bool]:
        """Where a mark without words goes: to the word that it touches, around the same punctuation if there is any."""
        behind = [i for i, (a, _) in enumerate(self.source_words) if a < start]
        ahead = [i for i, (a, _) in enumerate(self.source_words) if a >= end]
        is_free = self.source[start - 1].isspace() and not self.source[end].isspace()
        if ahead and (is_free or not behind):
            (place, _), sure = self._around(ahead[:1], (start, end))
        elif behind:
            (_, place), sure = self._around(behind[-1:], (start, end))
        else:
            place, sure = 0, False
        shown = self.source[start:end]
        places = [match.start() for match in regex.finditer(regex.escape(shown), self.text)]
        if not shown or not places:
            return (place, place), sure and not shown
        begin = min(places, key=lambda at: abs(at - place))
        return (begin, begin + len(shown)), sure


def _trimmed(text: str, span: Span) -> Span:
    """The span without the white space at its ends."""
    start, end = span
    inner = text[start:end].strip()
    if not inner:
        return span
    start = text.index(inner, start)
    return start, start + len(inner)


def _punctuation(text: str) -> int:
    """How many marks of punctuation it begins with."""
    match = _PUNCTUATION.match(text)
    return match.end() if match else 0


def _best_run(gains: np.ndarray) -> Span:
    """The first and last index of the run of numbers, one or more, whose sum is greatest."""
    sums = np.concatenate([[0], gains.cumsum()])
    lowest = np.array([sums[: i + 1].argmin() for i in range(len(gains))])  # before each
    last = int((sums[1:] - sums[lowest]).argmax())
    return int(lowest[last]), last


class Aligner:
    """Aligns prompts with texts. Keep one for many texts: the first hundred tell which layer to read.

    model: with cross-attention; text: its text side; options: its languages
    """

    def __init__(self, model: Any, text: Any, options: Options):
        self._model = model
        self._text = text
        self._asked = options.source_lang, options.target_lang, options.prompt_template
        self._frame = Conversation.of(text).prompt
        layers = range(len(model.decoder.layers))
        self.agreed: dict[Reading, int] = dict.fromkeys(product(layers, (0, 1)), 0)  # words
        self._texts = 0

    @classmethod
    def of(cls, decoder: Any, options: Options) -> "Aligner | None":
        """For a SpeculativeDecoder; None if its model has no cross-attention, or only a rank's part of it."""
        model = decoder.model
        return cls(model, decoder.text, options) if model.attention and not model.ranks else None

    @property
    def reading(self) -> Reading:
        """The one whose directions agreed most often so far."""
        return max(self.agreed, key=self.agreed.__getitem__)

    def align(self, pairs: Sequence[tuple[str, str]]) -> list[Alignment]:
        """Align prompts with their texts, several in a call of the model."""
        order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][0]))
        found = dict[int, dict[Reading, Alignment]]()
        for first in range(0, len(order), _TOGETHER):
            some = order[first : first + _TOGETHER]
            is_trial = self._texts < _TRIAL
            readings = [*self.agreed] if is_trial else [self.reading]
            for i, alignments in zip(some, self.read([pairs[i] for i in some], readings), strict=True):
                found[i] = alignments
                if is_trial:
                    self._learn(alignments)
        return [found[i][self.reading] for i in range(len(pairs))]

    def _learn(self, alignments: Mapping[Reading, Alignment]) -> None:
        self._texts += 1
        for reading, each in alignments.items():
            self.agreed[reading] += each.agreed

    def read(
        self, pairs: Sequence[tuple[str, str]], readings: Sequence[Reading]
    ) -> Iterator[dict[Reading, Alignment]]:
        """The alignment of each pair by each reading, in one call of the model."""
        model = self._model
        config = model.config
        tokenizer = self._text.tokenizer
        encoded = [
            self._text.encode(check_prompt(self._frame(source)), *self._asked)
            for source, _ in pairs
        ]
        texts = [tokenizer.encode(text, add_special_tokens=False) for _, text in pairs]
        prefixes = [each.prefix or model.prefix(each.tokens) for each in encoded]
        prompts = [each.tokens[: config.max_prompt_tokens] for each in encoded]
        rows = [
            [*prefix, *each.ids][: config.max_positions]
            for prefix, each in zip(prefixes, texts, strict=True)
        ]
        tokens, _ = padded(rows, config.pad_token_id)
        _, scores = model.attention(prompts, mx.array(tokens), dict.fromkeys(layer for layer, _ in readings))
        means = {layer: mx.softmax(x, axis=-1).mean(axis=1) for layer, x in scores.items()}
        mx.eval(means)
        attention = {layer: np.array(x) for layer, x in means.items()}  # [B, T, S]
        for b, (source, text) in enumerate(pairs):
            words = word_spans(source), word_spans(text)
            columns = _shares(_offsets(encoded[b]), words[0])[: len(prompts[b])]
            lines = _shares(texts[b].offsets, words[1])
            lines /= np.maximum(lines.sum(axis=0), 1e-9)  # a word's pieces
            alignments = {}
            for layer, shift in readings:
                first = len(prefixes[b]) - 1 + shift
                x = attention[layer][b, first : first + len(lines), : len(columns)]
                alignments[layer, shift] = Alignment(source, text, *words, lines[: len(x)].T @ x @ columns)
            yield alignments


def _offsets(encoded: Encoded) -> list[Span]:
    """The characters of the prompt in each token; beyond it, those of what frames it."""
    assert encoded.encoding is not None
    ids = encoded.encoding.ids
    tokens = encoded.tokens
    at = next(i for i in range(len(tokens)) if tokens[i : i + len(ids)] == ids)
    offsets = [(a - encoded.begin, b - encoded.begin) for a, b in encoded.encoding.offsets]
    after = len(tokens) - at - len(ids)
    return [(0, 0)] * at + offsets + [(0, 0)] * after


def _shares(offsets: Sequence[Span], words: Sequence[Span]) -> np.ndarray:
    """How much of each token belongs to each word, [tokens, words]."""
    starts, ends = np.array(offsets).reshape(-1, 2).T[:, :, None]
    begins, stops = np.array(words).reshape(-1, 2).T
    within = ((starts < stops) & (begins < ends)).astype(float)
    return within / np.maximum(within.sum(axis=1, keepdims=True), 1)
