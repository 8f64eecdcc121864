"""Speculative decoding writes what plain decoding writes, token for token."""

import itertools

import mlx.core as mx
import numpy as np
import pytest
from helpers import checkpoints
from helpers.decoding import (
    decode_drafted,
    decode_with,
    finish,
    partial_steps,
    ragged_prompts,
    start,
)
from helpers.models import random_model
from helpers.oracle import disturbed, endless, greedy, with_eos
from helpers.scripted import EOS, ScriptedModel, agreeing, plain, scripted_next

from errors import InputError
from speculative.drafting import ModelDrafter
from speculative.options import Options
from speculative.row import DRAFTED

NUM_DRAFTS = range(8)
BATCH_SIZES = (1, 3, 8)


# ---------------------------------------------------------------------------------------------
# Real models of random weights


def equality_cases(variant: str, num_drafts, batch_sizes, noises) -> tuple[int, int]:
    """Compare all combinations with the oracle: cases compared, steps with partial acceptance."""
    model = random_model(variant)
    prompts = ragged_prompts(8, model.config.vocab_size)
    # An end of sequence that the outputs do contain, so that rows end at different steps.
    free = [token for source in prompts for token in greedy(model, source, 12)[5:]]
    with_eos(model, max(set(free), key=free.count))
    expected = [greedy(model, source, 20) for source in prompts]
    assert len({len(tokens) for tokens in expected}) > 1
    cases = partial = 0
    for noise, num_draft, batch_size in itertools.product(noises, num_drafts, batch_sizes):
        draft_model = disturbed(model, noise)
        rows = decode_drafted(
            model, draft_model, prompts, batch_size, num_draft=num_draft, max_tokens=20
        )
        assert [row.tokens[1:] for row in rows] == expected, (noise, num_draft, batch_size)
        cases += len(rows)
        partial += partial_steps(rows, num_draft)
    return cases, partial


def test_tokens_are_the_oracles():
    """From an identical draft to a useless one, over all num_draft and batch sizes."""
    cases, partial = equality_cases("t5", NUM_DRAFTS, BATCH_SIZES, (0, 0.02, 0.1, 2))
    assert cases == 8 * 8 * 3 * 4
    assert partial > 100


@pytest.mark.parametrize("variant", [v for v in checkpoints.VARIANTS if v != "t5"])
def test_tokens_are_the_oracles_in_every_variant(variant):
    _, partial = equality_cases(variant, (1, 4, 7), (1, 8), (0.05,))
    assert partial > 0


def test_draft_of_another_shape_and_smaller_vocabulary():
    model, draft_model = random_model("t5"), random_model("byt5")
    prompts = ragged_prompts(4, 61)
    rows = decode_with(model, ModelDrafter(draft_model, 40), prompts, num_draft=3, max_tokens=15)
    assert [row.tokens[1:] for row in rows] == [greedy(model, s, 15) for s in prompts]


def test_identical_draft_needs_the_fewest_target_calls():
    """The last drafted token must reach the draft's cache, or it strays and acceptance drops."""
    model = random_model()
    endless(model)
    for num_draft in (1, 3, 7):
        rows = decode_drafted(
            model, model, ragged_prompts(8, 61), 8, num_draft=num_draft, max_tokens=40
        )
        for row in rows:
            assert row.stats.target_calls == -(-40 // (num_draft + 1))


# ---------------------------------------------------------------------------------------------
# Scripted models


@pytest.mark.parametrize("share", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("num_draft", NUM_DRAFTS)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_scripted_rows_are_plain_rows(share, num_draft, batch_size):
    """Any bookkeeping error of either cache is an assertion inside ScriptedModel."""
    target, draft = agreeing(share, ends=0.04)
    prompts = ragged_prompts(batch_size, 50)
    drafter = ModelDrafter(draft)
    rows = decode_with(target, drafter, prompts, num_draft=num_draft, max_tokens=40)
    assert [row.tokens[1:] for row in rows] == [plain(target, s, 40) for s in prompts]
    for row in rows:
        assert row.finish_reason == ("stop" if row.tokens[-1] == EOS else "length")
        assert len(row.origins) == len(row.tokens) - 1
        assert sum(o in DRAFTED for o in row.origins) == row.stats.accepted <= row.stats.drafted
        assert sum(row.stats.accepted_lengths.values()) == row.stats.target_calls
    if share in (0.5, 0.8) and num_draft > 1 and batch_size > 1:
        assert partial_steps(rows, num_draft) > 0


@pytest.mark.parametrize("length", range(1, 12))
@pytest.mark.parametrize("num_draft", [0, 1, 4, 7])
def test_end_of_sequence_anywhere_in_a_draft_ends_the_row(length, num_draft):
    def next_token(source, prefix):
        return EOS if len(prefix) == length else 3 + len(prefix)

    drafter = ModelDrafter(ScriptedModel(next_token))
    (row,) = decode_with(ScriptedModel(next_token), drafter, [[5]], num_draft=num_draft)
    assert row.tokens[1:] == [3 + i for i in range(1, length)] + [EOS]
    assert row.finish_reason == "stop"


@pytest.mark.parametrize("max_tokens", range(1, 12))
@pytest.mark.parametrize("num_draft", [0, 1, 4, 7])
def test_max_tokens_anywhere_in_a_step_is_exact(max_tokens, num_draft):
    def next_token(source, prefix):
        return 3 + len(prefix)

    target, drafter = ScriptedModel(next_token), ModelDrafter(ScriptedModel(next_token))
    (row,) = decode_with(target, drafter, [[5]], num_draft=num_draft, max_tokens=max_tokens)
    assert row.tokens[1:] == [3 + i for i in range(1, max_tokens + 1)]
    assert row.finish_reason == "length"
    assert target.calls == -(-max_tokens // (num_draft + 1))
    assert row.stats.drafted == max_tokens - target.calls  # nothing that had no room


def test_rows_of_different_limits_share_a_batch():
    """A finished row must not hold up, change or lengthen the others."""

    def next_token(source, prefix):
        return EOS if len(prefix) == source[0] else scripted_next(source, prefix, 50)

    prompts = [[3], [17], [5], [40]]
    target, drafter = ScriptedModel(next_token), ModelDrafter(ScriptedModel(next_token))
    rows = decode_with(target, drafter, prompts, num_draft=3, max_tokens=60)
    assert [len(row.tokens) - 1 for row in rows] == [3, 17, 5, 40]
    assert target.calls == 10


def test_one_synchronisation_per_step(monkeypatch):
    """The host reads one array per step, however many tokens are drafted."""
    model, read = random_model(), []
    endless(model)
    array = np.array

    def spy(x, *args, **kwargs):
        if isinstance(x, mx.array):
            read.append(x.shape)
        return array(x, *args, **kwargs)

    for num_draft in (1, 3, 7):
        batch = start(model, ModelDrafter(model), [[5, 6]], num_draft=num_draft, max_tokens=48)
        monkeypatch.setattr(np, "array", spy)
        (row,) = finish(batch)
        monkeypatch.undo()
        assert read == [(1, num_draft + 2)] * row.stats.target_calls
        assert row.stats.target_calls == 48 // (num_draft + 1)
        read.clear()


@pytest.mark.parametrize("option", ["num_draft", "max_tokens"])
@pytest.mark.parametrize("value", [-1, 1.5, "3", None])
def test_options_out_of_range_are_named(option, value):
    with pytest.raises(InputError, match=f"{option} is {value!r}"):
        Options(**{option: value})
