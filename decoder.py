"""Speculative decoding of encoder-decoder models: a drafter proposes, the target checks all of it in
one call, the text is the target's own.

    from decoder import load, generate, stream_generate, batch_generate

    model, tokenizer = load("mlx_models/t5-11b")
    draft, _ = load("mlx_models/t5-small")
    text = generate(model, tokenizer, prompt, draft_model=draft, num_draft=5, max_tokens=256)
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import mlx.core as mx
from tokenizers import Tokenizer

from checkpoints.tokenizer import TextStream, shared_vocabulary
from errors import InputError
from families.loading import load
from model import T5
from speculative.drafting import CombinedDrafter, Drafter, InputDrafter, ModelDrafter
from speculative.options import Options
from speculative.rounds import Decoding, Row, Stats, decode, draft_length
from speculative.sampling import RowSeeds
from speculative.schedule import Fixed, Measured

__all__ = [
    "Options",
    "Response",
    "Stats",
    "batch_generate",
    "generate",
    "load",
    "stream_batch",
    "stream_generate",
]

BATCH_SIZE = 8
_WINDOW = 32  # batches of prompts that are sorted by length together


@dataclass
class Response:
    """What was generated for a prompt: all of it, or (`stream_generate`) what a round added."""

    text: str
    tokens: list[int]
    texts: list[str]  # per token: what it adds to the text, a character with its last token
    from_draft: list[bool]  # per token: the drafter proposed it
    origins: list[str]  # per token: "copied", "drafted", "corrected" or "plain"; see rounds.ORIGINS
    finish_reason: str | None  # "stop": end of sequence; "length": max_tokens; None: goes on
    prompt_tokens: int
    generation_tokens: int  # so far
    prompt_tps: float  # tokens per second of the encoder
    generation_tps: float
    peak_memory: float  # GB
    stats: Stats  # so far


def check_prompt(prompt: str) -> str:
    """The prompt; InputError when there is nothing in it to work on."""
    if not isinstance(prompt, str):
        raise InputError(f"the prompt is {type(prompt).__name__}, not text")
    if not prompt.strip():
        raise InputError("the prompt is empty")
    if any("\ud800" <= character <= "\udfff" for character in prompt):
        raise InputError("the prompt is not valid Unicode text")
    return prompt


_shared_vocabulary = lru_cache(maxsize=8)(shared_vocabulary)


def drafter_for(
    model: T5, tokenizer: Tokenizer, draft_model: T5 | None, options: Options
) -> Drafter | None:
    """What drafts for the model, by the options num_draft and lookup; None: nothing does.

    Raises InputError when the draft model's vocabulary is another.
    """
    if options.num_draft == 0:
        return None
    copying = InputDrafter(lambda token: tokenizer.id_to_token(token) or "")
    if draft_model is None:
        return copying if options.lookup else None
    shared = _shared_vocabulary(tokenizer, draft_model.tokenizer)
    modelling = ModelDrafter(draft_model, min(shared, model.config.vocab_size))
    return CombinedDrafter(copying, modelling) if options.lookup else modelling


def _length(model: T5, draft_model: T5 | None, options: Options) -> Fixed | Measured:
    """What decides how much to draft. What was measured stays with the model, for the next call."""
    if options.num_draft != "auto":
        return draft_length(model, options)
    if not hasattr(model, "measured"):
        model.measured = _Measurements()
    key = (id(draft_model), options.lookup)
    return model.measured.by_drafter.setdefault(key, draft_length(model, options))


class _Measurements:
    """What was measured with a target. (A module would take a plain dict for weights.)"""

    def __init__(self):
        self.by_drafter: dict[tuple, Measured] = {}


def _text_stream(model: T5, tokenizer: Tokenizer) -> TextStream:
    return TextStream(tokenizer, {model.config.pad_token_id, *model.config.eos_token_ids})


def _respond(row: Row, stream: TextStream, first: int = 0) -> Response:
    """The response for the row's generated tokens from index `first` on."""
    generated = len(row.from_draft)
    tokens = row.tokens[1 + first :]
    texts = [stream.push([token]) for token in tokens]
    if row.finish_reason:
        texts[-1] += stream.finish()
    return Response(
        text="".join(texts),
        tokens=tokens,
        texts=texts,
        from_draft=row.from_draft[first:],
        origins=row.origins[first:],
        finish_reason=row.finish_reason,
        prompt_tokens=len(row.source),
        generation_tokens=generated,
        prompt_tps=row.encoded_per_second,
        generation_tps=generated / (time.perf_counter() - row.started),
        peak_memory=mx.get_peak_memory() / 1e9,
        stats=row.stats,
    )


def stream_generate(
    model: T5, tokenizer: Tokenizer, prompt: str, draft_model: T5 | None = None, **options
) -> Iterator[Response]:
    """Decode one prompt; yield a Response per round, with the text that the round added.

    options: the fields of `Options`. Without a draft model and `lookup` this is plain decoding; with
    either the text is the same (greedy, or sampled by the rule `coupled`) or has the same law
    (sampled by another rule). Raises InputError for an empty prompt, options out of range and a draft model of
    another vocabulary.
    """
    options = Options(**options)
    drafter = drafter_for(model, tokenizer, draft_model, options)
    source = tokenizer.encode(check_prompt(prompt)).ids
    row = Row(source, RowSeeds(options.seed)(source))
    decoding = Decoding(model, drafter, [row], options, _length(model, draft_model, options))
    stream = _text_stream(model, tokenizer)
    while not row.finish_reason:
        first = len(row.from_draft)
        decoding.round()
        yield _respond(row, stream, first)


def generate(
    model: T5, tokenizer: Tokenizer, prompt: str, draft_model: T5 | None = None, **options
) -> str:
    """The text for one prompt. Arguments and errors: as `stream_generate`."""
    responses = stream_generate(model, tokenizer, prompt, draft_model, **options)
    return "".join(response.text for response in responses)


def stream_batch(
    model: T5,
    tokenizer: Tokenizer,
    prompts: Iterable[str],
    draft_model: T5 | None = None,
    batch_size: int = BATCH_SIZE,
    **options,
) -> Iterator[tuple[int, Response]]:
    """Decode many prompts, `batch_size` side by side; yield (index, Response) as each is finished.

    A finished prompt's place goes to the next one at once. `prompts` is read as needed, and of
    those read the longest go first, so that prompts side by side are of similar length: memory
    depends on the batch, not on the list.

    Each prompt's tokens are those it gets alone (in float32; narrower types may round otherwise in
    a batch); a prompt that the list has had before draws other random numbers. Other arguments
    and errors: as `stream_generate`.
    """
    options = Options(**options)
    if not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size is {batch_size!r}, not a whole number of 1 or more")
    drafter = drafter_for(model, tokenizer, draft_model, options)
    index: dict[int, int] = {}  # id of a row in progress -> its place in the list

    def rows() -> Iterator[Row]:
        seed, numbered = RowSeeds(options.seed), enumerate(prompts)
        while window := list(islice(numbered, _WINDOW * batch_size)):
            encoded = tokenizer.encode_batch([check_prompt(prompt) for _, prompt in window])
            sources = [(i, e.ids) for (i, _), e in zip(window, encoded, strict=True)]
            seeded = [(i, Row(source, seed(source))) for i, source in sources]
            for i, row in sorted(seeded, key=lambda item: -len(item[1].source)):
                index[id(row)] = i
                yield row

    length = _length(model, draft_model, options)
    for row in decode(model, drafter, rows(), options, batch_size, length):
        yield index.pop(id(row)), _respond(row, _text_stream(model, tokenizer))


def batch_generate(
    model: T5,
    tokenizer: Tokenizer,
    prompts: Iterable[str],
    draft_model: T5 | None = None,
    batch_size: int = BATCH_SIZE,
    **options,
) -> list[Response]:
    """A Response for each of many prompts, in their order. Arguments: as `stream_batch`."""
    found = dict(stream_batch(model, tokenizer, prompts, draft_model, batch_size, **options))
    return [found[i] for i in range(len(found))]
