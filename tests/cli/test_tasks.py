"""The demo: a split that holds, and a pair that can be widened."""

import random

import mlx.core as mx
import numpy as np
import pytest

from apps.benchmarks.widening import widen
from demo import pair
from demo.training import tasks


def test_held_out_examples_are_none_to_train_on():
    """The file has what tasks.py would write, of each kind as many."""
    assert pair.FILE.read_text(encoding="utf-8").splitlines() == tasks.held_out_lines()
    for kind in pair.KINDS:
        trained = {tasks.training_example(random.Random(i), kind).prompt for i in range(3000)}
        assert not trained.intersection(e.prompt for e in pair.examples(144, [kind]))


@pytest.mark.slow
def test_a_widened_model_is_the_same_function(demo_pair):
    target, tokenizer, draft = demo_pair
    assert tokenizer.get_vocab_size() < draft.config.vocab_size < target.config.vocab_size
    source = [tokenizer.encode("repair: The kign sees the the house.").ids]
    tokens, positions = mx.array([[0, 36, 40, 80]]), np.arange(4)[None]
    for model in (target, draft):
        wide = widen(model, "t5-small")
        assert wide.embedding.weight.shape == (wide.config.vocab_size, 512)
        assert wide.config.vocab_size == 32_128 > (known := model.config.vocab_size)
        assert len(wide.decoder.layers) == 6
        logits = [m.decode(tokens, positions, m.start(source)) for m in (model, wide)]
        assert mx.abs(logits[0] - logits[1][..., :known]).max() < 1e-4 * mx.abs(logits[0]).max()
        assert not logits[1][..., known:].any() and (logits[0].max(axis=-1) > 7).all()
