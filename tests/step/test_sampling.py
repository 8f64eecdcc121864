"""Sampling: text for text where a rule promises that, in batches and alone; the distribution and its filters;
the edges of the rules. That the law of what is sampled is the target's is in test_laws.py."""

import io
import itertools
from dataclasses import replace
from functools import partial

import mlx.core as mx
import numpy as np
import pytest
import torch
import transformers
from helpers.bart_models import lively_model
from helpers.decoding import (
    Waiting,
    decode_with,
    drafters,
    new_driver,
    partial_steps,
    ragged_prompts,
    total,
)
from helpers.laws import TableModel
from helpers.models import random_model
from helpers.oracle import disturbed, with_eos

from speculative.drafters.draft_model import ModelDrafter
from speculative.step.options import RULES, Options
from speculative.step.row import Row
from speculative.step.sampling import (
    Draft,
    Greedy,
    _padded_q,
    accept_block,
    accept_token,
    best_tokens,
    probabilities,
)


def sampled(model, drafter, prompts, batch_size, **options) -> list[list[int]]:
    rows = decode_with(model, drafter, prompts, batch_size, **options)
    return [row.tokens for row in rows]


MODELS = {
    "v1.1": partial(random_model, "v1.1"),
    "marian": partial(lively_model, "marian"),  # bans a token
}
SLOW = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(("kind", "name"), [("both", "v1.1"), SLOW("lookup", "marian")])
def test_coupled_text_is_plain_text(kind, name):
    """Over prompts, seeds, numbers of drafted tokens and batches, each with a good and a useless draft model."""
    model, prompts = MODELS[name](), ragged_prompts(8, 61)
    with_eos(model, 7)
    drafts = disturbed(model, 0.05), disturbed(model, 2)
    texts, partial = set(), 0
    for seed in range(2):
        options = dict(temp=0.6, top_p=0.95, seed=seed, max_tokens=12, acceptance="coupled")
        plain = [sampled(model, None, [prompt], 1, **options)[0] for prompt in prompts]
        texts |= {tuple(tokens) for tokens in plain}
        for i, (num_draft, batch_size) in enumerate(((1, 3), (3, 8), (5, 1), (7, 3), ("auto", 8))):
            options["num_draft"], draft = num_draft, drafts[(i + seed) % 2]
            rows = decode_with(model, drafters(draft)[kind], prompts, batch_size, **options)
            assert [row.tokens for row in rows] == plain
            partial += 0 if num_draft == "auto" else partial_steps(rows, num_draft)
    assert len(texts) > 12  # the seeds and the prompts do make a difference
    assert partial > 25 or kind == "lookup"  # random texts repeat little of their prompts


def test_a_model_that_drafts_for_itself_is_accepted():
    """Under `coupled` all of it, whatever the number of rows: drawn for another size, the noise would be
    another, and drafts would be accepted by chance."""
    target, draft = TableModel(0, 1_030), TableModel(0, 1_072)
    draft.logits[:1_030, :1_030] = target.logits
    for model in (target, draft):
        model.logits[:, 1_024:] = -60  # no pieces: they never win
    options = dict(temp=1.0, top_p=0.95, num_draft=4, max_tokens=16, acceptance="coupled", seed=3)
    stats = total(decode_with(target, ModelDrafter(draft, 1_024), [[5, 6], [7]], **options))
    assert stats.draft_tokens > 20 and stats.acceptance == 1.0


def test_one_candidate_is_greedy():
    model = random_model()
    drafter, sources = ModelDrafter(disturbed(model, 0.05)), ragged_prompts(5, 61)
    greedy = sampled(model, None, sources, 5, max_tokens=15)
    for rule, filters in itertools.product(RULES, ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0})):
        options = dict(temp=1.3, acceptance=rule, max_tokens=15, num_draft=4, **filters)
        assert sampled(model, drafter, sources, 5, **options) == greedy


@pytest.mark.parametrize(
    ("rule", "name"), [*((rule, "v1.1") for rule in RULES), SLOW("token", "marian")]
)
def test_rows_do_not_depend_on_their_batch(rule, name):
    """A greedy row beside sampled ones, other filters, processors and seeds: each as it is alone."""
    model, prompts = MODELS[name](), ragged_prompts(8, 61)
    drafter = ModelDrafter(disturbed(model, 0.3))
    wishes = [
        Options(max_tokens=12),
        Options(max_tokens=12, temp=0.8, top_k=9),
        Options(max_tokens=15, temp=1.2, top_p=0.9, repetition_penalty=1.5),
        Options(max_tokens=9, temp=0.5, min_p=0.05),
        Options(max_tokens=12, no_repeat_ngram_size=1),
        *[Options(max_tokens=10, temp=0.5)] * 3,
    ]

    def decoded(batch_size: int) -> list[list[int]]:
        driver = new_driver(model, drafter, Options(temp=1.0, acceptance=rule, num_draft=7))
        rows = []
        for i, prompt in enumerate(prompts[:8]):
            options, prefix = replace(wishes[i], num_draft=7), model.prefix(prompt)
            rows.append(Row.begin(prompt, options, prefix, model.config, seed=bytes([i])))
        assert len(list(driver.decode(Waiting(rows), batch_size))) == 8
        assert total(rows).accepted > 0
        return [row.tokens for row in rows]

    alone = decoded(1)
    assert decoded(3) == decoded(8) == alone
    assert alone[:1] == sampled(model, None, prompts[:1], 1, max_tokens=12)
    if name == "marian":
        assert not any(model.config.pad_token_id in tokens[1:] for tokens in alone)


# ---------------------------------------------------------------------------------------------
# The distribution


def test_filters_are_those_of_transformers():
    logits = np.random.default_rng(0).normal(0, 3, (50, 200)).astype(np.float32)
    for temp, top_k, top_p, min_p in [
        (0.7, 0, 1.0, 0.0),
        (1.0, 20, 1.0, 0.0),
        (1.5, 0, 0.8, 0.0),
        (1.0, 0, 1.0, 0.05),
        (0.9, 30, 0.9, 0.02),
    ]:
        scores = transformers.TemperatureLogitsWarper(temp)(None, torch.tensor(logits))
        scores = transformers.TopKLogitsWarper(top_k or 200)(None, scores)
        scores = transformers.TopPLogitsWarper(top_p)(None, scores)
        scores = transformers.MinPLogitsWarper(min_p)(None, scores)
        expected = scores.softmax(-1).numpy()
        p = np.array(probabilities(mx.array(logits), temp, top_k, top_p, min_p))
        assert ((p > 0) == (expected > 0)).all()
        assert np.abs(p - expected).max() < 1e-6
    tied = probabilities(mx.array([[2.0, 5.0, 5.0, 5.0]]), 1.0, top_k=2)
    assert np.allclose(np.array(tied), [[0, 0.5, 0.5, 0]])


@pytest.mark.parametrize("count", [0, 1, 7, 39, 40])
def test_the_best_tokens_are_those_of_a_whole_sort(count):
    """With ties; and where none is asked for, the vocabulary is not sorted at all."""
    logits, graph = np.random.default_rng(0).integers(0, 9, (50, 40)), io.StringIO()
    ids = best_tokens(mx.array(logits.astype(np.float32)), count)
    mx.export_to_dot(graph, ids)
    assert ("Sort" in graph.getvalue()) == (count > 0)
    assert (np.array(ids) == np.argsort(-logits, kind="stable")[:, :count]).all()


@pytest.mark.parametrize("temp", [1e-300, 1e-8, 0.5, 1e8])
def test_the_distribution_is_finite_for_any_logits(temp):
    inf = float("inf")
    mixed = [[0.0, -inf, 3.0, -inf], [inf, 0.0, -1.0, 2.0], [3e38, -3e38, 0.0, 1.0]]
    logits = mx.array([*mixed, [-inf] * 4, [1.0] * 4])
    for dtype in (mx.float32, mx.bfloat16):
        for filters in ({}, {"top_k": 10**20}, {"top_k": 3, "top_p": 0.9, "min_p": 0.1}):
            p = np.array(probabilities(logits.astype(dtype), temp, **filters))
            assert p.dtype == np.float32 and np.isfinite(p).all()
            assert np.abs(p.sum(axis=-1) - 1).max() < 1e-5
            assert p[1].argmax() == 0 and p[0, 1] == p[0, 3] == 0


# ---------------------------------------------------------------------------------------------
# Edges of the rules


FIRST, SECOND, EVEN, OTHER = [1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.25, 0.75]
EDGES = [  # p, q, tokens, lengths, u -> n, what the next token has the law of
    ([OTHER] * 3, [OTHER] * 2, [1, 0], 2, 0.9999999, 2, OTHER),  # equal distributions
    ([SECOND, FIRST], [FIRST], [0], 1, 0.0, 0, SECOND),  # an impossible token
    ([EVEN, OTHER, EVEN], [EVEN, SECOND], [0, 1], 1, 0.0, 1, OTHER),  # the second is not meant
]


@pytest.mark.parametrize(("p", "q", "tokens", "length", "u", "accepted", "law"), EDGES)
@pytest.mark.parametrize("rule", [accept_token, accept_block])
def test_edges_of_the_rules(rule, p, q, tokens, length, u, accepted, law):
    p, q, tokens, lengths = mx.array([p]), mx.array([q]), mx.array([tokens]), np.array([length])
    q = _padded_q(Draft(tokens, lengths, q), p.shape[-1])
    n, residual = rule(p, q, tokens, lengths, mx.full(tokens.shape, u))
    assert n.item() == accepted
    assert np.allclose(np.array(residual / residual.sum())[0], law)


# ---------------------------------------------------------------------------------------------
# delta


def test_delta_eases_greedy_acceptance_by_the_ratio_of_probabilities():
    logits = mx.log(mx.array([[[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]]))
    draft = Draft(mx.array([[1]]), np.array([1]))
    for delta, accepted in [(0.0, 0), (0.39, 0), (0.41, 1), (1.0, 1)]:
        n, token = Greedy(delta=delta).accept(logits, draft)
        assert (n.item(), token.item()) == (accepted, 0)
    # 0 is exact: a drafted token as probable as the best one, but not the argmax, is not the target's.
    n, token = Greedy().accept(mx.ones((1, 2, 3)), draft)
    assert (n.item(), token.item()) == (0, 0)
