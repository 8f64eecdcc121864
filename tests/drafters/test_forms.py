"""Forced tokens are drafted beside a draft model's and copies, and leave no trace if they fail."""

import random

import mlx.core as mx
import numpy as np
import pytest
from helpers.decoding import drafters, finish, new_driver, new_rows, ragged_prompts, total
from helpers.laws import LIMIT, TableModel, V, deviation, frequencies, joint_law
from helpers.scripted import START, agreeing, plain

from speculative.drafters.forms import Matcher
from speculative.step.options import Options
from speculative.step.sampling import probabilities


class Guess(Matcher):
    """A matcher that forces what the target would write, with errors: as if it could write the same in other tokens."""

    def __init__(self, target, prompt, share: float):
        self._target, self._prompt, self._share = target, tuple(prompt), share

    def forced(self, text, most):
        rng = random.Random(len(text))
        count = rng.choice((0, 0, 1, 3, 12))
        text = [START, *text]
        forced = []
        while len(forced) < min(count, most):
            token = self._target.next_token(self._prompt, tuple(text + forced))
            forced.append(token if rng.random() < self._share else 3 + (token + 1) % 47)
        return forced

    def passing(self, text, tokens):
        return len(tokens)

    def allowed(self, text):
        return np.ones(50, bool)

    def is_complete(self, text):
        return True


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("kind", ["lookup", "both"])
@pytest.mark.parametrize("num_draft", [3, 16, "auto"])
def test_forced_tokens_that_fail_leave_no_trace(kind, num_draft):
    """A scripted model insists that its cache holds exactly the row's tokens."""
    target, draft = agreeing(0.8, ends=0.02, copies=0.5)
    prompts = ragged_prompts(7, 50)
    options = Options(num_draft=num_draft, max_tokens=50)
    rows = new_rows(target, prompts, options)
    for i, row in enumerate(rows[:5]):
        row.grammar = Guess(target, row.prompt, share=(0.6, 0.9, 1.0)[i % 3])
    driver = new_driver(target, drafters(draft)[kind], options)
    driver.admit(rows[:4])
    driver.advance()
    driver.admit(rows[4:])
    finish(driver)
    for row in rows:
        assert row.tokens[1:] == plain(target, row.prompt, 50)
    origins = [origin for row in rows for origin in row.origins]
    if num_draft != "auto":
        assert origins.count("forced") > 9
        assert total(rows).accepted < total(rows).draft_tokens
        assert kind == "lookup" or "draft_model" in origins


class Wrong(Guess):
    """Forces tokens that the target may not want, after which the draft model goes on."""

    def forced(self, text, most):
        return [1, 2][: min(most, 2 - len(text) % 2)]

    def allowed(self, text):
        return np.ones(V, bool)


@pytest.mark.slow
def test_forced_tokens_that_fail_leave_the_targets_law():
    target = TableModel(0)
    options = Options(num_draft=4, acceptance="block", max_tokens=4, temp=1.0)
    driver = new_driver(target, drafters(TableModel(1))["both"], options)
    rows = new_rows(target, [[b % 3, b % 2] for b in range(3000)], options)
    for row in rows:
        row.grammar = Wrong(target, row.prompt, 0)
    driver.admit(rows)
    shares = frequencies(np.array([row.tokens[1:] for row in finish(driver)]))
    p = np.array(probabilities(mx.array(target.logits), 1.0))
    assert deviation(shares, joint_law(p, 4)) < LIMIT
