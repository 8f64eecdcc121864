"""Speculative decoding: a drafter proposes tokens, the target verifies them in one call, and the text is
the one that the target alone would write.

    from decoder import load, generate, stream_generate, batch_generate

    model, tokenizer = load("google-t5/t5-11b")
    draft, _ = load("google-t5/t5-small")
    text = generate(model, tokenizer, prompt, draft_model=draft, num_draft=5, max_tokens=256)
"""

from speculative import blas  # noqa: F401 (before mlx: see there)

# isort: split
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from secrets import randbits
from typing import Any

import mlx.core as mx
import numpy as np
from tokenizers import Tokenizer

from speculative.common.errors import InputError
from speculative.drafters.draft_model import ModelDrafter
from speculative.drafters.draft_vocabulary import DraftVocabulary
from speculative.drafters.drafter import Drafter
from speculative.drafters.prompt_lookup import REFERENCE, PromptLookup
from speculative.models.contract import Model
from speculative.models.loading import load as load  # for users, as Stats below
from speculative.models.ram import available, wired_memory
from speculative.models.ranks import ALONE
from speculative.step.beams import BeamBatch
from speculative.step.cached_model import CachedModel
from speculative.step.draft import Step
from speculative.step.driver import Driver, Prompts, Task, Tasks
from speculative.step.journal import RowJournal
from speculative.step.options import COUNT, SIZE, OptionError, Options
from speculative.step.prefix_cache import PrefixCache
from speculative.step.row import Response, Row, respond
from speculative.step.row import Stats as Stats
from speculative.step.sampling import RowSeeds, log_probabilities, sampler_for
from speculative.step.schedule import Schedule
from speculative.text.memory import Memory
from speculative.text.rows import Content as Content
from speculative.text.rows import RowMaker
from speculative.text.text_side import TextSide
from speculative.text.tokenizer import completion, piece_of, shared_vocabulary, translation

BATCH_SIZE = 8
_WINDOW = 32  # how many batches of prompts are sorted by length together


@dataclass(eq=False)
class Batch:
    """Rows decoded together, one step at a time: tokens in, tokens out. Its methods: speculative/step/driver.py."""

    model: Any
    drafter: Drafter
    options: Options
    schedule: Schedule
    prefix_cache: PrefixCache | None = None

    def __post_init__(self):
        self.target = CachedModel(self.model, self.prefix_cache)
        self.drafter.follow(self.target)
        self.rows: list[Row] = []

    def step(self) -> Step:
        """Draft, verify, accept, keep (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1), for all rows at once."""
        contexts = [row.context for row in self.rows]
        draft_room = [row.room - 1 for row in self.rows]  # the last token is the target's own
        wanted = [row.options.num_draft for row in self.rows]
        offered = self.drafter.candidates(contexts)
        candidates = [row.fitting(each) for row, each in zip(self.rows, offered, strict=True)]
        plan = self.schedule.plan(candidates, draft_room, wanted)
        sampler = sampler_for(self.rows, self.options, self.target.config.vocab_size)
        draft = self.drafter.draft(contexts, plan, sampler)  # d_1 .. d_k ~ q
        logits = self.target(contexts, draft.tokens, draft.lengths)  # p_1 .. p_k+1, in one call
        logits = sampler.process(logits, [draft.tokens])  # penalties, bans
        n, token = sampler.accept(logits, draft)  # the first n pass; token ~ max(0, p - q)
        scores = self.score(logits, n, token, draft.tokens)
        result = mx.concatenate([draft.tokens, n[:, None], token[:, None]], axis=1)
        mx.async_eval(result)
        if plan.idle_next and self.runs_ahead():
            self.target.run_ahead(contexts, token, [left > 0 for left in draft_room])
        result = self.target.broadcast(result)  # the only wait for the target
        self.target.keep(result[:, -2])
        self.drafter.keep(result[:, -2])
        step = Step(plan, draft, offered=candidates)
        self.commit(step, result, scores)
        return step

    def runs_ahead(self) -> bool:
        """Whether the next call begins before the host has this one's tokens. A GPU would idle; a CPU loses by it."""
        return mx.default_device() == mx.gpu and not self.target.model.ranks

    def score(self, logits: mx.array, n: mx.array, token: mx.array, drafted: mx.array) -> list:
        """The log-probabilities of a step's tokens, not waited for; empty if no row asks for them."""
        logprobs = [row.options.logprobs for row in self.rows if row.options.logprobs is not None]
        if not logprobs:
            return []
        scores = log_probabilities(logits, n, token, drafted, max(logprobs))
        mx.async_eval(scores)
        return list(scores)

    def commit(self, step: Step, result: np.ndarray, scores: list) -> None:
        """Give each unfinished row its new tokens. result [B, k + 2]: drafted tokens, n, and the target's token."""
        scores = [np.array(x) for x in scores]
        step.accepted = [0] * len(self.rows)
        step.gained = [[] for _ in self.rows]
        for b, row in enumerate(self.rows):
            if row.finish_reason:
                continue
            *drafted, n, token = result[b].tolist()
            length = int(step.draft.lengths[b])
            candidate = step.plan.candidates[b]
            origins = [candidate.origin] * n if candidate else []
            origins.append("corrected" if n < length else "target")
            before = len(row.tokens)
            accepted = row.commit([*drafted[:n], token], origins, self.target.config.eos_token_ids)
            step.accepted[b] = accepted
            step.gained[b] = row.tokens[before:]
            row.stats.draft_tokens += length
            if row.stats.remembered and candidate and candidate.drafter == REFERENCE:
                row.stats.from_memory += accepted
            if row.options.logprobs is not None:
                row.score(*(x[b] for x in scores))

    def observe(self, step: Step, finished: Sequence[Row]) -> None:
        self.drafter.learn(finished)
        for row in finished:
            self.target.remember(self.rows.index(row), row.tokens)
        if step.plan.learns:
            step.seconds = float(self.target.broadcast(step.seconds))
            self.schedule.observe(step, [row.stats.tokens for row in finished])

    def admit(self, rows: list[Row], new: Sequence[int]) -> None:
        self.rows = rows
        cached = self.target.admit(len(rows), new, [rows[b].prompt for b in new])
        for b, tokens in zip(new, cached, strict=True):
            rows[b].stats.cached_tokens = tokens
        self.drafter.admit(rows, new)

    def select(self, indices: Sequence[int]) -> None:
        self.rows = [self.rows[b] for b in indices]
        self.target.select(indices)
        self.drafter.select(indices)


class SpeculativeDecoder:
    """A target, an optional draft model, and what was learned about their speed: keep one for many calls.

    memory: earlier texts; drafts are copied from the texts of similar prompts.
    draft_vocabulary: token ids; the draft model scores only these, which is faster. "auto", without one if the
    draft model is made from the target: the tokens that it writes, once new ones have become rare, by target language.
    prefix_cache: size of the prefix cache in bytes, for decoder-only models; None: a tenth of RAM
    Raises InputError if an argument is not a model or tokenizer, or the draft model has another vocabulary.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        draft_model: Model | None = None,
        memory: Memory | None = None,
        draft_vocabulary: Collection[int] | str | None = None,
        prefix_cache: float | None = None,
    ):
        _check_type("model", model, Model)
        _check_type("tokenizer", tokenizer, Tokenizer)
        if model.draft_of:
            raise InputError(f"this is a draft model of {model.draft_of}: it writes no texts alone")
        self.model = model
        self.tokenizer = tokenizer
        self.draft_model: Model | None = None
        self.memory = memory
        self.text = replace(model.text or TextSide(tokenizer), tokenizer=tokenizer)
        self.maker = RowMaker(model, self.text, memory)
        self._common_ids = 0  # target and draft model share the ids below this
        if draft_model is not None:
            _check_type("draft_model", draft_model, Model)
            self._add_draft_model(draft_model.for_target(model))
        self.learner: Any = self.draft_model and self.draft_model.learner
        self.draft_vocabulary = None
        if draft_vocabulary is None and self.draft_model and self.draft_model.target_states:
            draft_vocabulary = "auto"  # its head takes most of its time
        if draft_vocabulary is not None:
            self.draft_vocabulary = self._vocabulary(draft_vocabulary)
        self.schedule = Schedule(model.config.vocab_size)  # `auto` learns from call to call
        self.prefix_cache = None
        # Several machines would have to keep the same, and their memories differ.
        if model.new_cache and not model.ranks and prefix_cache != 0:
            self.prefix_cache = PrefixCache(prefix_cache or available() // 10)

    def _add_draft_model(self, draft_model: Model) -> None:
        theirs = draft_model.text
        if theirs is None:
            raise InputError("the draft model has no tokenizer to compare: use that of load()")
        if self.model.attend_to and not draft_model.attend_to:
            raise InputError("the model has an encoder: its draft model needs one too")
        self.draft_model = draft_model
        named = shared_vocabulary(self.tokenizer, theirs.tokenizer)
        if self.model.fixed_vocabulary:  # whatever tokenizers name
            named = draft_model.config.vocab_size
        self._common_ids = min(named, self.model.config.vocab_size)
        if self.text.source_tokenizer or theirs.source_tokenizer:
            shared_vocabulary(self.text.prompt_tokenizer, theirs.prompt_tokenizer)

    def _vocabulary(self, tokens: Collection[int] | str) -> DraftVocabulary:
        if self.draft_model is None:
            raise InputError("a draft vocabulary needs a draft model of this project's")
        size = min(self._common_ids, self.draft_model.config.vocab_size)
        given = set() if isinstance(tokens, str) else set(tokens)
        if tokens != "auto" and not (given and all(map(COUNT.accepts, given))):
            raise InputError(f"draft_vocabulary is {tokens!r:.40}, neither token ids nor 'auto'")
        return DraftVocabulary(self.draft_model, size, given or None, completion(self.tokenizer))

    def drafter(self, options: Options) -> Drafter:
        """A new drafter for a batch, as num_draft and lookup ask. Override it to bring your own."""
        if options.num_draft == 0:
            return Drafter()
        copied = None
        if options.copies(self.draft_model is not None):
            source = self.text.source_tokenizer
            copied = translation(source, self.tokenizer) if source else int
        lookup = PromptLookup(partial(piece_of, self.tokenizer), copied)
        if self.draft_model is None:
            return lookup
        own = self.draft_model, self._common_ids, self.draft_vocabulary, self.prefix_cache
        return ModelDrafter(*own, lookup)

    def max_batch_size(self, batch_size: int) -> int:
        """The number of rows that the models can decode together, up to `batch_size`."""
        limits = [each.max_rows for each in (self.model, self.draft_model) if each]
        return min([batch_size, *filter(None, limits)])

    @contextmanager
    def running(self, options: Options) -> Iterator[Driver]:
        """The driver of an empty batch; on a Mac, memory stays wired while it is open."""
        if options.num_beams > 1 and self.max_batch_size(options.num_beams) < options.num_beams:
            raise InputError("this model decodes one row at a time: no beams")
        with wired_memory():
            if options.num_beams > 1:
                yield Driver(BeamBatch(self.model, options.num_beams))
            else:
                drafter = self.drafter(options)
                batch = Batch(self.model, drafter, options, self.schedule, self.prefix_cache)
                yield Driver(batch)

    def run(
        self,
        tasks: Iterable[Task],
        options: Options,
        batch_size: int = BATCH_SIZE,
        at_once: int = 1,
        on_row: Callable[[Row], object] = lambda row: None,
    ) -> Iterator[tuple[int, Any]]:
        """Decode what tasks need, `batch_size` rows together; yield (index, result) as each task ends, or (index, InputError)
        if it fails. at_once: so many tasks go on beside each other. on_row: gets each row as it finishes"""
        source = Tasks(tasks, at_once)
        with self.running(options) as driver:
            for row in driver.decode(source, self.max_batch_size(batch_size)):
                self._count(row)
                on_row(row)
                source.finish(row)
                while source.results:
                    yield source.results.popleft()
        yield from source.results

    def _count(self, row: Row) -> None:
        """Let what an earlier run decoded not count as work that is left."""
        if self.learner and row.replayed:
            self.learner.total -= len(row.prompt_text) or 1

    def seeded(self, options: Options) -> Options:
        """These options, with a fresh seed if they sample and name none. Ranks take rank 0's."""
        if options.seed is None and options.temp:
            seed, *_ = (self.model.ranks or ALONE).gather(str(randbits(32)))
            options = replace(options, seed=int(seed))
        return options

    def stream_generate(self, prompt: Content, **options) -> Iterator[Response]:
        """Decode one prompt; yield a Response per step, with the text that the step added.

        options: the fields of `Options`. Drafting changes only the speed: the text is the same (greedy, or sampled
        by the rule `coupled`) or has the same distribution. Errors: as `RowMaker.row`, and options out of range.
        """
        settings = self.seeded(Options.named(options))
        if settings.num_samples > 1:
            raise InputError("num_samples above 1 is for batch_generate and stream_batch")
        row = self.maker.row(prompt, settings)
        with self.running(settings) as driver:
            driver.admit([row])
            while not row.finish_reason:
                first = len(row.origins)
                if driver.advance() or len(row.origins) > first:  # a beam search has no text yet
                    yield respond(row, first)

    def generate(self, prompt: Content, **options) -> str:
        """The text for one prompt. Arguments and errors: as `stream_generate`."""
        return "".join(response.text for response in self.stream_generate(prompt, **options))

    def stream_batch(
        self,
        prompts: Iterable[Content],
        batch_size: int = BATCH_SIZE,
        journal: RowJournal | None = None,
        **options,
    ) -> Iterator[tuple[int, Response]]:
        """Decode many prompts, `batch_size` at a time; yield (index, Response) as each finishes.

        `prompts` is read as needed; of the prompts read, the longest go first. If it has a method ready(), which says
        whether the next prompt or the end has come, decoding goes on without waiting, and prompts join as they come.

        Each prompt gets the tokens it would get alone (in float32; narrower types may round differently in
        a batch); a repeated prompt draws other random numbers. journal: keeps finished rows, for a run after an
        interruption. Errors: as `stream_generate`.
        """
        settings = self.seeded(Options.named(options))
        if not SIZE.accepts(batch_size):
            raise OptionError("batch_size", batch_size, SIZE)
        if isinstance(prompts, (str, bytes, Mapping)) or not isinstance(prompts, Iterable):
            raise InputError(f"prompts is a {type(prompts).__name__}, not a list of texts")
        make = partial(self.maker.rows, options=settings, seeds=RowSeeds(settings.seed))
        source = Prompts(prompts, make, _WINDOW * int(batch_size), journal)
        with self.running(settings) as driver:
            for row in driver.decode(source, self.max_batch_size(int(batch_size))):
                self._count(row)
                index, sample = source.index.pop(row)
                for i, each in enumerate([row, *row.others]):
                    yield index, replace(respond(each), sample=sample + i)

    def batch_generate(
        self, prompts: Iterable[Content], batch_size: int = BATCH_SIZE, **options
    ) -> list[Response]:
        """The Responses for many prompts, in their order, num_samples for each. Arguments: as `stream_batch`."""
        responses = self.stream_batch(prompts, batch_size, **options)
        return [r for _, r in sorted(responses, key=lambda pair: (pair[0], pair[1].sample))]


def _check_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        problem = f"{name} is a {type(value).__name__}, not a {kind.__name__.lower()}"
        raise InputError(f"{problem}; load() returns a model and its tokenizer")


# Functions with mlx_lm's names. Their options include memory and draft_vocabulary, for the decoder. Each call forgets
# what `auto` learned.


def _decoder(
    model: Model, tokenizer: Tokenizer, draft_model: Model | None, options: dict
) -> SpeculativeDecoder:
    settings = {name: options.pop(name, None) for name in ("memory", "draft_vocabulary")}
    decoder = SpeculativeDecoder(model, tokenizer, draft_model, **settings)
    ignored = decoder.text.defaults.ignored(options.get("num_beams"))
    if ignored:
        warnings.warn(ignored, stacklevel=3)
    return decoder


def stream_generate(
    model: Model, tokenizer: Tokenizer, prompt: Content, draft_model: Model | None = None, **options
) -> Iterator[Response]:
    """As `SpeculativeDecoder.stream_generate`."""
    return _decoder(model, tokenizer, draft_model, options).stream_generate(prompt, **options)


def generate(
    model: Model, tokenizer: Tokenizer, prompt: Content, draft_model: Model | None = None, **options
) -> str:
    """As `SpeculativeDecoder.generate`."""
    return _decoder(model, tokenizer, draft_model, options).generate(prompt, **options)


def batch_generate(
    model: Model,
    tokenizer: Tokenizer,
    prompts: Iterable[Content],
    draft_model: Model | None = None,
    batch_size: int = BATCH_SIZE,
    **options,
) -> list[Response]:
    """As `SpeculativeDecoder.batch_generate`."""
    decoder = _decoder(model, tokenizer, draft_model, options)
    return decoder.batch_generate(prompts, batch_size, **options)
