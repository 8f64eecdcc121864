"""The words of a text that stand for those of its prompt, by the cross-attention of the model that translates.

The layer to read is the one whose two directions agree best, so no labels are needed. It may attend to a word when it
writes its translation or, one step later, when it reads that (Chen et al. 2020, arXiv 2004.14837).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import regex

from apps.documents.document import Span
from apps.documents.marks import Sentence
from speculative.models.contract import padded
from speculative.step.options import Options
from speculative.text.text_side import check_prompt

Reading = tuple[int, int]  # a decoder layer; 0: when it writes a token, 1: when it reads it

_FADE = 0.97  # of what a text says, for each later one: 140 lines of rubbish count as 33
_TRIAL = 100  # texts that choose the layer; later the first of some
_FEW = 16  # texts that choose it well enough
_TOGETHER = 8  # texts in a call
_UNLIKELY = 5  # nats a token: words that the model would not have written (docs/design.md)
_TINY = 1e-9
# A placeholder or a word; in scripts without spaces, a character. L'homme is two words; king's, aujourd'hui and п'ять are one.
_WORD = regex.compile(
    r"(?wi)\{[^{}\s]*\}|\w.*?(?:\b|(?<=(?:[cdjlmnstv]|qu)['’])(?![\W\db-dfgj-np-tv-xz]|hui\b))"  # noqa: RUF001
)


@dataclass(frozen=True)
class Alignment:
    """Of the words of a prompt and its text.

    source_words, text_words: spans of characters, which marks do not split
    weights: [text_words, source_words], each the share of the text word's attention that the source word gets, times the
        share of the source word's that comes from the text word
    nats: [text_words] that a token of each word costs the model, if it was asked
    """

    source: str
    text: str
    source_words: Sequence[Span]
    text_words: Sequence[Span]
    weights: np.ndarray
    nats: np.ndarray

    @property
    def agreement(self) -> float:
        """The number of words that the two directions agree on. Words that begin alike are taken to belong together."""
        ours = np.array([self.source[a:b].lower()[:4] for a, b in self.source_words])
        theirs = np.array([self.text[a:b].lower()[:4] for a, b in self.text_words])
        alike = theirs[:, None] == ours
        other = alike.any(axis=0) | alike.any(axis=1, keepdims=True)
        return float(self.weights[alike | ~other].sum())

    def span(self, mark: Span) -> tuple[Span, float]:
        """The place of a mark of the source in the text, and how sure it is: 0 if the two directions do not agree on it, half
        if they do, but the model would not have written these words.

        It goes around whole words or, if it is a part of one, around the same part if there is one. An empty mark, such as a
        note, goes behind the word that it touches, or before the next one if it touches only that.
        """
        start, end = mark
        begin = len(self.text) - len(self.text.lstrip())
        stop = max(begin, len(self.text.rstrip()))
        if not self.source[:end].strip():
            return (begin, begin), True
        if not self.source[start:].strip():
            return (stop, stop), True
        if not self.weights.size:
            return (begin, stop), False
        inside = [i for i, (a, b) in enumerate(self.source_words) if a < end and start < b]
        if inside and start < end:
            target, sure = self._around(inside, (start, end))
            return self._part(inside, (start, end), target), sure
        behind = sum(a < start for a, _ in self.source_words)
        touched = self.source[end : end + 1].strip()
        is_next = self.source[start - 1 : start].isspace() and touched
        if behind < len(self.source_words) and (is_next or not behind):
            (place, _), sure = self._around([behind], (start, end))
        else:
            (_, place), sure = self._around([behind - 1], (start, end))
        return (place, place), sure and start == end

    def _around(self, inside: Sequence[int], mark: Span) -> tuple[Span, float]:
        """The place of words of the source, with the punctuation at their sides where the mark has some."""
        marked = self.weights[:, inside]
        share = marked.sum(axis=1) / np.maximum(self.weights.sum(axis=1), _TINY)
        sums = np.concatenate([[0], (share - 0.5).cumsum()])
        runs = np.where(np.tri(len(share), dtype=bool), sums[1:, None] - sums[:-1], -np.inf)
        last, first = divmod(int(runs.argmax()), len(share))
        begin = self.text_words[first][0]
        stop = self.text_words[last][1]
        before = max(0, self.source_words[inside[0]][0] - mark[0])
        after = max(0, mark[1] - self.source_words[inside[-1]][1])
        free = self.text_words[first - 1][1] if first else 0  # behind the word before
        begin -= _punctuation(self.text[max(free, begin - before) : begin][::-1])
        stop += _punctuation(self.text[stop : stop + after])
        best = marked.argmax(axis=0)  # of each marked word
        agreed = (first <= best) & (best <= last)
        agreed &= np.isin(self.weights[best].argmax(axis=1), inside) & marked.any(axis=0)
        if agreed.mean() < 0.5:
            return (begin, stop), 0
        if self.nats[first : last + 1].mean() > _UNLIKELY:
            return (begin, stop), 0.5
        return (begin, stop), 1

    def _part(self, inside: Sequence[int], mark: Span, target: Span) -> Span:
        """Of the place of words, that of the part of them that is marked, if they have it there as well."""
        first = self.source_words[inside[0]][0]
        last = self.source_words[inside[-1]][1]
        start, end = mark
        if start <= first and last <= end:
            return target
        part = self.source[start:end]
        found = regex.compile(regex.escape(part)).finditer(self.text, *target)
        places = [each.span() for each in found]
        number = self.source.count(part, first, start)
        return places[number] if number < len(places) else target


def _punctuation(text: str) -> int:
    """The number of marks of punctuation that it begins with."""
    return len(text) - len(regex.sub(r"^(?:\s*[^\w\s{}]+)+", "", text))


class Aligner:
    """Aligns prompts with their texts. Keep one for a run: its texts say how to read the model; earlier ones fade."""

    def __init__(self, decoder: Any, options: Options, judges: bool = False):
        """decoder: a SpeculativeDecoder whose model has cross-attention; judges: whether it would have written the words"""
        self._model = decoder.model
        self._text = decoder.text
        self._options = options.source_lang, options.target_lang, options.prompt_template
        self._framed = decoder.text.prompt_format().prompt
        layers = range(len(self._model.decoder.layers))
        self.agreement = dict.fromkeys(product(layers, (0, 1)), 0.0)  # words, by reading
        self._texts = 0  # that were read
        self._is_chosen = False
        self._judges = judges

    @property
    def reading(self) -> Reading:
        return max(self.agreement, key=self.agreement.__getitem__)

    def choose(self, pairs: Sequence[Sentence]) -> None:
        """Choose the layer by these texts alone, for all that are aligned from now on; the first time only."""
        if not self._is_chosen:
            self.align(pairs)
            self._is_chosen = True

    def align(self, pairs: Sequence[Sentence], others: Iterable[Sentence] = ()) -> list[Alignment]:
        """Align prompts with their texts. others: more texts of the run, for a choice from more than a few."""
        missing = 0 if self._is_chosen else max(0, _FEW - self._texts - len(pairs))
        every = [*pairs, *islice(others, missing)]
        order = sorted(range(len(every)), key=lambda i: len(every[i][0]))
        results = dict[int, dict[Reading, Alignment]]()
        for first in range(0, len(order), _TOGETHER):
            some = order[first : first + _TOGETHER]
            is_trial = not self._is_chosen and (first == 0 or self._texts < _TRIAL)
            readings = [*self.agreement] if is_trial else [self.reading]
            results |= zip(some, self.read([every[i] for i in some], readings), strict=True)
            self._texts += len(some)
            if is_trial:
                for i, reading in product(some, readings):
                    faded = _FADE * self.agreement[reading]
                    self.agreement[reading] = faded + results[i][reading].agreement
        return [results[i][self.reading] for i in range(len(pairs))]

    def read(
        self, pairs: Sequence[Sentence], readings: Sequence[Reading]
    ) -> Iterator[dict[Reading, Alignment]]:
        """The alignment of each pair by each of the readings, in one call of the model."""
        config = self._model.config
        framed = (check_prompt(self._framed(source)) for source, _ in pairs)
        encoded = [self._text.encode(each, *self._options) for each in framed]
        texts = [self._text.tokenizer.encode(text, add_special_tokens=False) for _, text in pairs]
        prefixes = [each.prefix or self._model.prefix(each.tokens) for each in encoded]
        prompts = [each.tokens[: config.max_prompt_tokens] for each in encoded]
        rows = [[*a, *b.ids][: config.max_positions] for a, b in zip(prefixes, texts, strict=True)]
        tokens, _ = padded(rows, config.pad_token_id)
        layers = dict.fromkeys(layer for layer, _ in readings)
        logits, scores = self._model.attention(prompts, mx.array(tokens), layers)
        losses = np.zeros(tokens.shape)  # of each token but the first
        if self._judges:
            x = logits[:, :-1].astype(mx.float32)
            losses = np.array(nn.losses.cross_entropy(x, mx.array(tokens[:, 1:])))
        means = {layer: mx.softmax(x, axis=-1).mean(axis=1) for layer, x in scores.items()}
        mx.eval(means)
        attention = {layer: np.array(x) for layer, x in means.items()}  # [B, T, S]
        for b, (source, text) in enumerate(pairs):
            source_words = [match.span() for match in _WORD.finditer(source)]
            text_words = [match.span() for match in _WORD.finditer(text)]
            columns = _shares(encoded[b].spans, source_words)[: len(prompts[b])]
            lines = _shares(texts[b].offsets, text_words)
            lines /= np.maximum(lines.sum(axis=0), _TINY)  # the mean of a word's pieces
            begin = len(prefixes[b]) - 1
            x = losses[b, begin : begin + len(lines)]
            nats = x @ lines[: len(x)]
            alignments = {}
            for layer, step in readings:
                first = begin + step
                x = attention[layer][b, first : first + len(lines), : len(columns)]
                x = lines[: len(x)].T @ x @ columns
                x = x**2 / np.maximum(x.sum(axis=1, keepdims=True) * x.sum(axis=0), _TINY)
                alignments[layer, step] = Alignment(source, text, source_words, text_words, x, nats)
            yield alignments


def _shares(spans: Sequence[Span], words: Sequence[Span]) -> np.ndarray:
    """The share of each token, at these characters, that belongs to each word: [tokens, words]."""
    starts, ends = np.array(spans).reshape(-1, 2).T[:, :, None]
    begins, stops = np.array(words).reshape(-1, 2).T
    within = (starts < stops) & (begins < ends)
    return within / np.maximum(within.sum(axis=1, keepdims=True), 1)
