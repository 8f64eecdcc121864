"""The law of what is sampled is the target's, whatever drafts: by chi-square tests on small vocabularies."""

from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from helpers.decoding import Stopping, drafters, total
from helpers.laws import (
    BATCH,
    LIMIT,
    TableModel,
    V,
    before_a_two,
    counts_of_one_step,
    decoded,
    deviation,
    deviation_of,
    joint_law,
    tables,
    up_to_a_two,
)

from speculative.drafters.draft_model import ModelDrafter
from speculative.step.options import Options
from speculative.step.sampling import accept_block, accept_token, probabilities

DRAWS = 300_000
FILTERS = {"top_k": 3, "top_p": 0.9, "min_p": 0.1}
SLOW = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("k", "filters", "certain", "meant"),
    [
        (2, {}, False, None),
        (3, {}, False, up_to_a_two),  # a draft may stop by what has been drafted
        SLOW(1, {}, False, None),
        SLOW(3, FILTERS, False, None),
        SLOW(3, {}, True, None),  # copied tokens, which have all the mass
    ],
)
def test_rules_keep_the_targets_law(k, filters, certain, meant):
    """Block verification never accepts fewer tokens."""
    p, q = tables(k, **filters)
    q = np.eye(V, dtype=np.float32)[q.argmax(axis=1)] if certain else q
    law = joint_law(p, k + 1)
    accepted = {}
    for accept in (accept_token, accept_block):
        counts, accepted[accept] = counts_of_one_step(accept, p, q, k, DRAWS, meant=meant)
        assert deviation(counts, law) < LIMIT
    assert accepted[accept_block] > accepted[accept_token] - 0.004  # which is the means' noise


def without_residual(p_at, q_at, tokens, lengths, u):
    n, _ = accept_token(p_at, q_at, tokens, lengths, u)
    return n, mx.take_along_axis(p_at, n[:, None, None], axis=1)[:, 0]


@pytest.mark.parametrize(
    ("rule", "meant"), [(without_residual, None), (accept_block, before_a_two)]
)
def test_the_test_sees_wrong_rules(rule, meant):
    p, q = tables(2)
    counts, _ = counts_of_one_step(rule, p, q, 2, DRAWS // 3, meant)
    assert deviation(counts, joint_law(p, 3)) > 10 * LIMIT


@pytest.mark.slow
def test_delta_adds_to_the_acceptance_probability():
    p, q = tables(3)
    rules = [partial(accept_token, delta=delta) for delta in (0.0, 0.2, 1.0)]
    means = [counts_of_one_step(rule, p, q, 1, DRAWS)[1] for rule in rules]
    ratio = np.minimum(1, p[0] / q[0])
    eased = np.minimum(1, p[0] / q[0] + 0.2)
    assert np.abs(np.array(means) - [ratio @ q[0], eased @ q[0], 1]).max() < 2e-3


# The whole step: noise, caches, batches. What is not here is the same: without drafts the rules are one, and the text of
# `coupled` is that of plain decoding whatever drafts (test_sampling.py).
def law(**filters) -> np.ndarray:
    p = np.array(probabilities(mx.array(TableModel(0).logits), 0.7, **filters))
    return joint_law(p, 4)


@pytest.mark.parametrize(
    ("rule", "kind", "num_draft", "filters", "count"),
    [
        SLOW("token", "both", 3, {}, 8000),
        SLOW("block", "model", 3, {}, 24_000),
        SLOW("coupled", "model", 3, {}, 8000),
        SLOW("token", "lookup", 4, FILTERS, 8000),
        SLOW("block", "both", 4, FILTERS, 8000),
        SLOW("block", "model", "auto", {}, 8000),
    ],
)
def test_decoded_rows_have_the_targets_law(rule, kind, num_draft, filters, count):
    """Several steps per row, redrafted positions included. 24,000 rows see noise that is used again for a position drafted
    again: their deviation is 6.3 with the draft's, 5.1 with the rule's, 12 with both."""
    options = dict(num_draft=num_draft, acceptance=rule, seed=len(kind), max_tokens=4, temp=0.7)
    rows = decoded(Options(**options, **filters), drafters(TableModel(1))[kind], count=count)
    assert deviation_of(rows, law(**filters)) < LIMIT
    lengths = total(rows[:1000]).accepted_lengths
    assert lengths[0] > 0 and lengths[1] > 0


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["token", "block"])
def test_rows_whose_drafts_stop_have_the_targets_law(rule):
    """Each row's after a 2, which is an end to the draft model alone, and all when few are expected to pass."""
    draft = TableModel(1)
    draft.config.eos_token_ids = (2,)
    options = Options(max_tokens=4, temp=0.7, acceptance=rule, seed=5)
    rows = decoded(options, ModelDrafter(draft), Stopping(4, 0.15 * BATCH))
    assert deviation_of(rows, law()) < LIMIT
    drafted = {row.stats.draft_tokens / row.stats.target_calls for row in rows}
    assert len(drafted) > 4  # rows stop on their own
