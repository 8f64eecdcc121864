"""Plain decoding may begin a step before the host has the last one's tokens (on GPUs; here by force)."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.decoding import RashSchedule, decode_with, drafters, ragged_prompts
from helpers.models import random_model
from helpers.scripted import ScriptedModel, agreeing, plain

from decoder import Batch
from speculative.step.cached_model import CachedModel


@pytest.fixture
def calls(monkeypatch):
    """Steps run ahead. What was asked of models, each with its model: "ahead", or how many drafted tokens
    to check."""
    noted_calls = []

    def noting(method, describe):
        def noted(self, *args):
            noted_calls.append((self.model, describe(args)))
            return method(self, *args)

        return noted

    monkeypatch.setattr(Batch, "runs_ahead", lambda self: True)
    ahead, call = CachedModel.run_ahead, CachedModel.__call__
    monkeypatch.setattr(CachedModel, "run_ahead", noting(ahead, lambda args: "ahead"))
    monkeypatch.setattr(CachedModel, "__call__", noting(call, lambda args: args[1].shape[1]))
    return noted_calls


@pytest.mark.parametrize(("kind", "batch_size"), [("model", 1), ("lookup", 8), ("both", 3)])
def test_rows_that_come_and_go_are_plain_rows(calls, kind, batch_size):
    target, draft = agreeing(ends=0.05, copies=0.5)
    prompts = ragged_prompts(14, 50, 30)
    expected = [plain(target, prompt, 40) for prompt in prompts]
    schedule, options = RashSchedule(), dict(num_draft="auto", max_tokens=40)
    rows = decode_with(target, drafters(draft)[kind], prompts, batch_size, schedule, **options)
    assert [row.generated for row in rows] == expected
    calls = [what for model, what in calls if model is target]
    after = {after for one, after in pairwise(calls) if one == "ahead"}
    assert {0, 3, 7} <= after


def test_a_text_that_may_end_costs_a_call_more_and_one_that_must_none(calls):
    def next_token(source, prefix):
        return 1 if len(prefix) == source[0] else 3 + len(prefix)

    for length, max_tokens, called in ((5, 9, 6), (5, 5, 5), (9, 5, 5), (9, 1, 1)):
        target = ScriptedModel(next_token)
        (row,) = decode_with(target, None, [[length]], num_draft=0, max_tokens=max_tokens)
        assert len(row.generated) == min(length, max_tokens)
        assert target.calls == called
        assert row.stats.target_calls == len(row.generated)


@pytest.mark.parametrize(
    "options", [dict(temp=0.0, logprobs=2), dict(temp=1.0), dict(temp=0.0, repetition_penalty=1.5)]
)
def test_texts_of_a_real_model_are_the_same(monkeypatch, options):
    model = random_model("t5")
    prompts = ragged_prompts(7, model.config.vocab_size)

    def texts():
        rows = decode_with(model, None, prompts, 3, num_draft=0, max_tokens=20, **options)
        return [(row.tokens, np.round(row.logprobs or [], 3).tolist()) for row in rows]

    before = texts()
    monkeypatch.setattr(Batch, "runs_ahead", lambda self: True)
    assert texts() == before
