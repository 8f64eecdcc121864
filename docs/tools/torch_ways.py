"""transformers and CTranslate2 on the embedded pair's weights, for docs/tools/baselines.py to compare with. Needs PyTorch.

Each library runs in its own process: in one process their threads would slow each other down.
"""

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import mlx.core as mx
import numpy as np
import torch
from mlx.utils import tree_flatten
from transformers import T5Config, T5ForConditionalGeneration

from apps.benchmarks.widening import widened_pair
from demo.pair import DEMO
from docs.tools.other_way import OtherWay, TokenPrompts, until_end
from model import T5
from speculative.common import blas
from speculative.models.contract import padded
from speculative.models.t5 import NAMES

_SILENT = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def in_transformers(model: T5, vocab_size: int | None = None) -> T5ForConditionalGeneration:
    """The same model in transformers, in float32; only the first `vocab_size` rows of its vocabulary."""
    c = model.config
    rows = vocab_size or c.vocab_size
    different = dict(
        vocab_size=rows,
        feed_forward_proj=f"gated-{c.activation}" if c.gated else c.activation,
        tie_word_embeddings=c.scale_decoder_outputs,  # what the flag means in transformers
        eos_token_id=list(c.eos_token_ids),
    )
    config = T5Config(**vars(c) | different)  # most names are the same; it ignores others
    with torch.device("meta"):
        theirs = T5ForConditionalGeneration(config)
    weights = dict(tree_flatten(model.parameters()))
    state = {}
    for name in theirs.state_dict():
        tied = "embed_tokens" in name or (name == "lm_head.weight" and c.tied_head)
        ours = "embedding.weight" if tied else NAMES.ours(name)
        # A view of our memory: no second copy of the weights.
        weight = np.asarray(weights[ours].astype(mx.float32))
        vocabulary = ours in ("embedding.weight", "head.weight")
        state[name] = torch.from_numpy(weight[:rows] if vocabulary else weight)
    theirs.load_state_dict(state, assign=True)
    return theirs.eval()


@cache  # once per process
def with_transformers(sizes: Sequence[str], max_tokens: int) -> Callable[..., list[list[int]]]:
    """A function that decodes a batch of prompts greedily; `lookup`: tokens of prompt lookup."""
    pair = widened_pair(sizes)
    rows = min(model.config.vocab_size for model in pair)  # it requires equal vocabularies
    target, draft = (in_transformers(model, rows) for model in pair)
    ends = target.config.eos_token_id

    def generate(prompts: TokenPrompts, assisted: bool = False, lookup: int | None = None):
        tokens, mask = map(torch.from_numpy, padded(prompts, target.config.pad_token_id))
        with torch.inference_mode():
            texts = target.generate(
                tokens.long(),
                attention_mask=mask,
                max_new_tokens=max_tokens,
                do_sample=False,
                assistant_model=draft if assisted else None,
                prompt_lookup_num_tokens=lookup,
            )
        return [until_end(row[1:], ends) for row in texts.tolist()]

    return generate


@cache
def with_ctranslate2(
    sizes: Sequence[str], max_tokens: int, compute_type: str
) -> Callable[..., list[list[int]]]:
    """A function that decodes a batch of prompts greedily. compute_type: "float32" or "int8"."""
    import ctranslate2
    from transformers import AutoTokenizer

    target, _ = widened_pair(sizes)
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "target")
    with tempfile.TemporaryDirectory() as folder:
        theirs = Path(folder) / "transformers"
        converted = f"{folder}/ctranslate2"
        in_transformers(target).save_pretrained(theirs)
        tokenizer.save_pretrained(theirs)
        ctranslate2.converters.TransformersConverter(str(theirs)).convert(converted)
        threads = torch.get_num_threads()
        translator = ctranslate2.Translator(
            converted, compute_type=compute_type, inter_threads=1, intra_threads=threads
        )

    def generate(prompts: TokenPrompts):
        results = translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(prompt) for prompt in prompts],
            beam_size=1,
            max_decoding_length=max_tokens,
            return_end_token=True,
        )
        return [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]

    return generate


def process() -> Executor:
    """A process in which libraries use their own BLAS, and print nothing."""
    silent_end = signal.signal, (signal.SIGINT, signal.SIG_DFL)
    executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), *silent_end)
    with mock.patch.dict(os.environ, {blas.SWITCH: "0"} | _SILENT):
        os.environ.pop("GOMP_SPINCOUNT", None)  # set for BLIS; PyTorch would read it
        executor.submit(int).result()  # wait until it has started
    return executor


def _decode(model: tuple, prompts: TokenPrompts, settings: dict) -> list[list[int]]:
    make, *arguments = model
    return make(*arguments)(prompts, **settings)


def way(executor: Executor, model: tuple, batch_size: int = 1, **settings) -> OtherWay:
    """A way to decode in the executor's process, `batch_size` prompts at a time; model: a function above and its arguments."""

    def decode(prompts: TokenPrompts) -> list[list[int]]:
        texts = []
        for i in range(0, len(prompts), batch_size):
            batch = prompts[i : i + batch_size]
            texts += executor.submit(_decode, model, batch, settings).result()
        return texts

    return decode


def ways(
    sizes: Sequence[str], max_tokens: int, batch_sizes: Sequence[int], processes: ExitStack
) -> dict[str, OtherWay]:
    """The ways of the installed libraries, whose processes go on until `processes` is closed. Says so if their BLAS is faster."""
    if blas.loaded in ("BLIS", "OpenBLAS") and blas.on_intel():
        print(f"{blas.loaded} here; theirs is MKL: pip install mkl (1 GB) compares alike.\n")
    in_torch = (processes.enter_context(process()), (with_transformers, tuple(sizes), max_tokens))
    libraries = {"transformers": in_torch}
    for dtype in ("float32", "int8") if find_spec("ctranslate2") else ():
        model = (with_ctranslate2, tuple(sizes), max_tokens, dtype)
        libraries[f"CTranslate2 {dtype}"] = (processes.enter_context(process()), model)
    ways = {}
    for size in batch_sizes:
        for name, library in libraries.items():
            suffix = f", batch {size}" if size > 1 else ""
            ways[f"{name}, plain{suffix}"] = way(*library, size)
    # transformers speculates for one prompt at a time only
    ways["transformers, assisted"] = way(*in_torch, assisted=True)
    ways["transformers, prompt lookup"] = way(*in_torch, lookup=10)
    return ways
