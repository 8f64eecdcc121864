"""A slow greedy decoder to hold the fast one against: no cache, one token at a time."""

import dataclasses

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from model import T5


def greedy(model: T5, source: list[int], max_tokens: int) -> list[int]:
    """The tokens after the start token, the end of sequence included."""
    tokens = [model.config.decoder_start_token_id]
    while len(tokens) <= max_tokens:
        cache = model.start([source])
        positions = np.arange(len(tokens), dtype=np.int32)[None]
        logits = model.decode(mx.array([tokens]), positions, cache)
        tokens.append(mx.argmax(logits[0, -1]).item())
        if tokens[-1] in model.config.eos_token_ids:
            break
    return tokens[1:]


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
