"""Options of decoding: what is out of range is named, and what follows from them."""

import pytest

from speculative.common.errors import InputError
from speculative.step.options import DECLARED, DRAFT, MAX_NUMBER, OptionError, Options
from speculative.step.row import Row
from speculative.step.sampling import Greedy, Sampler, sampler_for

NAN = float("nan")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 1.5}, "max_tokens is 1.5, not a whole number from 1 to 1000000000"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"seed": 1.5}, "seed is 1.5, not a whole number"),
        ({"acceptance": "speculative"}, "acceptance is 'speculative', not one of token, block"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0, not a number from 1e-09 to"),
        ({"logit_bias": [3]}, r"logit_bias is \[3\], not tokens' ids with a number each"),
        ({"logit_bias": {3: 10**400}}, r"logit_bias is .*, from -1000000000 to 1000000000 or -inf"),
        ({"logit_bias": {3: NAN}}, "logit_bias is"),
        ({"bad_words_ids": [[]]}, r"bad_words_ids is \[\[\]\], not a list of lists of ids"),
        ({"forced_eos_token_id": -2}, "forced_eos_token_id is -2, not a token's id, or -1"),
        ({"processors": [1]}, r"processors is \[1\], not a list of functions"),
        ({"stop": 3}, "stop is 3, not a non-empty text or a list of them"),
        ({"target_lang": "de\ud800"}, r"target_lang is 'de\\ud800', not a language's code"),
        ({"early_stopping": 1}, "early_stopping is 1, not True, False or never"),
        ({"num_samples": 2}, "num_samples above 1 needs temp above 0"),
        ({"num_beams": 65}, "num_beams is 65, not a whole number from 1 to 64"),
        ({"num_beams": 2, "temp": 0.5}, "num_beams above 1 needs temp 0"),
        ({"num_beams": 2, "num_samples": 3}, "num_samples is 3, but 2 beams give"),
        ({"num_beams": 2, "stop": "x"}, "stop cannot be used with num_beams above 1"),
        ({"num_beams": 2, "logprobs": 0}, "logprobs cannot be used with num_beams above 1"),
        ({"temp": 1.0, "delta": 0.1, "acceptance": "block"}, "only with the acceptance rule token"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(InputError, match=message):
        Options(**options)


def test_an_error_has_its_option_and_value_apart():
    """For those who have their own names and limits for it."""
    with pytest.raises(OptionError) as refused:
        Options(num_draft=-1)
    error = refused.value
    assert (error.name, error.value, error.values) == ("num_draft", -1, DRAFT)
    assert str(error) == "num_draft is -1, not a whole number from 0 to 1000000000, or auto"


@pytest.mark.parametrize("name", [n for n, d in DECLARED.items() if d.values.kind in (int, float)])
def test_numbers_end_where_mlx_cannot_count_or_logits_would_be_infinite(name):
    larger = (2**31 - 2**20, 2**31, 10**400, 1e10, 1e300, -1e300, NAN, float("inf"))
    for value in larger[3 * (name == "seed") :]:
        with pytest.raises(InputError, match=f"^{name} is "):
            Options(**{"temp": 1.0} | {name: value})


def test_a_bias_may_ban_and_the_default_rule_gives_way_to_delta():
    assert (
        Options(logit_bias={5: -float("inf"), 6: -MAX_NUMBER, 7: MAX_NUMBER}).logit_bias[6]
        == -MAX_NUMBER
    )
    assert Options(temp=1.0).rule == "coupled"
    eased, greedy = Options(temp=1.0, delta=0.1), Options(temp=0.0, acceptance="coupled")
    assert eased.rule == "token"
    assert isinstance(sampler_for([Row([3], eased)], eased, 10), Sampler)
    assert isinstance(sampler_for([Row([3], greedy)], greedy, 10), Greedy)


@pytest.mark.parametrize(
    ("name", "near"), [("num_draft_tokens", "num_draft"), ("temperature", "temp")]
)
def test_an_unknown_option_is_told_the_nearest(name, near):
    with pytest.raises(TypeError, match=f"^no option '{name}'; did you mean {near}"):
        Options.named({name: 1})
