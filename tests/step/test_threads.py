"""A model may be converted in one thread, loaded in another and used in a third. Since MLX 0.31.2 what is lazy can only
be computed by the thread that made it."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from helpers import causal_folders, checkpoints, opt_checkpoints, whisper_models
from helpers.pairs import RAW
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, models

from speculative.checkpoints.weights import Quantization
from speculative.models.conversion import convert
from speculative.models.loading import load
from speculative.models.registry import family_of
from speculative.models.whisper import Whisper

SHAPES = {
    name: RAW[name] for name in ("t5", "umt5", "bart", "m2m", "marian", "t5gemma", "t5gemma2")
}
SHAPES |= {
    "opt": opt_checkpoints.SMALL,
    "whisper": whisper_models.SHAPE | {"model_type": "whisper"},
}


def elsewhere(step, *arguments):
    """step(*arguments) in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(step, *arguments).result()


def write(raw: dict, folder, dtype: mx.Dtype) -> None:
    """A folder as conversion writes it, with random weights and a single token."""
    family = family_of(raw)
    config = family.config.from_hub(raw, None)
    model = family.model(config)
    model.set_dtype(dtype)
    mx.savez(str(folder / "weights.npz"), **dict(tree_flatten(model.parameters())))
    (folder / "config.json").write_text(json.dumps(raw | asdict(config)))
    Tokenizer(models.WordLevel({"a": 0}, "a")).save(str(folder / "tokenizer.json"))


def ready(folder) -> list:
    """The model, and one of a narrowed vocabulary."""
    model, _ = load(folder)
    return [model, model.narrowed(mx.array([3, 4]))]


def sizes(models: list) -> list[int]:
    """How many logits each has, all of them numbers."""
    found = []
    for model in models:
        prompt = [5, 6, 7]
        if isinstance(model, Whisper):
            prompt = model.blank_prompt(3)
        logits = model.decode(mx.array([[4]]), np.array([[2]], np.int32), model.start([prompt]))
        assert not mx.isnan(logits).any()
        found.append(logits.shape[-1])
    return found


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_every_family_and_type(tmp_path, name, dtype):
    write(SHAPES[name], tmp_path, dtype)
    models = elsewhere(ready, tmp_path)
    assert elsewhere(sizes, models) == [models[0].config.vocab_size, 2]


def test_a_decoder_only_model(tmp_path):
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: requirements-apps.txt")
    causal_folders.write(tmp_path)
    assert elsewhere(sizes, elsewhere(ready, tmp_path)) == [320, 2]


@pytest.mark.parametrize("quantization", [None, Quantization(group_size=32)])
def test_a_conversion(tmp_path, quantization):
    source = checkpoints.make_folder(tmp_path / "source", "t5", d_model=32)
    output = elsewhere(partial(convert, str(source), tmp_path / "out", quantization=quantization))
    assert elsewhere(sizes, elsewhere(ready, output)) == [1024, 2]
