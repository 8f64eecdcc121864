"""Logits processors: at every position of a step what transformers' are at one, and texts that are those of
its `generate` with the same settings, whatever drafts."""

import itertools

import mlx.core as mx
import numpy as np
import pytest
import torch
from helpers import checkpoints
from helpers.decoding import decode_with, drafters, partial_steps, ragged_prompts, total
from helpers.laws import LIMIT, TableModel, V, decoded, deviation_of
from helpers.models import reference_texts
from helpers.oracle import disturbed, in_transformers, with_eos
from helpers.pairs import both
from transformers import GenerationConfig, T5ForConditionalGeneration

from speculative.common.errors import InputError
from speculative.step.options import MAX_NUMBER, Options
from speculative.step.processors import Controls, CountPenalty, processors_for
from speculative.step.row import Row

SIZE, EOS, LIMIT_TOKENS = 31, 1, 16

SETTINGS = {
    "penalty": dict(repetition_penalty=1.7),
    "reward": dict(repetition_penalty=0.6),
    "no 1-gram": dict(no_repeat_ngram_size=1),
    "no 2-gram": dict(no_repeat_ngram_size=2),
    "no 3-gram": dict(no_repeat_ngram_size=3),
    "least": dict(min_tokens=6),
    "bias": dict(logit_bias={5: 2.0, 9: -3.0}),
    "words": dict(bad_words_ids=[[4], [7, 8], [9, 10, 11], [EOS]]),
    "suppressed": dict(suppress_tokens=[3, 12]),
    "first": dict(forced_bos_token_id=6),
    "last": dict(forced_eos_token_id=EOS),
}
SETTINGS["all"] = {k: v for of_one in list(SETTINGS.values())[::-1] for k, v in of_one.items()}


def their_processors(options: dict, limit: int):
    """transformers' own list for them, of texts that begin with one token."""
    config = GenerationConfig(max_length=limit + 1, eos_token_id=EOS, **in_transformers(options))
    config._eos_token_tensor = torch.tensor([EOS])
    model = object.__new__(T5ForConditionalGeneration)
    torch.nn.Module.__init__(model)
    model.config = T5ForConditionalGeneration.config_class()
    return model._get_logits_processor(config, input_ids_seq_length=1, device="cpu")


class Config:
    vocab_size, eos_token_ids, max_positions = SIZE, (EOS,), None


def row_with(tokens: list[int], options: Options) -> Row:
    row = Row.begin([5], options, tokens[:1], Config)
    for token in tokens[1:]:
        row.commit([token], ["target"], ())
    return row


@pytest.mark.parametrize("name", SETTINGS)
def test_every_position_is_as_transformers_has_it(name):
    """Rows of uneven length beside rows that ask for nothing, or something else; drafted tokens behind
    them, which may be repetitions, words that are banned, or foreign to the draft model."""
    options, reference = SETTINGS[name], their_processors(SETTINGS[name], LIMIT_TOKENS)
    rng, compared, changed = np.random.default_rng(len(name)), 0, 0
    others = [Options(), Options(repetition_penalty=3.0, min_tokens=2)]
    for _ in range(40):
        wanted = [Options(**options, max_tokens=LIMIT_TOKENS), *others]
        wishes = [wanted[rng.choice(3, p=[0.6, 0.2, 0.2])] for _ in range(4)]
        few = rng.integers(2, SIZE, 5)  # so that much is repeated
        lengths = rng.integers(1, LIMIT_TOKENS + 1, 4)
        texts = [[0, *rng.choice(few, n - 1).tolist()] for n in lengths]
        rows = [row_with(text, of_row) for text, of_row in zip(texts, wishes, strict=True)]
        k, ahead = rng.integers(0, 4), rng.integers(0, 2)  # drafted before the first position
        drafted = rng.choice(few, (4, ahead + k)).astype(np.int32)
        size = SIZE - 4 * rng.integers(0, 2)  # the draft model's vocabulary may be smaller
        logits = rng.normal(0, 3, (4, k + 1, size)).astype(np.float32)
        parts = [mx.array(drafted[:, :ahead]), mx.array(drafted[:, ahead:])]
        processed = np.array(Controls(rows)(mx.array(logits), parts))
        for b, t in itertools.product(range(4), range(k + 1)):
            if wishes[b] is others[0]:
                assert (processed[b, t] == logits[b, t]).all()
            if wishes[b] is not wanted[0]:
                continue
            prefix = torch.tensor([[*texts[b], *drafted[b, : ahead + t].tolist()]])
            scores = np.full((1, SIZE), -50.0, np.float32)
            scores[0, :size] = logits[b, t]
            expected = reference(prefix, torch.tensor(scores)).numpy()[0, :size]
            np.testing.assert_allclose(processed[b, t], expected, rtol=1e-6)
            compared, changed = compared + 1, changed + (expected != logits[b, t]).any()
    assert compared > 100 and changed > (20 if name not in ("first", "last") else 3)


def test_the_context_of_a_penalty_is_that_of_mlx_lm():
    sample_utils = pytest.importorskip("mlx_lm.sample_utils")
    rng = np.random.default_rng(0)
    for size in (1, 3, 20, MAX_NUMBER):
        reference = sample_utils.make_repetition_penalty(1.5, size)
        tokens = rng.integers(2, 8, 12).tolist()
        drafted = rng.integers(2, 8, 3).tolist()
        row = row_with(tokens, Options(repetition_penalty=1.5, repetition_context_size=size))
        logits = rng.normal(0, 3, (1, 4, SIZE)).astype(np.float32)
        processed = np.array(Controls([row])(mx.array(logits), [mx.array([drafted])]))
        for t in range(4):
            prefix = mx.array([*tokens, *drafted[:t]])
            expected = np.array(reference(prefix, mx.array(logits[:, t])))
            np.testing.assert_allclose(processed[:, t], expected, rtol=1e-6)


def test_counted_penalties_are_openais():
    """Of what the text has, drafted tokens included and what it begins with not."""
    rng = np.random.default_rng(0)
    counted, plain = Options(processors=(CountPenalty(0.5, 0.25),)), Options()
    wishes = [counted, plain, counted]
    texts = [[0, *rng.integers(0, 8, n).tolist()] for n in (9, 4, 2)]
    rows = [row_with(text, of_row) for text, of_row in zip(texts, wishes, strict=True)]
    drafted = rng.integers(0, 8, (3, 3)).astype(np.int32)
    logits = rng.normal(0, 3, (3, 4, SIZE)).astype(np.float32)
    processed = np.array(Controls(rows)(mx.array(logits), [mx.array(drafted)]))
    for b, t in itertools.product(range(3), range(4)):
        counts = np.bincount([*texts[b][1:], *drafted[b, :t]], minlength=SIZE)
        expected = logits[b, t] - (wishes[b] is not plain) * (0.5 * (counts > 0) + 0.25 * counts)
        np.testing.assert_allclose(processed[b, t], expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["words", "suppressed", "bias", "first", "last"])
def test_tokens_that_the_model_has_not_are_named(name):
    (option,) = SETTINGS[name]
    value = {"words": [[3, 99]], "suppressed": [99], "bias": {99: 1.0}}.get(name, 99)
    with pytest.raises(InputError, match=f"^{option}: no token 99; the model has 31"):
        processors_for(Options(**{option: value}), Config)


# ---------------------------------------------------------------------------------------------
# Texts


WAYS = [("model", 3, 3), ("both", 5, 8), ("lookup", 4, 1)]
OF_ONE_VARIANT = ["penalty", "words", "all"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "names"),
    [("v1.1", OF_ONE_VARIANT), ("mt5", [n for n in SETTINGS if n not in OF_ONE_VARIANT])],
)
def test_texts_are_those_of_generate(variant, names):
    """All settings together in every way, each of them in one."""
    (reference, model), prompts = both(checkpoints.VARIANTS[variant]), ragged_prompts(8, 61)
    # transformers' 5.23 is too short where the decoder has more layers than the encoder.
    reference.generation_config.use_cache = False
    with_eos(model, EOS)
    draft = disturbed(model, 0.1)
    plain = reference_texts(reference, prompts, LIMIT_TOKENS, [EOS])
    partial = changed = 0
    for i, name in enumerate(names):
        wishes = in_transformers(SETTINGS[name])
        expected = reference_texts(reference, prompts, LIMIT_TOKENS, [EOS], **wishes)
        changed += expected != plain
        for kind, num_draft, batch_size in WAYS if name == "all" else [WAYS[i % 2]]:
            options = SETTINGS[name] | dict(num_draft=num_draft, max_tokens=LIMIT_TOKENS)
            rows = decode_with(model, drafters(draft)[kind], prompts, batch_size, **options)
            assert [row.generated for row in rows] == expected, (name, kind, num_draft, batch_size)
            partial += partial_steps(rows, num_draft)
    assert partial > 5 * len(names) and 2 * changed >= len(names)


# ---------------------------------------------------------------------------------------------
# Laws

LAW = dict(repetition_penalty=1.6, no_repeat_ngram_size=2, logit_bias={1: 0.7})


def law() -> np.ndarray:
    """Of four tokens, by enumeration with transformers' processors: [V ** 4]."""
    reference, p = their_processors(LAW, 4), {}
    for prefix in (p for n in range(4) for p in itertools.product(range(V), repeat=n)):
        tokens = [0, *prefix]
        scores = torch.tensor(TableModel(0).logits[tokens[-1]][None])
        p[prefix] = torch.softmax(reference(torch.tensor([tokens]), scores) / 0.7, -1)[0].numpy()
    sequences = itertools.product(range(V), repeat=4)
    return np.array([np.prod([p[s[:i]][s[i]] for i in range(4)]) for s in sequences])


@pytest.mark.slow
def test_sampled_rows_have_the_law_of_what_is_processed():
    options = Options(num_draft=3, temp=0.7, acceptance="token", seed=1, max_tokens=4, **LAW)
    rows = decoded(options, drafters(TableModel(1))["both"])
    assert total(rows[:1000]).accepted > 100
    assert deviation_of(rows, law()) < LIMIT
