"""transformers on the weights of our models, for benchmark.py to compare with. Needs PyTorch."""

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
        if name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
            ours = "embedding.weight"
        elif name == "lm_head.weight" and c.tied_head:
            ours = "embedding.weight"
        else:
            ours = our_name(name)
        # A view of our memory: the weights are there once.
        state[name] = torch.from_numpy(np.asarray(weights[ours].astype(mx.float32)))
    theirs.load_state_dict(state, assign=True)
    return theirs.eval()


def generate(
    model: T5ForConditionalGeneration,
    source: list[int],
    max_tokens: int,
    draft: T5ForConditionalGeneration | None = None,
    lookup: int | None = None,
) -> list[int]:
    """The tokens that transformers decodes greedily: plain, assisted by a draft model, or by prompt
    lookup of so many tokens."""
    how = {"assistant_model": draft} if draft is not None else {}
    if lookup:
        how["prompt_lookup_num_tokens"] = lookup
    with torch.inference_mode():
        tokens = model.generate(
            torch.tensor([source]), max_new_tokens=max_tokens, do_sample=False, **how
        )
    return tokens[0, 1:].tolist()
