"""The texts to learn from, and which of them are held out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from tokenizers import Tokenizer

from errors import InputError
from speculative.row import Row
from text.memory import Pair
from text.text_side import TextSide, check_prompt

HELD_OUT = 20  # one text in this many is held out
MOST_HELD_OUT = 300  # texts to measure with
_UNKNOWN = 0.05  # the share of unknown tokens above which texts are another model's


@dataclass(frozen=True)
class Text:
    """A prompt's tokens, and those of its text: the model's prefix and what it wrote."""

    prompt: Sequence[int]
    tokens: list[int]
    prefix: int

    @classmethod
    def of(cls, row: Row) -> "Text":
        """What a model has written."""
        return cls(row.prompt, row.tokens, row.prefix_size)

    @property
    def held_out(self) -> bool:
        return crc32(np.array(self.tokens, np.int32).tobytes()) % HELD_OUT == 0


def read_texts(model: Any, tokenizer: Tokenizer, pairs: Iterable[Pair]) -> list[Text]:
    """The tokens of pairs. Those that are empty or too long for the model are left out. InputError if many of their
    tokens are unknown to the model."""
    side = model.text or TextSide(tokenizer)
    config = model.config
    unknown = tokenizer.token_to_id("<unk>")
    texts = []
    for pair in pairs:
        encoded = side.encode(check_prompt(pair.prompt), pair.source_lang, pair.target_lang)
        prefix = encoded.prefix or model.prefix(encoded.tokens)
        written = tokenizer.encode(pair.text, add_special_tokens=False).ids
        tokens = [*prefix, *written, config.eos_token_ids[0]]
        fits = len(tokens) <= (config.max_positions or len(tokens))
        reads = len(encoded.tokens) <= (config.max_prompt_tokens or len(encoded.tokens))
        if written and encoded.tokens and fits and reads:
            texts.append(Text(encoded.tokens, tokens, len(prefix)))
    tokens = np.concatenate([[0], *(text.tokens[text.prefix :] for text in texts)])
    if unknown is not None and (tokens == unknown).mean() > _UNKNOWN:
        raise InputError("the model's vocabulary lacks many of the texts' words: whose are they?")
    return texts


def split(texts: Sequence[Text]) -> tuple[list[Text], list[Text]]:
    """The texts to train on, and those held out. InputError if there are none to train on."""
    trained = [text for text in texts if not text.held_out]
    held_out = [text for text in texts if text.held_out][:MOST_HELD_OUT]
    if not held_out and trained:
        held_out = [trained.pop()]
    if not trained:
        raise InputError("no texts to learn from")
    return trained, held_out
