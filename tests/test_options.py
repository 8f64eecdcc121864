"""Options of decoding: what is out of range is named, and what follows from them."""

import pytest

from errors import InputError
from speculative.options import Options
from speculative.sampling import Greedy, Sampler


@pytest.mark.parametrize("option", ["num_draft", "max_tokens"])
@pytest.mark.parametrize("value", [-1, 1.5, "3", None])
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


def test_the_default_rule_gives_way_to_delta():
    assert Options(temp=1.0).rule == "coupled"
    assert Options(temp=1.0, delta=0.1).rule == "token"
    assert isinstance(Options(temp=1.0, delta=0.1).sampler([b""], 10), Sampler)
    assert isinstance(Options(temp=0.0, acceptance="coupled").sampler([b""], 10), Greedy)
