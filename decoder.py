"""Speculative decoding of encoder-decoder models (Leviathan et al. 2023, arXiv 2211.17192): a
drafter proposes, the target checks all proposals in one call, the text is the target's own.

    from decoder import load, generate, stream_generate, batch_generate

    model, tokenizer = load("mlx_models/t5-11b")
    draft, _ = load("mlx_models/t5-small")
    text = generate(model, tokenizer, prompt, draft_model=draft, num_draft=5, max_tokens=256)
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Integral, Real

import mlx.core as mx
import numpy as np
from tokenizers import Tokenizer

from checkpoint import InputError
from drafting import ModelDrafter, following, lacking
from model import T5, load
from sampling import RULES, Draft, Greedy, Sampler, no_draft, row_seed
from tokenizer import TextStream, shared_vocabulary

__all__ = [
    "Options",
    "Response",
    "Stats",
    "batch_generate",
    "generate",
    "load",
    "stream_generate",
]


DEFAULT_RULE = "block"


@dataclass(frozen=True)
class Options:
    """The keyword arguments of `generate`, `stream_generate` and `batch_generate`, and the one
    place of their defaults. A value out of range raises InputError."""

    num_draft: int = 5  # tokens drafted per round; 0: plain decoding
    max_tokens: int = 256  # tokens generated at most, end of sequence included
    temp: float = 0.0  # temperature; 0: greedy
    top_k: int = 0  # keep the top_k most probable tokens; 0: all
    top_p: float = 1.0  # keep the fewest tokens that hold this much probability
    min_p: float = 0.0  # keep tokens with this share of the best token's probability
    seed: int = 0  # the same seed gives the same text
    acceptance: str | None = None  # a rule of sampling.RULES; None: see `rule`
    delta: float = 0.0  # above 0 lossy: how much acceptance is eased, up to 1: accept everything
    timed: bool = False  # time drafting apart from verifying, for one more wait per round

    def __post_init__(self):
        self._check("num_draft", Integral, "a whole number of 0 or more", lambda n: n >= 0)
        self._check("max_tokens", Integral, "a whole number of 1 or more", lambda n: n >= 1)
        self._check("temp", Real, "a number of 0 or more", lambda x: 0 <= x < math.inf)
        self._check("top_k", Integral, "a whole number of 0 or more", lambda n: n >= 0)
        self._check("top_p", Real, "a number above 0, up to 1", lambda x: 0 < x <= 1)
        self._check("min_p", Real, "a number from 0 to 1", lambda x: 0 <= x <= 1)
        self._check("seed", Integral, "a whole number", lambda n: True)
        self._check("delta", Real, "a number from 0 to 1", lambda x: 0 <= x <= 1)
        if self.acceptance not in (None, *RULES):
            raise InputError(f"acceptance is {self.acceptance!r}, not one of {', '.join(RULES)}")
        if self.delta and self.temp and self.rule != "token":
            raise InputError(
                f"delta has no meaning for the acceptance rule {self.rule}, only token"
            )

    def _check(self, name: str, kind: type, what: str, accepts: Callable) -> None:
        value = getattr(self, name)
        if not isinstance(value, kind) or isinstance(value, bool) or not accepts(value):
            raise InputError(f"{name} is {value!r}, not {what}")

    @property
    def rule(self) -> str:
        """The acceptance rule at temperature > 0."""
        return self.acceptance or ("token" if self.delta else DEFAULT_RULE)

    def sampler(self, row_seeds: list[bytes]) -> Greedy | Sampler:
        if self.temp == 0:
            return Greedy(self.delta)
        return Sampler(
            self.rule,
            row_seeds,
            self.delta,
            temp=self.temp,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
        )


@dataclass
class Stats:
    """What decoding a row took. Seconds are those of the rounds that the row took part in."""

    target_calls: int = 0
    drafted: int = 0
    accepted_lengths: Counter[int] = field(default_factory=Counter)  # drafted tokens kept: rounds
    seconds: float = 0.0
    drafting_seconds: float = 0.0  # of these; measured with the option `timed` only

    @property
    def accepted(self) -> int:
        """Drafted tokens in the text."""
        return sum(length * rounds for length, rounds in self.accepted_lengths.items())

    def count(self, seconds: float, drafting_seconds: float, drafted: int) -> None:
        self.target_calls += 1
        self.drafted += drafted
        self.seconds += seconds
        self.drafting_seconds += drafting_seconds


@dataclass
class Response:
    """Text from `stream_generate` (what the last round added) or `batch_generate` (all of it)."""

    text: str
    tokens: list[int]
    from_draft: list[bool]  # per token: the drafter proposed it
    finish_reason: str | None  # "stop": end of sequence; "length": max_tokens; None: goes on
    prompt_tokens: int
    generation_tokens: int  # so far
    prompt_tps: float  # tokens per second of the encoder
    generation_tps: float
    peak_memory: float  # GB
    stats: Stats  # so far


@dataclass
class _Row:
    source: list[int]
    tokens: list[int]  # the decoder's start token first
    from_draft: list[bool]
    finish_reason: str | None = None
    stats: Stats = field(default_factory=Stats)


class Decoding:
    """Sources decoded together, a round at a time. Ids in, ids out; text is not its business.

    `drafter` is None for plain decoding, which is the same round with nothing drafted.
    """

    def __init__(
        self,
        model: T5,
        drafter,
        sources: Sequence[list[int]],
        options: Options,
        row_seeds: list[bytes] | None = None,
    ):
        """row_seeds: the rows' noise, where they are not the only rows of `options.seed`."""
        row_seeds = row_seeds or _row_seeds(sources, options.seed)
        self.model, self.drafter, self.options = model, drafter, options
        config = model.config
        self.rows = [_Row(source, [config.decoder_start_token_id], []) for source in sources]
        self.sampler = options.sampler(row_seeds)
        tokens, mask = _padded(sources, config.pad_token_id)
        began = time.perf_counter()
        self.cache = model.start(tokens, mask)
        if drafter:
            drafter.start(tokens, mask)
        mx.eval(self.cache.memory)
        self.prompt_seconds = time.perf_counter() - began

    @property
    def finished(self) -> bool:
        return all(row.finish_reason for row in self.rows)

    def round(self) -> None:
        """Draft, verify, accept, keep: every unfinished row gains at least one token."""
        rows = [[] if row.finish_reason else row.tokens for row in self.rows]
        lengths = self._draft_lengths()
        k = int(lengths.max())
        began = time.perf_counter()

        # draft
        draft = self.drafter.draft(rows, lengths, self.sampler) if k else no_draft(len(rows))
        mx.async_eval(draft.tokens)  # runs while the host prepares what follows

        # verify
        last, positions = lacking(rows, self.cache, self.model.config.pad_token_id)
        positions = np.concatenate([positions, following(rows, draft.lengths)], axis=1)
        tokens = mx.concatenate([mx.array(last), draft.tokens], axis=1)  # [B, 1 + k]
        logits = self.model.decode(tokens, positions, self.cache)  # [B, 1 + k, V]

        # accept
        n, token = self.sampler.accept(logits, draft, rows)
        result = mx.concatenate([draft.tokens, n[:, None], token[:, None]], axis=1)
        drafting = self._wait_for(draft, began) if self.options.timed and k else 0.0
        result = np.array(result)  # [B, k + 2], the round's one synchronisation
        drafted, n, token = result[:, :k], result[:, k], result[:, k + 1]

        # keep
        self.cache.keep(1 + n)
        if k:
            self.drafter.keep(n)
        seconds = time.perf_counter() - began
        for b, row in enumerate(self.rows):
            if not row.finish_reason:
                row.stats.count(seconds, drafting, int(draft.lengths[b]))
                self._commit(row, drafted[b, : n[b]].tolist(), int(token[b]))

    def _wait_for(self, draft: Draft, began: float) -> float:
        np.array(draft.tokens)
        return time.perf_counter() - began

    def _draft_lengths(self) -> np.ndarray:
        """How many tokens to draft for each row [B]: no more than it has room for."""
        room = [self.options.max_tokens - len(row.from_draft) - 1 for row in self.rows]
        most = self.options.num_draft if self.drafter else 0
        finished = [bool(row.finish_reason) for row in self.rows]
        return np.where(finished, 0, np.minimum(room, most))

    def _commit(self, row: _Row, accepted: list[int], token: int) -> None:
        """Append the accepted drafted tokens and the target's own, cut at the first end of sequence
        and at max_tokens."""
        new = [*accepted, token][: self.options.max_tokens - len(row.from_draft)]
        ends = [i for i, t in enumerate(new) if t in self.model.config.eos_token_ids]
        if ends:
            new = new[: ends[0] + 1]
        flags = [i < len(accepted) for i in range(len(new))]
        row.tokens += new
        row.from_draft += flags
        row.stats.accepted_lengths[sum(flags)] += 1
        if ends:
            row.finish_reason = "stop"
        elif len(row.from_draft) == self.options.max_tokens:
            row.finish_reason = "length"


def _row_seeds(sources: Sequence[list[int]], seed: int) -> list[bytes]:
    seen: Counter = Counter()
    seeds = []
    for source in sources:
        seeds.append(row_seed(seed, source, seen[tuple(source)]))
        seen[tuple(source)] += 1
    return seeds


def _padded(sources: Sequence[list[int]], pad: int) -> tuple[mx.array, np.ndarray]:
    """Tokens [B, S] and their mask [B, S], true on tokens."""
    lengths = np.array([len(source) for source in sources])
    mask = np.arange(lengths.max()) < lengths[:, None]
    tokens = np.full(mask.shape, pad, np.int32)
    tokens[mask] = np.concatenate(sources)
    return mx.array(tokens), mask


def _encode(tokenizer: Tokenizer, prompt: str) -> list[int]:
    if not prompt.strip():
        raise InputError("the prompt is empty")
    if any("\ud800" <= character <= "\udfff" for character in prompt):
        raise InputError("the prompt is not valid Unicode text")
    return tokenizer.encode(prompt).ids


_shared_vocabulary = lru_cache(maxsize=8)(shared_vocabulary)


def _drafter(tokenizer: Tokenizer, draft_model: T5 | None, options: Options):
    if draft_model is None or options.num_draft == 0:
        return None
    shared = _shared_vocabulary(tokenizer, draft_model.tokenizer)
    return ModelDrafter(draft_model, shared)


def _respond(decoding: Decoding, row: _Row, text: str, first: int, seconds: float) -> Response:
    """The response for the row's generated tokens from index `first` on."""
    generated = len(row.from_draft)
    return Response(
        text=text,
        tokens=row.tokens[1 + first :],
        from_draft=row.from_draft[first:],
        finish_reason=row.finish_reason,
        prompt_tokens=len(row.source),
        generation_tokens=generated,
        prompt_tps=sum(len(r.source) for r in decoding.rows) / decoding.prompt_seconds,
        generation_tps=generated / seconds,
        peak_memory=mx.get_peak_memory() / 1e9,
        stats=row.stats,
    )


def _hidden(model: T5) -> set[int]:
    """The tokens that have no text."""
    return {model.config.pad_token_id, *model.config.eos_token_ids}


def stream_generate(
    model: T5, tokenizer: Tokenizer, prompt: str, draft_model: T5 | None = None, **options
) -> Iterator[Response]:
    """Decode one prompt; yield a Response per round, with the text that the round added.

    options: the fields of `Options`. Without a draft model this is plain greedy decoding; with one
    the tokens are the same. Raises InputError for an empty prompt, options out of range and a draft
    model of another vocabulary.
    """
    options = Options(**options)
    drafter = _drafter(tokenizer, draft_model, options)
    decoding = Decoding(model, drafter, [_encode(tokenizer, prompt)], options)
    (row,) = decoding.rows
    stream = TextStream(tokenizer, _hidden(model))
    began = time.perf_counter()
    while not decoding.finished:
        first = len(row.from_draft)
        decoding.round()
        text = stream.push(row.tokens[1 + first :])
        if row.finish_reason:
            text += stream.finish()
        yield _respond(decoding, row, text, first, time.perf_counter() - began)


def generate(
    model: T5, tokenizer: Tokenizer, prompt: str, draft_model: T5 | None = None, **options
) -> str:
    """The text for one prompt. Arguments and errors: as `stream_generate`."""
    responses = stream_generate(model, tokenizer, prompt, draft_model, **options)
    return "".join(response.text for response in responses)


def batch_generate(
    model: T5,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    draft_model: T5 | None = None,
    batch_size: int = 8,
    **options,
) -> list[Response]:
    """Decode many prompts, `batch_size` at a time; a Response for each, in their order.

    Each row's tokens are those of its prompt alone (in float32; narrower types may round otherwise
    in a batch). Other arguments and errors: as `stream_generate`.
    """
    options = Options(**options)
    if not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size is {batch_size!r}, not a whole number of 1 or more")
    sources = [_encode(tokenizer, prompt) for prompt in prompts]
    seeds = _row_seeds(sources, options.seed)
    drafter = _drafter(tokenizer, draft_model, options)
    responses: list[Response | None] = [None] * len(prompts)
    by_length = sorted(range(len(prompts)), key=lambda i: len(sources[i]))
    for start in range(0, len(prompts), batch_size):
        group = by_length[start : start + batch_size]
        decoding = Decoding(
            model, drafter, [sources[i] for i in group], options, [seeds[i] for i in group]
        )
        began = time.perf_counter()
        while not decoding.finished:
            decoding.round()
            for i, row in zip(group, decoding.rows, strict=True):
                if row.finish_reason and responses[i] is None:
                    stream = TextStream(tokenizer, _hidden(model))
                    text = stream.push(row.tokens[1:]) + stream.finish()
                    seconds = time.perf_counter() - began
                    responses[i] = _respond(decoding, row, text, 0, seconds)
    return responses
