"""transformers and CTranslate2 on the embedded pair's weights, for benchmark.py to compare with.

Needs PyTorch. Each runs in a process of its own: two libraries' threads in one process slow each
other down.
"""

import contextlib
import importlib.util
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_flatten
from transformers import T5Config, T5ForConditionalGeneration

import blas
from benchmarks.measure import widened_pair
from demo.pair import DEMO
from families.t5 import NAMES
from model import T5
from speculative.cached_model import padded


def in_transformers(model: T5, vocab_size: int | None = None) -> T5ForConditionalGeneration:
    """The same model, in float32; with the first `vocab_size` rows of its vocabulary only."""
    c = model.config
    rows = vocab_size or c.vocab_size
    shape = {key: getattr(c, key) for key in ("d_model", "d_kv", "d_ff", "num_heads")}
    config = T5Config(
        vocab_size=rows,
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
        ours = "embedding.weight" if tied else NAMES.ours(name)
        # A view of our memory: the weights are there once.
        weight = np.asarray(weights[ours].astype(mx.float32))
        vocabulary = ours in ("embedding.weight", "head.weight")
        state[name] = torch.from_numpy(weight[:rows] if vocabulary else weight)
    theirs.load_state_dict(state, assign=True)
    return theirs.eval()


Prompts = Sequence[list[int]]


def with_transformers(sizes: Sequence[str], max_tokens: int) -> Callable[..., list[list[int]]]:
    """A function that decodes prompts side by side, greedily: plainly, `assisted` by the draft model,
    or by prompt lookup of so many tokens."""
    pair = widened_pair(sizes)
    rows = min(model.config.vocab_size for model in pair)  # it wants as many in both
    target, draft = (in_transformers(model, rows) for model in pair)
    ends = target.config.eos_token_id

    def generate(prompts: Prompts, assisted: bool = False, lookup: int | None = None):
        how = {"assistant_model": draft} if assisted else {}
        if lookup:
            how["prompt_lookup_num_tokens"] = lookup
        tokens, mask = padded(prompts, target.config.pad_token_id)
        with torch.inference_mode():
            found = target.generate(
                torch.from_numpy(tokens).long(),
                attention_mask=torch.from_numpy(mask),
                max_new_tokens=max_tokens,
                do_sample=False,
                **how,
            )
        return [_until_end(row[1:], ends) for row in found.tolist()]

    return generate


def _until_end(tokens: list[int], ends: Sequence[int]) -> list[int]:
    last = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: last + 1]


def with_ctranslate2(sizes: Sequence[str], max_tokens: int) -> Callable[..., list[list[int]]]:
    """A function that decodes prompts side by side, greedily."""
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

    def generate(prompts: Prompts):
        results = translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(prompt) for prompt in prompts],
            beam_size=1,
            max_decoding_length=max_tokens,
            return_end_token=True,
        )
        return [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]

    return generate


class Baseline:
    """A process that decodes, and takes turns with ours."""

    def __init__(self, make: Callable[..., Callable], sizes: Sequence[str], max_tokens: int):
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        ours = os.environ.get(blas.SWITCH)
        os.environ[blas.SWITCH] = "0"  # each library with the BLAS of its own
        self._process = spawn.Process(
            target=_serve, args=(theirs, make, sizes, max_tokens), daemon=True
        )
        self._process.start()
        del os.environ[blas.SWITCH]
        if ours is not None:
            os.environ[blas.SWITCH] = ours
        theirs.close()
        self._connection.recv()

    def way(self, batch_size: int = 1, **how) -> Callable[[Prompts], list[list[int]]]:
        """A way to decode prompts, so many side by side."""

        def decode(prompts: Prompts) -> list[list[int]]:
            found = []
            for i in range(0, len(prompts), batch_size):
                self._connection.send((prompts[i : i + batch_size], how))
                found += self._connection.recv()
            return found

        return decode

    def close(self) -> None:
        self._connection.send(None)
        self._process.join()


def _serve(
    connection, make: Callable[..., Callable], sizes: Sequence[str], max_tokens: int
) -> None:
    generate = make(sizes, max_tokens)
    connection.send("ready")
    while request := connection.recv():
        prompts, how = request
        connection.send(generate(prompts, **how))


@contextlib.contextmanager
def baselines(
    sizes: Sequence[str], max_tokens: int, batch_sizes: Sequence[int] = (1,)
) -> Iterator[dict]:
    """The ways of the libraries that are installed, on the embedded pair in these sizes. transformers
    speculates one prompt at a time only."""
    in_torch = Baseline(with_transformers, sizes, max_tokens)
    plainly = {"transformers": in_torch}
    if importlib.util.find_spec("ctranslate2"):
        plainly["CTranslate2"] = Baseline(with_ctranslate2, sizes, max_tokens)
    ways = {
        f"{name}, plain" + (f", batch {size}" if size > 1 else ""): library.way(size)
        for size in batch_sizes
        for name, library in plainly.items()
    }
    ways["transformers, assisted"] = in_torch.way(assisted=True)
    ways["transformers, prompt lookup"] = in_torch.way(lookup=10)
    try:
        yield ways
    finally:
        for library in plainly.values():
            library.close()
