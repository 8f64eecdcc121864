"""transformers on the weights of our models, for benchmark.py to compare with. Needs PyTorch.

It runs in a process of its own: two libraries' threads in one process slow each other down.
"""

import multiprocessing
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_flatten
from transformers import T5Config, T5ForConditionalGeneration

from convert import our_name
from model import T5


def in_transformers(model: T5) -> T5ForConditionalGeneration:
    """The same model, in float32."""
    c = model.config
    shape = {key: getattr(c, key) for key in ("vocab_size", "d_model", "d_kv", "d_ff", "num_heads")}
    config = T5Config(
        **shape,
        num_layers=c.num_layers,
        num_decoder_layers=c.num_decoder_layers,
        feed_forward_proj=f"gated-{c.activation}" if c.gated else c.activation,
        relative_attention_num_buckets=c.relative_attention_num_buckets,
        relative_attention_max_distance=c.relative_attention_max_distance,
        layer_norm_epsilon=c.layer_norm_epsilon,
        tie_word_embeddings=c.scale_decoder_outputs,  # which is what the flag means there
        pad_token_id=c.pad_token_id,
        eos_token_id=list(c.eos_token_ids),
        decoder_start_token_id=c.decoder_start_token_id,
    )
    with torch.device("meta"):
        theirs = T5ForConditionalGeneration(config)
    weights = dict(tree_flatten(model.parameters()))
    state = {}
    for name in theirs.state_dict():
        tied = "embed_tokens" in name or (name == "lm_head.weight" and c.tied_head)
        ours = "embedding.weight" if tied else our_name(name)
        # A view of our memory: the weights are there once.
        state[name] = torch.from_numpy(np.asarray(weights[ours].astype(mx.float32)))
    theirs.load_state_dict(state, assign=True)
    return theirs.eval()


def _serve(connection, make_models: Callable[[], tuple[T5, T5 | None]]) -> None:
    target, draft = (model and in_transformers(model) for model in make_models())
    connection.send("ready")
    while request := connection.recv():
        source, max_tokens, assisted, lookup = request
        how = {"assistant_model": draft} if assisted else {}
        if lookup:
            how["prompt_lookup_num_tokens"] = lookup
        with torch.inference_mode():
            tokens = target.generate(
                torch.tensor([source]), max_new_tokens=max_tokens, do_sample=False, **how
            )
        connection.send(tokens[0, 1:].tolist())


class Transformers:
    """A process that decodes greedily with transformers."""

    def __init__(self, make_models: Callable[[], tuple[T5, T5 | None]]):
        """make_models: what gives target and draft model there; a function of a module."""
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, make_models), daemon=True)
        self._process.start()
        self._connection.recv()

    def generate(
        self,
        source: list[int],
        max_tokens: int = 256,
        assisted: bool = False,
        lookup: int | None = None,
    ) -> list[int]:
        """The tokens for a source: plainly, `assisted` by the draft model, or by prompt lookup of so
        many tokens."""
        self._connection.send((source, max_tokens, assisted, lookup))
        return self._connection.recv()

    def __enter__(self) -> "Transformers":
        return self

    def __exit__(self, *_) -> None:
        self._connection.send(None)
        self._process.join()
