"""Many prompts: lengths from short to long, order, arrival and memory. That rows which come and go get what
they would have got alone is shown in test_decoder.py."""

import itertools
import random
import resource
import sys

import pytest
from helpers.decoding import new_batch, new_rows
from helpers.models import random_model
from helpers.scripted import EOS, ScriptedModel

from decoder import Options, generate, stream_batch
from demo.training.tasks import held_out_example
from speculative.batch import Waiting, decode


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


@pytest.mark.slow
def test_a_thousand_prompts_leave_no_trace_in_memory(demo_pair):
    _, tokenizer, _ = demo_pair
    model = random_model(vocab_size=1024)
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


@pytest.mark.parametrize(("batch_size", "held"), [(8, True), (1, False), (40, False)])
def test_places_of_finished_rows_are_filled_several_at_once(batch_size, held):
    """Texts of 1 to 24 tokens. Reading a prompt costs about a step, so a place may be empty for one, and not
    for long; a row for which there is room beside the others begins at once."""
    target = ScriptedModel(lambda source, prefix: EOS if len(prefix) >= source[0] else 5)
    waiting = Waiting(new_rows([[3 + i % 22] for i in range(40)], Options()))
    batch = new_batch(target, None, Options())
    admitted, idle = [], [0]
    admit = batch.admit
    batch.admit = lambda rows: (admitted.append(len(rows)), idle.append(0), admit(rows))

    def watch(rows):
        idle[-1] += sum(bool(row.finish_reason) for row in rows)

    assert len(list(decode(batch, waiting, batch_size, watch))) == 40
    assert sum(admitted) == 40
    assert (2 < 40 / len(admitted) < 8) == held, admitted
    assert all(steps < 2 * batch_size for steps in idle[:-1])
