"""Whisper's special tokens, and its rules as logits processors (Radford et al. 2022, arXiv 2212.04356)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from tokenizers import Tokenizer

from speculative.common.errors import InputError
from speculative.models.whisper import Config
from speculative.step.options import Options
from speculative.step.processors import MinTokens, Prefixes, Processor
from speculative.text.languages import Languages, tag_of

TASKS = ("transcribe", "translate")
SECONDS_PER_TIMESTAMP = 0.02
_LANGUAGE = re.compile(r"<\|[a-z]{2,3}\|>")
_TIMESTAMP = re.compile(r"<\|\d+\.\d\d\|>")
_OF_GPT2 = "ĠSolidGoldMagikarp"  # a piece of GPT-2's vocabulary, which English-only models have
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
    last_timestamp: int  # below the first if there are none
    tasks: Mapping[str, int] = field(hash=False)
    languages: Mapping[str, int] = field(hash=False)  # by code; {}: English only
    language: str | None = None  # of a checkpoint that says it has one, by code or name
    task: str = TASKS[0]  # likewise
    added: tuple[int, ...] = ()  # text behind the timestamps: words of a fine-tune's
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()  # at the beginning of a text
    latest: int = _FIRST  # the last timestamp that a window may begin with
    alignment_heads: tuple[tuple[int, int], ...] = ()  # (layer, head); (): not known

    @classmethod
    def read(cls, tokenizer: Tokenizer, generation: Mapping, config: Config) -> "Special":
        """Read the ids from the tokenizer and the rest from generation_config.json. Raises InputError for a missing token.

        There is a timestamp for each encoder position and the window's end, named or not, unless the embedding or a
        token of another name ends them. Other ids without a name are never written.
        """

        def token(*names: str) -> int:
            for id in (tokenizer.token_to_id(f"<|{name}|>") for name in names):
                if id is not None:
                    return id
            raise InputError(f"the tokenizer has no <|{names[0]}|>: not a Whisper model's")

        generation = {name: value for name, value in generation.items() if value is not None}
        start = token("startoftranscript")
        no_timestamps = token("notimestamps")
        tasks = {task: token(task) for task in TASKS}
        added = tokenizer.get_added_tokens_decoder()
        languages = {
            token.content[2:-2]: id
            for id, token in added.items()
            if start < id < min(tasks.values()) and _LANGUAGE.fullmatch(token.content)
        }
        end = tokenizer.token_to_id("<|endoftext|>")
        if end is None:  # otherwise the tokenizer knows: a fine-tune's config may be wrong
            end = config.eos_token_ids[0]
        vocabulary = tokenizer.get_vocab()
        forced = {id for _, id in generation.get("forced_decoder_ids", ())}  # as of 2022
        own = [code for code, id in languages.items() if id in forced]
        several = generation.get("is_multilingual", bool(own) or _OF_GPT2 not in vocabulary)
        own.insert(0, generation.get("language", "").strip("<|>"))
        own_tasks = [generation.get("task"), *(task for task, id in tasks.items() if id in forced)]
        first = no_timestamps + 1
        named = {id for piece, id in vocabulary.items() if not _TIMESTAMP.fullmatch(piece)}
        after = min(first + config.max_source_positions + 1, config.vocab_size)
        after = min([after, *(id for id in named if id >= first)])
        behind = set(range(after, config.vocab_size))
        hidden = {id for id, token in added.items() if token.special}
        return cls(
            end=end,
            start=start,
            previous=token("startofprev"),
            no_speech=token("nospeech", "nocaptions"),
            no_timestamps=no_timestamps,
            first_timestamp=first,
            last_timestamp=after - 1,
            tasks=tasks,
            languages=languages if several else {},
            language=next(filter(None, own), None) if several else None,
            task=next((task for task in own_tasks if several and task in tasks), TASKS[0]),
            added=tuple(behind & named - hidden),
            suppressed=(*generation.get("suppress_tokens", ()), *(behind - named)),
            suppressed_first=tuple(generation.get("begin_suppress_tokens", ())),
            latest=generation.get("max_initial_timestamp_index", _FIRST),
            alignment_heads=tuple(map(tuple, generation.get("alignment_heads", ()))),
        )

    @property
    def has_timestamps(self) -> bool:
        return self.last_timestamp >= self.first_timestamp

    def is_timestamp(self, token: Any) -> Any:
        """Whether this is a timestamp; of an array, whether each is."""
        return (token >= self.first_timestamp) & (token <= self.last_timestamp)

    def is_text(self, token: int) -> bool:
        return token < self.end or token in self.added

    def text_mask(self, size: int) -> mx.array:
        """Whether each of the ids below `size` is text: [size]."""
        ids = np.arange(size)
        return mx.array((ids < self.end) | np.isin(ids, self.added))

    def language_code(self, name: str) -> str:
        """The code of a language, from a code or a name in any language. Raises InputError if the model lacks it."""
        tag = tag_of(name)
        # Of zh-TW, the writing is no matter.
        spoken = tag.partition("-")[0] if tag and "-" in tag else name
        return Languages(self.languages or {"en": ""}).find("language", spoken)

    def prefix(self, language: str, task: str | None) -> list[int]:
        """The tokens before a window's text, from a code. Raises InputError if the model transcribes English only."""
        if not self.languages:
            if language != "en" or task == TASKS[1]:
                raise InputError("this model transcribes English only")
            return [self.start]
        return [self.start, self.languages[language], self.tasks[task or self.task]]

    def options(self, suppressed: Sequence[int] = (-1,), **options) -> Options:
        """The options to decode a window with. suppressed: never to be written; -1 stands for the checkpoint's"""
        rule: Processor = MinTokens(1, self.suppressed_first)
        if self.has_timestamps:
            rule = Timestamps(self)
        own = {token for token in self.suppressed if -1 in suppressed or token > self.end}
        return Options(
            logprobs=0,
            lookup=False,
            suppress_tokens=sorted(own.union(suppressed) - {-1}) or None,
            processors=(rule,),
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
        stamps = s.is_timestamp(tokens) & (column >= begin)  # [B, N]
        before = mx.pad(stamps, [(0, 0), (2, 0)])[:, before_first:]  # one earlier each, [B, T + 1]
        last = before[:, 1 : T + 1]
        second = before[:, :T] | (generated < 2)
        latest = mx.cummax(mx.where(stamps, column, -1), axis=1)  # the column of the last stamp
        latest = latest[:, before_first - 1 : before_first - 1 + T]
        newest = mx.take_along_axis(tokens, mx.maximum(latest, 0), axis=1)  # [B, T]
        least = mx.where(latest >= 0, newest + ~(last & ~second), s.first_timestamp)

        ids = mx.arange(V)
        stamp = s.is_timestamp(ids)
        text = s.text_mask(V)
        opening = (generated == 0)[..., None]
        late = ids > s.first_timestamp + s.latest
        banned = (ids == s.no_timestamps) | ((last & second)[..., None] & stamp)
        banned = banned | ((last & ~second)[..., None] & text)
        banned = banned | (stamp & (ids < least[..., None]))
        banned = banned | (opening & (~stamp | late))
        logits = mx.where(banned, -mx.inf, logits)
        stamped = mx.logsumexp(mx.where(stamp, logits, -mx.inf), axis=-1, keepdims=True)
        best = mx.where(stamp, -mx.inf, logits).max(axis=-1, keepdims=True)
        return mx.where((stamped > best) & ~stamp, -mx.inf, logits)


@dataclass(frozen=True)
class OneOf:
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
