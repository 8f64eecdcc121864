"""Which models can be split among how many ranks, and what ranks exchange: nothing if there is one."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest
from helpers.checkpoints import SMALL

from model import T5
from speculative.checkpoints.weights import Quantization
from speculative.common.errors import InputError
from speculative.models.ranks import ALONE, LOST, Ranks, check_ranks
from speculative.models.t5 import Config


def model(num_heads: int, d_ff: int, d_kv: int = 64) -> T5:
    raw = SMALL | dict(model_type="t5", num_heads=num_heads, d_ff=d_ff, d_kv=d_kv)
    return T5(Config.from_hub(raw, []))


@pytest.mark.parametrize(
    ("shape", "quantization", "possible"),
    [
        ((12, 3072), None, [1, 2, 3, 4, 6, 12]),
        ((6, 1536), None, [1, 2, 3, 6]),
        ((8, 1023), None, [1]),
        ((8, 1024), Quantization("affine", 4, 128), [1, 2, 4]),
        # What is not quantized needs no whole groups: here the feed-forward units.
        ((8, 1000), Quantization("affine", 4, 64), [1, 2, 4, 8]),
    ],
)
def test_which_numbers_of_ranks_can_split_a_model(shape, quantization, possible):
    whole = model(*shape)
    for ranks in range(1, 17):
        refused = pytest.raises(InputError, match=f"cannot be split among {ranks} ranks$")
        with nullcontext() if ranks in possible else refused:
            check_ranks(whole, quantization, ranks)


def test_alone_nothing_is_exchanged():
    x = mx.array([[3, 1]])
    assert ALONE.share(x) is x
    assert ALONE.broadcast(0.1) == 0.1 and ALONE.broadcast(x).tolist() == [[3, 1]]
    assert list(ALONE.lines(lambda: [b"one\n"])) == [b"one\n"]
    with pytest.raises(OSError):
        ALONE.together(lambda: Path("no/such/file").read_text())


GROUP = SimpleNamespace(rank=lambda: 0, size=lambda: 2)


@pytest.mark.parametrize(
    "of_other",
    [
        lambda x: 0 * x,  # it has ended, and the sum comes without it
        lambda x: x + (1 << 32),  # it is at another exchange
    ],
)
def test_a_rank_that_is_lost_or_out_of_step_is_an_error_and_no_wrong_text(monkeypatch, of_other):
    monkeypatch.setattr(mx.distributed, "all_sum", lambda x, group: x + of_other(x))
    with pytest.raises(InputError, match=LOST):
        Ranks(GROUP).broadcast(mx.array([3, -1]))
    with pytest.raises(InputError, match=LOST):
        Ranks(GROUP).gather("text")


def test_what_rank_0_has_counts(monkeypatch):
    """The other adds its tag to nothing."""
    monkeypatch.setattr(mx.distributed, "all_sum", lambda x, group: x + (x >> 32 << 32))
    ranks = Ranks(GROUP)
    for x in ([3, -1, 2**31 - 1], [0.1, -2.5], 0.5):
        assert ranks.broadcast(mx.array(x)).tolist() == mx.array(x).tolist()
    assert ranks.broadcast(-0.5) == -0.5
