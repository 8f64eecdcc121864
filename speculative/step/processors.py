"""Logits processors: penalties, bans and forced tokens, at every position of a step at once.

Target and draft model pass through the same processors: p and q are the distributions after them, so every rule of
sampling.py stays exact. Nothing waits for the device. Meanings and order are those of transformers' `generate`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.common.errors import InputError

# (logits [B, T, V] float32, prefixes) -> logits [B, T, V]. When the draft model drafts, V is its own: it has no ids
# from V on. Your own processors must be hashable, and equal ones must do the same.
Processor = Callable[[mx.array, "Prefixes"], mx.array]


@dataclass(frozen=True)
class Prefixes:
    """The tokens before T consecutive positions of B rows.

    tokens:    [B, L + T - 1] int32 on the device: the row's L tokens (the model's prefix first) and the T - 1
               drafted ones; tokens[:, : L + t] come before position t. Shorter rows begin with -1.
    generated: [B] on the host: how many tokens the text has before the first position
    room:      [B] on the host: how many it may still gain
    """

    tokens: mx.array
    generated: np.ndarray
    room: np.ndarray

    def sizes(self, T: int) -> mx.array:
        """The number of columns of `tokens` that come before each of T positions: [T, 1]."""
        return self.tokens.shape[1] - T + 1 + mx.arange(T)[:, None]


def _counts(tokens: mx.array, where: mx.array, vocab_size: int) -> mx.array:
    """Counts of each of V tokens in tokens [B, N] where `where` [B or 1, T, N] is true: [B, T, V]."""
    is_token = (tokens >= 0) & (tokens < vocab_size)
    where = (where & is_token[:, None]).astype(mx.float32)
    B, T, _ = where.shape
    rows, positions = mx.arange(B)[:, None, None], mx.arange(T)[:, None]
    index = mx.where(is_token, tokens, 0)[:, None]
    return mx.zeros((B, T, vocab_size)).at[rows, positions, index].add(where)


def _follows(prefixes: Prefixes, T: int, sequence: Sequence[int]) -> mx.array:
    """Whether the tokens before each of T positions end with the sequence: [B, T]."""
    tokens = mx.pad(prefixes.tokens, [(0, 0), (len(sequence), 0)], constant_values=-1)
    first = prefixes.tokens.shape[1] - T + 1
    follows = mx.array(True)
    for i, token in enumerate(sequence, first):
        follows = follows & (tokens[:, i : i + T] == token)
    return follows


@dataclass(frozen=True)
class SequenceBias:
    """Adds a bias to the last token of a sequence wherever the others come just before it."""

    biases: tuple[tuple[tuple[int, ...], float], ...]

    def __call__(self, logits: mx.array, prefixes: Prefixes) -> mx.array:
        T, V = logits.shape[1:]
        biases = [(sequence, bias) for sequence, bias in self.biases if sequence[-1] < V]
        for (*before, last), bias in biases:
            if before:
                follows = _follows(prefixes, T, before)
                logits = logits.at[:, :, last].add(mx.where(follows, bias, 0.0))
        single = [(sequence[0], bias) for sequence, bias in biases if len(sequence) == 1]
        if single:
            index, bias = (mx.array(column) for column in zip(*single, strict=True))
            logits = logits.at[:, :, index].add(bias)
        return logits


@dataclass(frozen=True)
class RepetitionPenalty:
    """Divides positive logits of the last `context_size` tokens (0: all) by the penalty, and multiplies negative
    ones (Keskar et al. 2019, arXiv 1909.05858)."""

    penalty: float
    context_size: int = 0

    def __call__(self, logits: mx.array, prefixes: Prefixes) -> mx.array:
        T, V = logits.shape[1:]
        column, sizes = mx.arange(prefixes.tokens.shape[1]), prefixes.sizes(T)
        inside = (column < sizes) & (column >= sizes - (self.context_size or sizes))
        penalised = mx.where(logits < 0, logits * self.penalty, logits / self.penalty)
        return mx.where(_counts(prefixes.tokens, inside[None], V) > 0, penalised, logits)


@dataclass(frozen=True)
class CountPenalty:
    """OpenAI's presence_penalty and frequency_penalty: subtracts the first from the logit of each token in the
    text, and the second once for each time it occurs."""

    presence: float
    frequency: float

    def __call__(self, logits: mx.array, prefixes: Prefixes) -> mx.array:
        T, V = logits.shape[1:]
        column, N = mx.arange(prefixes.tokens.shape[1]), prefixes.tokens.shape[1]
        first = N - T + 1 - mx.array(prefixes.generated)[:, None, None]  # [B, 1, 1]
        counts = _counts(prefixes.tokens, (column >= first) & (column < prefixes.sizes(T)), V)
        return logits - self.presence * (counts > 0) - self.frequency * counts


@dataclass(frozen=True)
class NoRepeatNGrams:
    """Bans a token that would repeat a sequence of `size` tokens."""

    size: int

    def __call__(self, logits: mx.array, prefixes: Prefixes) -> mx.array:
        T, V = logits.shape[1:]
        n, N = self.size, prefixes.tokens.shape[1]
        tokens = mx.pad(prefixes.tokens, [(0, 0), (n, 0)], constant_values=-1)
        # Sequences that begin in the columns 1 .. N and end in one of `tokens` before the pad.
        ended = mx.arange(1, N + 1) <= prefixes.sizes(T)
        repeats = ended & (tokens[:, None, 1 : N + 1] >= 0)  # [B, T, N]
        suffix = N - T + 2  # where the n - 1 tokens before the first position begin
        for i in range(n - 1):
            here = tokens[:, suffix + i : suffix + i + T, None]
            repeats = repeats & (tokens[:, None, 1 + i : 1 + i + N] == here)
        return mx.where(_counts(tokens[:, n:], repeats, V) > 0, -mx.inf, logits)


@dataclass(frozen=True)
class MinTokens:
    """Bans the end of sequence until the text has `count` tokens."""

    count: int
    ends: tuple[int, ...]

    def __call__(self, logits: mx.array, prefixes: Prefixes) -> mx.array:
        T, V = logits.shape[1:]
        early = prefixes.generated[:, None] + np.arange(T) < self.count
        ends = np.isin(np.arange(V), self.ends)
        return mx.where(mx.array(early)[..., None] & mx.array(ends), -mx.inf, logits)


@dataclass(frozen=True)
class Forced:
    """Forces one token at the text's first position, or at the last one that it has room for."""

    token: int
    at_end: bool

    def __call__(self, logits: mx.array, prefixes: Prefixes) -> mx.array:
        T, V = logits.shape[1:]
        first, last = -prefixes.generated, prefixes.room - 1  # of the row's positions, from here
        here = (last if self.at_end else first)[:, None] == np.arange(T)
        forced = np.where(np.arange(V) == self.token, 0.0, -np.inf).astype(np.float32)
        return mx.where(mx.array(here)[..., None], mx.array(forced), logits)


def processors_for(options: Any, config: Any) -> tuple[Processor, ...]:
    """The processors that `options` (options.Options) ask for, in transformers' order. config: the model's. Raises
    InputError if the model lacks a token."""
    ends = tuple(config.eos_token_ids)
    stops = tuple(options.stop_token_ids or ())
    bias = options.logit_bias or {}
    banned = options.suppress_tokens or ()
    words = {tuple(word) for word in options.bad_words_ids or ()}
    check_tokens("logit_bias", bias, config)
    check_tokens("bad_words_ids", chain(*words), config)
    check_tokens("suppress_tokens", banned, config)
    check_tokens("stop_token_ids", stops, config)
    processors: list[Processor] = []
    if bias:
        processors.append(_biased({(token,): value for token, value in bias.items()}))
    if options.repetition_penalty not in (None, 1):
        context = options.repetition_context_size or 0
        processors.append(RepetitionPenalty(float(options.repetition_penalty), context))
    if options.no_repeat_ngram_size:
        processors.append(NoRepeatNGrams(options.no_repeat_ngram_size))
    words -= {(end,) for end in ends}  # as in transformers, an end alone cannot be banned this way
    if words:
        processors.append(_biased(dict.fromkeys(words, -np.inf)))
    if options.min_tokens and (ends or stops):
        processors.append(MinTokens(options.min_tokens, ends + stops))
    for name, at_end in (("forced_bos_token_id", False), ("forced_eos_token_id", True)):
        token = getattr(options, name)
        if token not in (None, -1):
            check_tokens(name, [token], config)
            processors.append(Forced(token, at_end))
    if banned:
        processors.append(_biased({(token,): -np.inf for token in banned}))
    return (*processors, *options.processors)


def check_tokens(name: str, tokens: Iterable[int], config: Any) -> None:
    """InputError, with an option's name, if the model lacks one of its tokens."""
    highest = max(tokens, default=0)
    if highest >= config.vocab_size:
        raise InputError(f"{name}: no token {highest}; the model has {config.vocab_size}")


def _biased(biases: Mapping[tuple[int, ...], float]) -> SequenceBias:
    return SequenceBias(tuple(sorted((tokens, float(bias)) for tokens, bias in biases.items())))


class Controls:
    """The processors and grammars of a batch's rows (row.Row), which it reads at each call."""

    def __init__(self, rows: Sequence[Any]):
        self._rows = list(rows)
        self._groups: dict[tuple[Processor, ...], list[int]] = {}
        for b, row in enumerate(self._rows):
            self._groups.setdefault(row.processors, []).append(b)

    def __call__(self, logits: mx.array, drafted: Sequence[mx.array]) -> mx.array:
        """Process logits [B, T, V]. Of the drafted tokens [B, k], in any number of parts, the last T - 1 are between
        these positions, the others before them."""
        processed = self._processed(logits, drafted) if any(self._groups) else logits
        count = sum(part.shape[1] for part in drafted)
        # A GPU would idle while the host waits for a draft model's token; the target rejects a forbidden one.
        is_late = count >= logits.shape[1] and mx.default_device() == mx.gpu
        if is_late or not any(row.grammar and not row.finish_reason for row in self._rows):
            return processed
        allowed = self._allowed(logits, drafted)
        masked = mx.where(allowed, processed, -mx.inf)
        # Where processors ban all that is allowed, the grammar wins.
        banned = masked.max(axis=-1, keepdims=True) == -mx.inf
        return mx.where(banned & allowed, logits, masked)

    def _allowed(self, logits: mx.array, drafted: Sequence[mx.array]) -> mx.array:
        """The tokens that the rows' grammars allow, boolean like logits [B, T, V]."""
        B, T, V = logits.shape
        # Wait for the drafted tokens only: the device computes the logits meanwhile.
        mx.async_eval(*drafted)
        mx.async_eval(logits)
        tokens = np.concatenate([np.zeros((B, 0), int), *map(np.array, drafted)], axis=1)
        before = tokens.shape[1] - (T - 1)
        allowed = np.ones(logits.shape, bool)
        for b, row in enumerate(self._rows):
            if not row.grammar or row.finish_reason:
                continue
            for t in range(T):
                mask = row.grammar.allowed([*row.generated, *tokens[b, : before + t].tolist()])[:V]
                allowed[b, t] = np.pad(mask, (0, V - len(mask)))
                if not mask.any():
                    break  # the drafted token before will not pass
        return mx.array(allowed)

    def _processed(self, logits: mx.array, drafted: Sequence[mx.array]) -> mx.array:
        logits = logits.astype(mx.float32)
        lengths = [len(row.tokens) for row in self._rows]
        history = np.full((len(lengths), max(lengths)), -1, np.int32)  # right-aligned
        for b, row in enumerate(self._rows):
            history[b, history.shape[1] - lengths[b] :] = row.tokens
        tokens = mx.concatenate([mx.array(history), *drafted], axis=1)
        ahead = tokens.shape[1] - history.shape[1] - (logits.shape[1] - 1)
        generated = np.array([len(row.origins) for row in self._rows]) + ahead
        room = np.array([row.room for row in self._rows]) - ahead
        for processors, rows in self._groups.items():
            index = slice(None) if len(rows) == len(self._rows) else mx.array(rows)
            part = logits[index]
            prefixes = Prefixes(tokens[index], generated[rows], room[rows])
            for processor in processors:
                part = processor(part, prefixes)
            logits[index] = part
        return logits
