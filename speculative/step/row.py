"""A prompt, the text decoded for it, statistics, and the response that a caller gets."""

import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import mlx.core as mx
import numpy as np

from speculative.common.errors import InputError
from speculative.drafters.forms import Matcher
from speculative.step.draft import Candidate
from speculative.step.options import MAX_NUMBER, MAX_TOKENS, Options
from speculative.step.processors import Processor, processors_for

# Of a token: forced by a grammar, copied or written by a draft model, and accepted by the target; or the target's own, in
# place of a rejected token ("corrected") or with none rejected ("target")
ORIGINS = ("forced", "lookup", "draft_model", "corrected", "target")
DRAFTED = ORIGINS[:3]
FAILED = "failed"  # a finish reason: the grammar was too much for its engine, or the vocabulary cannot write it
NONE = "none"  # a finish reason: beam search has no further text


@dataclass
class Stats:
    """Counts and times of decoding. Rows of a batch split its seconds, so their sum is the time that passed."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of these, from the prefix cache
    tokens: int = 0  # generated
    target_calls: int = 0
    draft_tokens: int = 0  # proposed
    remembered: int = 0  # prompts like one in the translation memory
    from_memory: int = 0  # of the accepted tokens, from there
    accepted_lengths: Counter[int] = field(default_factory=Counter)  # by draft tokens kept: steps
    encoding_seconds: float = 0.0  # of the target's prefill
    preparing_seconds: float = 0.0  # of the draft model's prefill
    seconds: float = 0.0  # of the steps, without these two

    def __add__(self, other: "Stats") -> "Stats":
        return Stats(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def copy(self) -> "Stats":
        return replace(self, accepted_lengths=self.accepted_lengths.copy())

    @property
    def accepted(self) -> int:
        return sum(length * steps for length, steps in self.accepted_lengths.items())

    @property
    def drafting(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("target_calls", "draft_tokens", "accepted")}

    @property
    def acceptance(self) -> float:
        return self.accepted / max(1, self.draft_tokens)

    @property
    def tokens_per_call(self) -> float:
        return self.tokens / max(1, self.target_calls)

    @property
    def tokens_per_second(self) -> float:
        """Counts only the seconds of steps."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def histogram(self) -> list[int]:
        """The number of steps for each number of drafted tokens kept: [0] kept none."""
        longest = max(self.accepted_lengths, default=0)
        return [self.accepted_lengths[length] for length in range(longest + 1)]


@dataclass(eq=False)
class Row:
    """A prompt in a batch, its options and its text so far."""

    DECODED: ClassVar[tuple[str, ...]] = ("origins", "texts", "logprobs", "best", "finish_reason")

    prompt: list[int]
    options: Options = field(default_factory=Options)
    seed: bytes = b""  # the root of the row's noise; greedy decoding has none
    tokens: list[int] = field(default_factory=list)  # the text, after a prefix
    text: Any = None  # its text.rows.TextStream; None: tokens only, without stop texts
    prompt_text: str = ""
    reference: list[int] = field(default_factory=list)  # what the output may resemble
    prefix_size: int = 0
    max_tokens: int = 0  # of the text
    processors: tuple[Processor, ...] = ()
    grammar: Matcher | None = None  # what its text has to fit
    origins: list[str] = field(default_factory=list)  # of the generated tokens: see ORIGINS
    texts: list[str] = field(default_factory=list)  # per token: what it adds to the text
    logprobs: list[float] = field(default_factory=list)  # per token, if asked for
    best: list[list[tuple[int, float]]] = field(default_factory=list)  # the best, with logprobs
    finish_reason: str | None = None  # "stop", "length", FAILED, NONE, or what the caller gave
    stats: Stats = field(default_factory=Stats)
    started: float = 0.0  # time.perf_counter() after the prefill
    journal: Any = None  # keeps it once it is finished: see journal.RowJournal
    replayed: bool = False  # it was decoded by an earlier run
    # Only rows of beam search have these: see beams.BeamRow
    others: ClassVar[Sequence[Any]] = ()
    text_score: ClassVar[float | None] = None

    @classmethod
    def begin(
        cls, prompt: list[int], options: Options, prefix: Sequence[int], config: Any, **others: Any
    ) -> Self:
        """A row whose tokens begin with this prefix. config: the model's; others: its other fields. Raises InputError if the
        model lacks a token or a free position."""
        room = (config.max_positions or MAX_NUMBER) - len(prefix)
        if room < 1:
            begins = f"the text begins with {len(prefix)} tokens"
            raise InputError(f"{begins}; the model has room for {config.max_positions}")
        return cls(
            prompt,
            options,
            tokens=list(prefix),
            prefix_size=len(prefix),
            max_tokens=min(options.max_tokens or MAX_TOKENS, room),
            processors=processors_for(options, config),
            stats=Stats(len(prompt)),
            **others,
        )

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prefix_size :]

    @property
    def context(self) -> list[int]:
        """The tokens before its next one; none if it is finished."""
        return [] if self.finish_reason else self.tokens

    @property
    def room(self) -> int:
        """The number of tokens that it may still gain; 0: it is finished."""
        return 0 if self.finish_reason else self.max_tokens - len(self.origins)

    def fitting(self, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Candidates for its next tokens, as far as its form allows them, and what that forces."""
        if not self.grammar or self.finish_reason or self.options.num_draft == 0:
            return candidates
        return self.grammar.fitting(self.generated, candidates, self.room - 1)

    def commit(self, tokens: Sequence[int], origins: Sequence[str], ends: Container[int]) -> int:
        """Append accepted draft tokens and, at last, the target's own, until one ends the text or the room is full.
        Return how many draft tokens were kept. origins: of each token."""
        before = len(self.origins)
        stops = self.options.stop_token_ids or ()
        is_end = False
        for token, origin in zip(tokens[: self.room], origins, strict=False):
            self.tokens.append(token)
            self.origins.append(origin)
            is_end = token in ends or token in stops
            if self.text is not None:
                self.texts.append(self.text.push([token]))
                is_end = is_end or self.text.stopped
            if is_end:
                break
        new = len(self.origins) - before
        accepted = min(len(tokens) - 1, new)
        self.stats.tokens += new
        self.stats.accepted_lengths[accepted] += 1
        # A forced end at the last place is no end.
        forced = self.options.forced_eos_token_id not in (None, -1)
        if is_end and (self.room or not forced):
            self.finish_reason = "stop"
            ended = self.tokens[-1] in ends
            if self.grammar and ended and not self.grammar.is_complete(self.generated[:-1]):
                self.finish_reason = FAILED
        elif not self.room:
            self.finish_reason = "length"
        if self.text and self.finish_reason:
            self.texts[-1] += self.text.finish()
        return accepted

    def score(self, logprobs: np.ndarray, ids: np.ndarray, best: np.ndarray) -> None:
        """Store log-probabilities [T] of the last committed tokens, and the best ids with theirs [T, N]."""
        new = len(self.origins) - len(self.logprobs)
        N = self.options.logprobs
        self.logprobs += logprobs[:new].tolist()
        pairs = zip(ids[:new, :N].tolist(), best[:new, :N].tolist(), strict=True)
        self.best += [list(zip(*pair, strict=True)) for pair in pairs]

    def record(self) -> dict[str, Any]:
        """What decoding has made of it, for `replay`: values for JSON."""
        stats = vars(self.stats) | {"accepted_lengths": self.stats.histogram()}
        made = {name: getattr(self, name) for name in self.DECODED}
        return made | {"tokens": self.generated, "stats": stats}

    def replay(self, record: Mapping[str, Any]) -> None:
        """Take what decoding has made of a row like this one."""
        for name in self.DECODED:
            setattr(self, name, record[name])
        self.tokens += record["tokens"]
        self.stats = Stats(**record["stats"])
        self.stats.accepted_lengths = Counter(dict(enumerate(self.stats.accepted_lengths)))
        self.started = time.perf_counter() - self.stats.seconds
        self.replayed = True


@dataclass
class Response:
    """The text generated for a prompt: all of it or, from `stream_generate`, what a step added."""

    text: str
    tokens: list[int]
    texts: list[str]  # per token: what it adds to the text; a character comes with its last token
    origins: list[str]  # per token: see row.ORIGINS
    finish_reason: str | None  # "stop": end of sequence; "length": max_tokens; None: goes on
    prompt_tokens: int
    generation_tokens: int  # so far
    prompt_tps: float  # prompt tokens per second, of all prompts in one prefill
    generation_tps: float
    peak_memory: float  # GB
    stats: Stats  # so far
    logprobs: list[float] | None = None  # per token, under the target after penalties and bans
    top_logprobs: list[list[tuple[int, float]]] | None = None  # per token: ids, the likeliest first
    sample: int = 0  # which of the prompt's num_samples texts
    score: float | None = None  # from beam search, which picks the highest
    prompt: str = ""
    seed: int | None = None  # None: none was needed

    @property
    def mean_logprob(self) -> float | None:
        return sum(self.logprobs) / len(self.logprobs) if self.logprobs else None

    @property
    def from_draft(self) -> list[bool]:
        return [origin in DRAFTED for origin in self.origins]


def respond(row: Row, first: int = 0) -> Response:
    """The response for the row's generated tokens from index `first` on."""
    stats = row.stats.copy()
    scored = row.options.logprobs is not None
    return Response(
        text="".join(row.texts[first:]),
        tokens=row.generated[first:],
        texts=row.texts[first:],
        origins=row.origins[first:],
        finish_reason=row.finish_reason,
        prompt_tokens=stats.prompt_tokens,
        generation_tokens=stats.tokens,
        prompt_tps=stats.prompt_tokens / stats.encoding_seconds,
        generation_tps=stats.tokens / (time.perf_counter() - row.started),
        peak_memory=mx.get_peak_memory() / 1e9,
        stats=stats,
        logprobs=row.logprobs[first:] if scored else None,
        top_logprobs=row.best[first:] if scored else None,
        score=row.text_score,
        prompt=row.prompt_text,
        seed=row.options.seed,
    )
