"""Options of decoding: what is out of range is named, and what follows from them."""

import mlx.core as mx
import numpy as np
import pytest
from helpers.option_tables import PAGE, with_tables

from errors import InputError
from speculative.options import DECLARED, MOST, Options
from speculative.processors import Prefixes, RepetitionPenalty
from speculative.row import Row
from speculative.sampling import Greedy, Sampler, sampler


@pytest.mark.parametrize("option", ["num_draft", "max_tokens"])
@pytest.mark.parametrize("value", [-1, 1.5, "3", True])
def test_options_out_of_range_are_named(option, value):
    with pytest.raises(InputError, match=f"{option} is {value!r}"):
        Options(**{option: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temp": -0.1}, "temp is -0.1, not a number of 0 or more"),
        ({"temp": float("nan")}, "temp is nan"),
        ({"temp": float("inf")}, "temp is inf"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_k": 2.0}, "top_k is 2.0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"delta": -0.1}, "delta is -0.1, not a number from 0 to 1"),
        ({"delta": 1.01}, "delta is 1.01"),
        ({"delta": True}, "delta is True"),
        ({"acceptance": "speculative"}, "acceptance is 'speculative', not one of token, block"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0, not a number above 0"),
        ({"repetition_context_size": 0}, "repetition_context_size is 0"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1"),
        ({"min_tokens": 1.5}, "min_tokens is 1.5"),
        ({"logit_bias": [3]}, r"logit_bias is \[3\], not tokens' ids with a number each"),
        ({"logit_bias": {"3": 1.0}}, "logit_bias is"),
        ({"logit_bias": {3: "much"}}, "logit_bias is"),
        ({"bad_words_ids": [[]]}, r"bad_words_ids is \[\[\]\], not a list of lists of ids"),
        ({"bad_words_ids": [3]}, "bad_words_ids is"),
        ({"suppress_tokens": [-3]}, "suppress_tokens is"),
        ({"forced_eos_token_id": -2}, "forced_eos_token_id is -2, not a token's id, or -1"),
        ({"processors": [1]}, r"processors is \[1\], not a list of functions"),
        ({"stop": ["a", ""]}, "stop is"),
        ({"stop": 3}, "stop is 3, not a text or a list of texts"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"num_samples": 2}, "num_samples above 1 needs temp above 0"),
        ({"logit_bias": {3: float("inf")}}, "logit_bias is"),
        ({"target_lang": "de\ud800"}, r"target_lang is 'de\\ud800', not a language's code"),
        ({"stop": "\ud800"}, "stop is"),
        ({"temp": 10**400}, "temp is 1000"),
        ({"num_beams": 0}, "num_beams is 0, not a whole number of 1 or more"),
        ({"num_beams": 2.0}, "num_beams is 2.0"),
        ({"length_penalty": "1"}, "length_penalty is '1', not a number"),
        ({"length_penalty": float("nan")}, "length_penalty is nan, not a number"),
        ({"early_stopping": 1}, "early_stopping is 1, not True, False or never"),
        ({"early_stopping": "always"}, "early_stopping is 'always'"),
        ({"num_beams": 2, "temp": 0.5}, "num_beams above 1 needs temp 0"),
        ({"num_beams": 2, "num_samples": 3}, "num_samples is 3; 2 beams find as many texts"),
        ({"num_beams": 2, "stop": "x"}, "stop has no meaning with num_beams above 1"),
        ({"num_beams": 2, "logprobs": 0}, "logprobs has no meaning with num_beams above 1"),
        (
            {"temp": 1.0, "delta": 0.1, "acceptance": "block"},
            "no meaning for the acceptance rule b",
        ),
        (
            {"temp": 1.0, "delta": 0.1, "acceptance": "coupled"},
            "no meaning for the acceptance rule c",
        ),
    ],
)
def test_sampling_options_out_of_range_are_named(options, message):
    with pytest.raises(InputError, match=message):
        Options(**options)


@pytest.mark.parametrize("name", [n for n, d in DECLARED.items() if d.values.most])
def test_whole_numbers_end_below_what_mlx_can_count(name):
    most = DECLARED[name].values.most
    assert most < 2**31 - 2**20
    for value in (most + 1, 2**31 - 1, 2**31, 2**63, 10**30):
        with pytest.raises(InputError, match=rf"{name} is \d+; {most} at most"):
            Options(**{"temp": 1.0, name: value})


def test_a_penalty_looks_as_far_back_as_an_option_may_say():
    """Beyond, the step overflowed, and every text of a batch ended."""
    prefixes = Prefixes(mx.array([[3, 4, 5]]), np.array([3]), np.array([5]))
    logits = mx.ones((1, 1, 8))
    found = RepetitionPenalty(2.0, MOST)(logits, prefixes)
    assert found.tolist() == RepetitionPenalty(2.0)(logits, prefixes).tolist()


def test_the_manual_has_every_option_as_it_is_declared():
    """PYTHONPATH=.:tests python -m helpers.option_tables writes them."""
    page = PAGE.read_text()
    assert with_tables(page) == page
    groups = {declared.group for declared in DECLARED.values()}
    assert all(f"<!-- options: {group} -->" in page for group in groups)


def test_the_default_rule_gives_way_to_delta():
    assert Options(temp=1.0).rule == "coupled"
    assert Options(temp=1.0, delta=0.1).rule == "token"
    for options, kind in [
        (Options(temp=1.0, delta=0.1), Sampler),
        (Options(temp=0.0, acceptance="coupled"), Greedy),
    ]:
        assert isinstance(sampler([Row([3], options)], options, 10), kind)
