"""The texts to learn from, and which of them are held out."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import Any
from zlib import crc32

import mlx.core as mx
import numpy as np
from tokenizers import Tokenizer

from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.step.row import Row
from speculative.text.memory import Pair, load_memory
from speculative.text.text_side import Encoded, TextSide, check_prompt

HELD_OUT = 20  # one text in this many is held out
FEW = 8  # texts to evaluate on, if there are eight times as many
MANY = 300  # at most
_MAX_UNKNOWN = 0.05  # share of unknown tokens above which a text is another model's


@dataclass(frozen=True)
class TrainingText:
    prompt: Sequence[int]
    tokens: list[int]  # the model's prefix and what it wrote
    prefix: int
    # The encoder's output [S, D] and the states [T, W] of the tokens, if the model that wrote them had both at hand
    seen: tuple[mx.array, mx.array] | None = field(default=None, compare=False)

    @classmethod
    def from_row(cls, row: Row, seen: tuple[mx.array, mx.array] | None = None) -> "TrainingText":
        return cls(row.prompt, row.tokens, row.prefix_size, seen)

    @property
    def order(self) -> int:
        """A random number, always the same for this text: those with the lowest are held out."""
        return crc32(np.array(self.tokens, np.int32).tobytes())


def texts_in_memory(
    model: Any, tokenizer: Tokenizer, path: Path, languages: Sequence[str | None]
) -> list[TrainingText]:
    """The texts in a memory that may be in these languages, source and target."""
    memory = load_memory(path, reporter.note)
    pairs = memory.fitting(*languages)
    if len(pairs) < len(memory.pairs):
        reporter.note(f"{path}: {len(pairs)} of {len(memory.pairs)} pairs are in these languages")
    return read_texts(model, tokenizer, pairs)


def read_texts(model: Any, tokenizer: Tokenizer, pairs: Iterable[Pair]) -> list[TrainingText]:
    """The tokens of pairs. Those that the model cannot read or write are left out, with a note."""
    side = model.text or TextSide(tokenizer)
    languages = side.languages
    takes_source = languages and ("source" in languages.source or languages.reads)
    resolve = cache(side.resolve_languages)
    texts = []
    left_out = defaultdict[str, list[str]](list)  # prompts by reason
    for pair in pairs:
        try:
            # A model that is not told its languages does not know them by name either.
            codes = resolve(takes_source and pair.source_lang, languages and pair.target_lang)
            encoded = side.encode(check_prompt(pair.prompt), *codes)
            texts.append(_text(model, tokenizer, encoded, pair.text))
        except InputError as error:
            left_out[str(error)].append(pair.prompt)
    for reason, prompts in left_out.items():
        first = shorten(prompts[0], 40)
        reporter.note(f"pairs left out: {len(prompts)}, the first is {first!r}: {reason}")
    return texts


def _text(model: Any, tokenizer: Tokenizer, encoded: Encoded, text: str) -> TrainingText:
    """The tokens of a prompt and its text. InputError if the model cannot read or write them."""
    config = model.config
    prefix = encoded.prefix or model.prefix(encoded.tokens)
    written = tokenizer.encode(text, add_special_tokens=False).ids
    tokens = [*prefix, *written, config.eos_token_ids[0]]
    unknown = tokenizer.token_to_id("<unk>")
    if not (written and encoded.tokens):
        raise InputError("the text is empty")
    too_long = len(encoded.tokens) > (config.max_prompt_tokens or math.inf)
    if too_long or len(tokens) > (config.max_positions or math.inf):
        raise InputError("the prompt or the text is too long for the model")
    if sum(token == unknown for token in written) > _MAX_UNKNOWN * len(written):
        fault = "many tokens are unknown to this model"
        raise InputError(f"{fault}: was the text written by another one?")
    return TrainingText(encoded.tokens, tokens, len(prefix))


def split(texts: Sequence[TrainingText]) -> tuple[list[TrainingText], list[TrainingText]]:
    """The texts to train on, and those held out. InputError if there are fewer than two."""
    if len(texts) < 2:
        raise InputError("at least two texts to learn from are needed, to hold one out")
    n = len(texts)
    held_out = min(max(n // HELD_OUT, min(FEW, n // FEW), 1), MANY)
    in_order = sorted(texts, key=lambda text: text.order)
    return in_order[held_out:], in_order[:held_out]
