"""A slow greedy decoder to hold the fast one against: nothing cached, one token at a time."""

import dataclasses
from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from model import T5


def greedy(model: T5, sources: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Of each source the tokens after the start token, the end of sequence included."""
    tokens = mx.full((len(sources), 1), model.config.decoder_start_token_id)
    while (count := tokens.shape[1]) <= max_tokens:
        positions = np.tile(np.arange(count, dtype=np.int32), (len(sources), 1))
        logits = model.decode(tokens, positions, model.start(sources))
        tokens = mx.concatenate([tokens, mx.argmax(logits[:, -1:], axis=-1)], axis=1)
    return [until(model.config.eos_token_ids, row[1:]) for row in tokens.tolist()]


def until(ends: Sequence[int], tokens: list[int]) -> list[int]:
    """Tokens up to the first end of sequence."""
    end = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: end + 1]


def with_eos(model: T5, *tokens: int) -> None:
    """Make these the model's ends of sequence: random weights hardly ever produce a given one."""
    model.config = dataclasses.replace(model.config, eos_token_ids=tokens)


def disturbed(model, noise: float, seed: int = 0):
    """A draft model: `model` with relative Gaussian noise on every weight."""
    draft = type(model)(model.config)
    rng = np.random.default_rng(seed)

    def shift(weight: mx.array) -> mx.array:
        scale = noise * float(weight.std())
        return weight + mx.array(rng.normal(0, scale, weight.shape).astype(np.float32))

    draft.load_weights([(name, shift(weight)) for name, weight in flat_weights(model)])
    return draft


def flat_weights(model: T5) -> list[tuple[str, mx.array]]:
    return tree_flatten(model.parameters())


_THEIRS = dict(
    max_tokens="max_new_tokens", min_tokens="min_new_tokens", num_samples="num_return_sequences"
)


def in_transformers(options: dict) -> dict:
    """The same as arguments of transformers' `generate`."""
    renamed = {_THEIRS.get(k, k): v for k, v in options.items() if k != "logit_bias"}
    bias = [[[token], value] for token, value in options.get("logit_bias", {}).items()]
    return renamed | ({"sequence_bias": bias} if bias else {})
