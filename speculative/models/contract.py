"""The contract of a model: all that the step needs, and what else a model may have."""

import math
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import mlx.core as mx
import numpy as np

from speculative.common.errors import InputError
from speculative.step.cache import MASKED

# The tokens of each row, the model's prefix first; none for a row that takes no part in a call
TokenLists = Sequence[Sequence[int]]
Seen = tuple[mx.array, mx.array]  # the encoder's output [S, D] and a text's states [T, W]


class Model:
    """A model to decode with. A subclass has `config`, `prefix`, `start`, and `states` and `logits` or, if these cannot
    be told apart, `decode`; all else has a default.

    config: a dataclass with
        vocab_size         how many tokens its logits have
        pad_token_id       fills ragged arrays
        eos_token_ids      the tokens that end a text
        max_positions      the most tokens of a row in the decoder; None: any number
        max_prompt_tokens  the longest prompt; None: any
    """

    config: Any
    text: Any = None  # its text side (speculative/text/text_side.py), which a draft model needs
    ranks: Any = None  # the processes that share its layers (ranks.Ranks); None: this one alone
    max_rows: int | None = None  # that it can decode together; None: any number
    fixed_vocabulary = False  # whether it has tokens that its tokenizer does not name, too
    forced_bos_token_id: int | None = None  # the end of `prefix`, unless the user forces another
    origin: str | None = None  # the checkpoint it was converted from, as the user named it
    draft_of: str | None = None  # the target of a draft model that has only some layers of its own
    # Of a draft model that reads what the target's encoder made of the prompt: makes what it reads of each token, [B, T, W],
    # from the outputs of the target's layers and its head's input, [B, T, D] each; None: of any other model
    target_states: Callable[[Sequence[mx.array], mx.array], mx.array] | None = None
    learner: "Learner | None" = None  # as a draft model: what changes it while it drafts
    # How a text's tokens attend to its prompt (speculative/models/encoder_decoder.py); None: it has no attention to a prompt alone
    attention: Callable[..., Any] | None = None
    # Makes the cache of sources that are encoded (speculative/models/encoder_decoder.py); None: it has no encoder
    attend_to: Callable[..., Any] | None = None
    # Makes the empty cache of a number of rows, which `start` then takes too: only of models that read prompts as the
    # beginning of a row, so that later rows can reuse them
    new_cache: Callable[[int], Any] | None = None

    @property
    def source_vocab_size(self) -> int:
        """The number of tokens in its prompts' vocabulary."""
        return self.config.vocab_size

    def prefix(self, prompt: Sequence[int]) -> list[int]:
        """A row's first tokens, or none: a start token or, of a decoder-only model, the prompt."""
        raise NotImplementedError

    def start(self, prompts: TokenLists) -> Any:
        """Encode and project prompts of B rows, or prefill all but the last token of each: a cache, of a class of
        speculative/step/cache.py or a subclass. InputError for a prompt that is empty or too long."""
        raise NotImplementedError

    def decode(self, tokens: mx.array, positions: np.ndarray, cache: Any) -> mx.array:
        """Append tokens [B, T] at positions [B, T] (int32; cache.MASKED: a filler) to the cache: logits [B, T, V]."""
        return self.logits(self.states(tokens, positions, cache))

    def states(self, tokens: mx.array, positions: np.ndarray, cache: Any) -> mx.array:
        """As `decode`, but what the head gets: the last layer's output, normed, [B, T, D]."""
        raise NotImplementedError

    def logits(self, states: mx.array) -> mx.array:
        """[B, T, V] from states [B, T, D]."""
        raise NotImplementedError

    def snapshot_at(self, prompt: Sequence[int]) -> int:
        """With `new_cache`: after how many of a prompt's tokens to snapshot a recurrent model's state, so that later
        prompts can reuse it; 0: nowhere, or the model has attention only."""
        return 0

    def for_target(self, target: "Model") -> "Model":
        """As a draft model: the model that drafts for a target. InputError if it cannot."""
        return self

    def narrowed(self, ids: mx.array) -> "Model":
        """As a draft model: the same, but with the logits of `ids` [n] alone, [B, T, n]."""
        raise InputError("a draft vocabulary needs a draft model of this project's")


class Learner:
    """What a draft model that learns while the work goes on is told of it (apps/distillation/learning.py).

    version: of its weights, 0: it cannot draft yet; total: characters of all prompts, or windows of sound; inf: not known
    """

    version = 0
    total = math.inf

    def finished(self, row: Any, seen: Seen | None) -> None:
        """A row of the batch has finished. seen: of its text, if the target has it at hand."""

    def between_steps(self, rows: int) -> None:
        """The work, of so many rows, stands still after a step in which none finished, so that all that did is kept."""

    def idle(self) -> bool:
        """A server has nothing to do. Use this for a moment; return whether there was something to do."""
        return False

    def report(self) -> None:
        """The work is done: say what came of it."""


def padded(prompts: TokenLists, filler: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompts as one array [B, S], and its mask, true on tokens."""
    lengths = np.array([len(prompt) for prompt in prompts])
    mask = np.arange(lengths.max()) < lengths[:, None]
    tokens = np.full(mask.shape, filler, np.int32)
    tokens[mask] = np.concatenate(prompts)
    return tokens, mask


def missing_tokens(rows: TokenLists, held: np.ndarray, config: Any) -> tuple[np.ndarray, ...]:
    """The tokens of each row after those that are held [B], and their positions: [B, P] each. Rows end at the right edge;
    fillers of shorter rows have the position MASKED."""
    missing = [row[n:] for row, n in zip(rows, held, strict=True)]
    width = max(map(len, missing))
    tokens = np.full((len(rows), width), config.pad_token_id, np.int32)
    positions = np.full((len(rows), width), MASKED, np.int32)
    for b, row in enumerate(missing):
        tokens[b, width - len(row) :] = row
        positions[b, width - len(row) :] = np.arange(held[b], held[b] + len(row))
    known = np.where(tokens < config.vocab_size, tokens, config.pad_token_id)
    return known, positions  # a draft model may lack the target's last ids


def common_prefix(rows: TokenLists) -> list[int]:
    """The first tokens that all rows have in common."""
    columns = zip(*rows, strict=False)
    return [each[0] for each in takewhile(lambda each: len(set(each)) == 1, columns)]
