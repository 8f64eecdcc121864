"""Whisper's special tokens, and its rules as logits processors (Radford et al. 2022, arXiv 2212.04356), which target
and draft model apply to all positions of a step at once."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from tokenizers import Tokenizer

from errors import InputError
from speculative.options import Options
from speculative.processors import Prefixes
from text.languages import Languages, tag_of

TASKS = ("transcribe", "translate")
SECONDS_PER_TIMESTAMP = 0.02
_LANGUAGE = re.compile(r"<\|[a-z]{2,3}\|>")
_FIRST = 50  # in timestamps: a text begins within its window's first second


@dataclass(frozen=True)
class Special:
    """The ids of a Whisper model's special tokens, and those it must never write."""

    end: int
    start: int
    previous: int  # before earlier text
    no_speech: int
    no_timestamps: int
    first_timestamp: int
    tasks: Mapping[str, int] = field(hash=False)
    languages: Mapping[str, int] = field(hash=False)  # by code; {}: English only
    suppressed: tuple[int, ...] = ()
    latest: int = _FIRST  # the last timestamp that a window may begin with
    alignment_heads: tuple[tuple[int, int], ...] = ()  # (layer, head); (): not known

    @classmethod
    def read(cls, tokenizer: Tokenizer, generation: Mapping, end: int) -> "Special":
        """Read the ids from the tokenizer and the rest from generation_config.json. Raises InputError if the tokenizer
        lacks one of these tokens."""

        def token(*names: str) -> int:
            for name in names:
                id = tokenizer.token_to_id(f"<|{name}|>")
                if id is not None:
                    return id
            raise InputError(f"the tokenizer has no <|{names[0]}|>: not a Whisper model's")

        start = token("startoftranscript")
        no_timestamps = token("notimestamps")
        tasks = {task: token(task) for task in TASKS}
        added = tokenizer.get_added_tokens_decoder()
        languages = {
            token.content[2:-2]: id
            for id, token in added.items()
            if start < id < min(tasks.values()) and _LANGUAGE.fullmatch(token.content)
        }
        several = generation.get("is_multilingual", tokenizer.get_vocab_size() > 51864)
        first = generation.get("max_initial_timestamp_index")
        return cls(
            end=end,
            start=start,
            previous=token("startofprev"),
            no_speech=token("nospeech", "nocaptions"),
            no_timestamps=no_timestamps,
            first_timestamp=no_timestamps + 1,
            tasks=tasks,
            languages=languages if several else {},
            suppressed=tuple(generation.get("suppress_tokens") or ()),
            latest=_FIRST if first is None else first,
            alignment_heads=tuple((i, head) for i, head in generation.get("alignment_heads") or ()),
        )

    def language_code(self, name: str) -> str:
        """The code of a language, from a code or a name in any language. Raises InputError if the model lacks it."""
        tag = tag_of(name)
        spoken = (
            tag.partition("-")[0] if tag and "-" in tag else name
        )  # of zh-TW, the writing is no matter
        return Languages(self.languages or {"en": ""}).find("language", spoken)

    def prefix(self, language: str, task: str) -> list[int]:
        """The tokens before a window's text, from a code. Raises InputError if the model transcribes English only."""
        if not self.languages:
            if language != "en" or task != TASKS[0]:
                raise InputError("this model transcribes English only")
            return [self.start]
        return [self.start, self.languages[language], self.tasks[task]]

    def options(self, suppressed: Sequence[int] = (-1,), **options) -> Options:
        """The options to decode a window with. suppressed: tokens never to write, of which -1 stands for the
        checkpoint's; special ones among these are never written"""
        own = {token for token in self.suppressed if -1 in suppressed or token > self.end}
        return Options(
            logprobs=0,
            lookup=False,
            suppress_tokens=sorted(own.union(suppressed) - {-1}) or None,
            processors=(Timestamps(self),),
            **options,
        )


@dataclass(frozen=True)
class Timestamps:
    """Text stands between timestamps that never decrease: one before and one after it, then one that begins the next
    text. If all timestamps together are more probable than any other token, a timestamp must come. (So what a checkpoint
    bans at the beginning, begin_suppress_tokens, needs no rule.)"""

    special: Special

    def __call__(self, logits: mx.array, prefixes: Prefixes) -> mx.array:
        s = self.special
        T, V = logits.shape[1:]
        tokens = prefixes.tokens  # [B, N]
        before_first = tokens.shape[1] - T + 1  # columns before the first position
        generated = mx.array(prefixes.generated)[:, None] + mx.arange(T)  # [B, T]
        column = mx.arange(tokens.shape[1])
        begin = before_first - mx.array(prefixes.generated)[:, None]  # of the text: [B, 1]
        stamps = (tokens >= s.first_timestamp) & (column >= begin)  # [B, N]
        before = mx.pad(stamps, [(0, 0), (2, 0)])[:, before_first:]  # one earlier each, [B, T + 1]
        last = before[:, 1 : T + 1]
        second = before[:, :T] | (generated < 2)
        latest = mx.cummax(mx.where(stamps, column, -1), axis=1)  # the column of the last stamp
        latest = latest[:, before_first - 1 : before_first - 1 + T]
        newest = mx.take_along_axis(tokens, mx.maximum(latest, 0), axis=1)  # [B, T]
        least = mx.where(latest >= 0, newest + ~(last & ~second), s.first_timestamp)

        ids = mx.arange(V)
        stamp = ids >= s.first_timestamp
        text = ids < s.end
        opening = (generated == 0)[..., None]
        late = ids > s.first_timestamp + s.latest
        banned = (ids == s.no_timestamps) | ((last & second)[..., None] & stamp)
        banned = banned | ((last & ~second)[..., None] & text)
        banned = banned | (stamp & (ids < least[..., None]))
        banned = banned | (opening & (~stamp | late))
        logits = mx.where(banned, -mx.inf, logits)
        stamped = mx.logsumexp(logits[..., s.first_timestamp :], axis=-1, keepdims=True)
        best = logits[..., : s.first_timestamp].max(axis=-1, keepdims=True)
        return mx.where((stamped > best) & ~stamp, -mx.inf, logits)


@dataclass(frozen=True)
class OneOf:
    """Allows only these tokens."""

    tokens: tuple[int, ...]

    def __call__(self, logits: mx.array, prefixes: Prefixes) -> mx.array:
        wanted = mx.array(np.isin(np.arange(logits.shape[-1]), self.tokens))
        return mx.where(wanted, logits, -mx.inf)


@dataclass(frozen=True)
class Against:
    """Leaves a choice between `token` and `other`, which stands for all other tokens together."""

    token: int
    other: int

    def __call__(self, logits: mx.array, prefixes: Prefixes) -> mx.array:
        ids = mx.arange(logits.shape[-1])
        one = ids == self.token
        rest = mx.logsumexp(mx.where(one, -mx.inf, logits), axis=-1, keepdims=True)
        return mx.where(one, logits, mx.where(ids == self.other, rest, -mx.inf))
