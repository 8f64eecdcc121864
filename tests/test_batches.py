"""Many prompts: rows that come and go get what they would have got alone."""

import itertools
import json
import random
import resource
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from helpers.decoding import decode_drafted, finish, new_rows, partial_steps, start
from helpers.models import random_model
from helpers.oracle import disturbed
from helpers.scripted import agreeing, plain
from tokenizers import Tokenizer

from decoder import batch_generate, generate, stream_batch
from demo.tasks import held_out_example
from errors import InputError
from model import T5
from speculative.cache import CrossCache, SlotCache
from speculative.drafting import ModelDrafter
from speculative.options import Options

SHARED = Path(__file__).parent.parent.parent / "shared"


@pytest.fixture
def events(monkeypatch):
    """How often the caches grew by small steps, compacted, widened, narrowed, were halved."""
    counts = dict.fromkeys(("_grown", "_compact", "_widen", "_narrow", "select"), 0)
    monkeypatch.setattr(SlotCache, "STEP", 8)
    monkeypatch.setattr(SlotCache, "FEW", 4)

    def spy(name):
        method = getattr(CrossCache, name)

        def counting(self, *args):
            before = self.mask.shape[1]
            result = method(self, *args)
            counts[name] += name not in ("_widen", "_narrow") or self.mask.shape[1] != before
            return result

        monkeypatch.setattr(CrossCache, name, counting)

    for name in counts:
        spy(name)
    return counts


@pytest.mark.parametrize("batch_size", [1, 2, 5, 16])
@pytest.mark.parametrize(("share", "num_draft"), [(0.5, 3), (0.9, 7), (0.0, 2), (1.0, 4), (0.5, 0)])
def test_scripted_rows_come_and_go(events, batch_size, share, num_draft):
    """Sources of 1 to 60 tokens and texts of 1 to 90 tokens, in any order."""
    target, draft = agreeing(share, ends=0.03)
    rng = random.Random(batch_size)
    lengths = [rng.choice((1, 5, 20, 60)) for _ in range(40)]
    sources = [[rng.randrange(3, 50) for _ in range(length)] for length in lengths]
    rows = decode_drafted(target, draft, sources, batch_size, num_draft=num_draft, max_tokens=90)
    assert [row.tokens[1:] for row in rows] == [plain(target, s, 90) for s in sources]
    assert len({len(row.tokens) for row in rows}) > 10
    if batch_size > 1:
        assert events["_grown"] and events["select"]
        if batch_size < 16:  # which always has one of the longest sources
            assert events["_widen"] and events["_narrow"]
        if share == 0.5 and num_draft:
            assert events["_compact"] and partial_steps(rows, num_draft)


def test_a_real_models_rows_come_and_go(events):
    """As above with attention that computes: moved slots must keep their keys, values and bias."""
    model = random_model("v1.1")
    rng = random.Random(0)
    sources = [[rng.randrange(3, 61) for _ in range(rng.randint(1, 50))] for _ in range(20)]
    options = dict(num_draft=4, max_tokens=40)
    alone = [decode_drafted(model, None, [s], 1, max_tokens=40)[0].tokens for s in sources]
    for noise, batch_size in itertools.product((0.05, 2), (3, 8)):
        rows = decode_drafted(model, disturbed(model, noise), sources, batch_size, **options)
        assert [row.tokens for row in rows] == alone
    assert all(events.values())


def random_t5(vocab_size: int) -> T5:
    """A small model of random weights for the real vocabulary."""
    from helpers import checkpoints

    from checkpoints.config import Config

    size = {"vocab_size": vocab_size, "d_model": 32, "num_layers": 1, "num_decoder_layers": 2}
    raw = checkpoints.VARIANTS["t5"] | size
    mx.random.seed(0)
    model = T5(Config.from_hub(raw, []))
    mx.eval(model.parameters())
    return model


@pytest.mark.skipif(not SHARED.exists(), reason="the real T5 tokenizer and prompts are not at hand")
def test_real_prompts_in_batches_are_the_prompts_alone():
    """120 prompts of 9 to over 1,000 tokens, drafts good and useless."""
    tokenizer = Tokenizer.from_file(str(SHARED / "t5_tokenizer" / "tokenizer.json"))
    lines = (SHARED / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines[::2]]
    model = random_t5(32128)
    alone = [generate(model, tokenizer, prompt, max_tokens=6) for prompt in prompts]
    assert len(set(alone)) > 20
    for noise, batch_size, part in ((0.05, 16, slice(None)), (2, 5, slice(0, 30))):
        draft = disturbed(model, noise)
        draft.tokenizer = tokenizer
        responses = batch_generate(
            model, tokenizer, prompts[part], draft, batch_size, max_tokens=6, num_draft=3
        )
        assert [response.text for response in responses] == alone[part]


def test_demo_prompts_in_batches_are_the_prompts_alone(demo_pair):
    target, tokenizer, draft = demo_pair
    rng = random.Random(3)
    prompts = [held_out_example(rng).prompt for _ in range(120)]
    alone = [generate(target, tokenizer, prompt) for prompt in prompts]
    for batch_size, part in ((8, slice(None)), (5, slice(0, 30))):
        responses = batch_generate(target, tokenizer, prompts[part], draft, batch_size, num_draft=3)
        assert [response.text for response in responses] == alone[part]


def test_sampled_texts_do_not_depend_on_the_batch(demo_pair):
    target, tokenizer, draft = demo_pair
    rng = random.Random(4)
    prompts = [held_out_example(rng).prompt for _ in range(30)]
    options = dict(temp=1.0, seed=5, acceptance="coupled", max_tokens=40)
    alone = [generate(target, tokenizer, prompt, **options) for prompt in prompts]
    for batch_size, num_draft in ((4, 3), (16, 6)):
        responses = batch_generate(
            target, tokenizer, prompts, draft, batch_size, num_draft=num_draft, **options
        )
        assert [response.text for response in responses] == alone


def test_results_come_as_they_are_ready_and_prompts_are_read_as_needed(demo_pair):
    target, tokenizer, _ = demo_pair
    read = []

    def endless():
        for i in itertools.count():
            read.append(i)
            yield f"translate number to German: {i}"

    stream = stream_batch(target, tokenizer, endless(), batch_size=2)
    indices = [next(stream)[0] for _ in range(10)]
    assert len(set(indices)) == 10
    assert len(read) <= 64


class Arriving:
    """Prompts of which only some are there; asked for another one, it is an error."""

    def __init__(self, texts):
        self.texts, self.there, self.given = texts, 1, 0

    def ready(self) -> bool:
        return self.given < self.there

    def __iter__(self):
        for text in self.texts:
            assert self.ready(), "waited for a prompt that is not there"
            self.given += 1
            yield text


def test_nothing_waits_for_prompts_that_are_not_there(demo_pair):
    """The first is answered alone; those that come in the meantime join."""
    target, tokenizer, draft = demo_pair
    rng = random.Random(7)
    prompts = Arriving([held_out_example(rng).prompt for _ in range(7)])
    alone = [generate(target, tokenizer, prompt) for prompt in prompts.texts]
    found, sizes = {}, []
    for i, response in stream_batch(target, tokenizer, prompts, draft, batch_size=3, num_draft=2):
        found[i] = response.text
        sizes.append(prompts.given)
        prompts.there = min(7, prompts.there + (2 if i < 2 else 3))
    assert sizes[0] == 1 and [found[i] for i in range(7)] == alone


def test_a_bad_prompt_in_a_list_is_an_error(demo_pair):
    target, tokenizer, _ = demo_pair
    with pytest.raises(InputError, match="the prompt is empty"):
        batch_generate(target, tokenizer, ["x", " "])
    with pytest.raises(InputError, match="the prompt is int, not text"):
        batch_generate(target, tokenizer, [3])


def test_a_thousand_prompts_leave_no_trace_in_memory(demo_pair):
    _, tokenizer, _ = demo_pair
    model = random_t5(1024)
    model.tokenizer = tokenizer
    rng = random.Random(6)
    prompts = (held_out_example(rng).prompt for _ in range(1000))
    peaks = [
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in stream_batch(model, tokenizer, prompts, model, 16, max_tokens=10, num_draft=3)
    ]
    unit = 1 if sys.platform == "darwin" else 1024
    assert len(peaks) == 1000
    assert (peaks[-1] - peaks[300]) * unit < 20 * 2**20


def test_replacing_rows_keeps_the_others_logits():
    model, rng = random_model(), np.random.default_rng(0)
    prompts = [rng.integers(3, 61, n).tolist() for n in (30, 12, 7)]
    batch = start(model, ModelDrafter(model), prompts, num_draft=2, max_tokens=30)
    batch.advance()
    batch.rows[1].finish_reason = "stop"  # say
    batch.admit(
        new_rows([rng.integers(3, 61, n).tolist() for n in (45, 9)], Options(max_tokens=30))
    )
    assert len(batch.rows) == 4  # one in its place, one beside the others
    batch.advance()
    for row in finish(batch):
        (alone,) = decode_drafted(model, None, [row.prompt], 1, max_tokens=30)
        assert row.tokens == alone.tokens
