"""transformers and CTranslate2 on the embedded pair's weights, for benchmark.py to compare with.

Needs PyTorch. Each runs in a process of its own: two libraries' threads in one process slow each
other down.
"""

import contextlib
import importlib.util
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_flatten
from transformers import T5Config, T5ForConditionalGeneration

from convert import our_name
from main import DEMO
from measure import widened_pair
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


def with_transformers(sizes: Sequence[str], max_tokens: int) -> Callable[..., list[int]]:
    """A function that decodes greedily: plainly, `assisted` by the draft model, or by prompt lookup
    of so many tokens."""
    target, draft = map(in_transformers, widened_pair(sizes))

    def generate(source: list[int], assisted: bool = False, lookup: int | None = None) -> list[int]:
        how = {"assistant_model": draft} if assisted else {}
        if lookup:
            how["prompt_lookup_num_tokens"] = lookup
        with torch.inference_mode():
            tokens = target.generate(
                torch.tensor([source]), max_new_tokens=max_tokens, do_sample=False, **how
            )
        return tokens[0, 1:].tolist()

    return generate


def with_ctranslate2(sizes: Sequence[str], max_tokens: int) -> Callable[..., list[int]]:
    """A function that decodes greedily."""
    import ctranslate2
    from transformers import AutoTokenizer

    target, _ = widened_pair(sizes)
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "target")
    with tempfile.TemporaryDirectory() as folder:
        theirs = Path(folder) / "transformers"
        in_transformers(target).save_pretrained(theirs)
        tokenizer.save_pretrained(theirs)
        converted = Path(folder) / "ctranslate2"
        ctranslate2.converters.TransformersConverter(str(theirs)).convert(str(converted))
        threads = torch.get_num_threads()
        translator = ctranslate2.Translator(
            str(converted), compute_type="float32", inter_threads=1, intra_threads=threads
        )

    def generate(source: list[int]) -> list[int]:
        result = translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(source)],
            beam_size=1,
            max_decoding_length=max_tokens,
            return_end_token=True,
        )
        return tokenizer.convert_tokens_to_ids(result[0].hypotheses[0])

    return generate


class Peer:
    """A process that decodes, and takes turns with ours."""

    def __init__(self, make: Callable[..., Callable], sizes: Sequence[str], max_tokens: int):
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve, args=(theirs, make, sizes, max_tokens), daemon=True
        )
        self._process.start()
        theirs.close()
        self._connection.recv()

    def way(self, **how) -> Callable[[Sequence[list[int]]], list[list[int]]]:
        """A way to decode sources, one by one."""

        def decode(source: list[int]) -> list[int]:
            self._connection.send((source, how))
            return self._connection.recv()

        return lambda sources: [decode(source) for source in sources]

    def close(self) -> None:
        self._connection.send(None)
        self._process.join()


def _serve(
    connection, make: Callable[..., Callable], sizes: Sequence[str], max_tokens: int
) -> None:
    generate = make(sizes, max_tokens)
    connection.send("ready")
    while request := connection.recv():
        source, how = request
        connection.send(generate(source, **how))


@contextlib.contextmanager
def peers(sizes: Sequence[str], max_tokens: int) -> Iterator[dict]:
    """The ways of the peers that are installed, on the embedded pair in these sizes."""
    found = [Peer(with_transformers, sizes, max_tokens)]
    ways = {
        "transformers, plain": found[0].way(),
        "transformers, assisted": found[0].way(assisted=True),
        "transformers, prompt lookup": found[0].way(lookup=10),
    }
    if importlib.util.find_spec("ctranslate2"):
        found.append(Peer(with_ctranslate2, sizes, max_tokens))
        ways["CTranslate2, plain"] = found[1].way()
    try:
        yield ways
    finally:
        for peer in found:
            peer.close()
