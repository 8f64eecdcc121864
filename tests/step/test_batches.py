"""Many prompts: lengths from short to long, order, arrival and memory. That rows which come and go get what
they would have got alone is shown in test_decoder.py."""

import itertools
import json
import os
import random
import resource
import sys

import mlx.core as mx
import pytest
from helpers.decoding import Waiting, finish, new_driver, new_rows, start
from helpers.models import random_model
from helpers.programs import DEMO, PROMPT, call
from helpers.scripted import EOS, ScriptedModel
from tokenizers import Tokenizer, models

from decoder import Options, SpeculativeDecoder, generate
from demo.training.tasks import held_out_example
from speculative.models import sizes
from speculative.models.conversion import skeleton
from speculative.text.text_side import TextSide

CLIP = DEMO / "speech" / "numbers.wav"


def test_results_come_as_they_are_ready_and_prompts_are_read_as_needed(demo_pair):
    target, tokenizer, _ = demo_pair
    fetched = []

    def endless():
        for i in itertools.count():
            fetched.append(i)
            yield f"translate number to German: {i}"

    stream = SpeculativeDecoder(target, tokenizer).stream_batch(endless(), batch_size=2)
    indices = [next(stream)[0] for _ in range(10)]
    assert len(set(indices)) == 10
    assert len(fetched) <= 64


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
    by_index, sizes = {}, []
    decoder = SpeculativeDecoder(target, tokenizer, draft)
    for i, response in decoder.stream_batch(prompts, batch_size=3, num_draft=2):
        by_index[i] = response.text
        sizes.append(prompts.given)
        prompts.there = min(7, prompts.there + (2 if i < 2 else 3))
    assert sizes[0] == 1 and [by_index[i] for i in range(7)] == alone


@pytest.mark.slow
def test_a_thousand_prompts_leave_no_trace_in_memory(demo_pair):
    _, tokenizer, _ = demo_pair
    model = random_model(vocab_size=1024)
    model.text = TextSide(tokenizer)
    decoder = SpeculativeDecoder(model, tokenizer, model)
    rng = random.Random(6)
    prompts = (held_out_example(rng).prompt for _ in range(1000))
    peaks = [
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in decoder.stream_batch(prompts, 16, max_tokens=10, num_draft=3)
    ]
    unit = 1 if sys.platform == "darwin" else 1024
    assert len(peaks) == 1000
    assert (peaks[-1] - peaks[300]) * unit < 20 * 2**20


def test_memory_that_mlx_keeps_is_given_back_every_256_steps(monkeypatch):
    cleared = []
    driver = start(ScriptedModel(lambda source, prefix: 5), None, [[3]], max_tokens=600)
    monkeypatch.setattr(
        mx, "clear_cache", lambda: cleared.append(len(driver.batch.rows[0].generated))
    )
    finish(driver)
    assert cleared == [1, 257, 513]


@pytest.mark.parametrize(("most", "warns"), [(1 << 10, True), (1 << 40, False), (None, False)])
def test_models_that_hardly_fit_are_told(demo_folders, monkeypatch, most, warns):
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": most})
    for script, arguments in (("main.py", ("-p", PROMPT)), ("transcribe.py", (CLIP,))):
        result = call(*arguments, cwd=demo_folders, script=script)
        assert result.returncode == 0
        assert ("0.00 GB of memory are left for it: decoding may be slow" in result.stderr) == warns
    monkeypatch.setattr(os, "sysconf", lambda name: 1 << 10)
    result = call("-p", PROMPT, cwd=demo_folders)
    assert (
        result.returncode == bool(warns or most is None)
        and ("main.py: " in result.stderr) == result.returncode
    )


@pytest.mark.parametrize(("batch_size", "held"), [(8, True), (1, False), (40, False)])
def test_places_of_finished_rows_are_filled_several_at_once(batch_size, held):
    """Texts of 1 to 24 tokens. Reading a prompt costs about a step, so a place may be empty for one, and not
    for long; a row for which there is room beside the others begins at once."""
    target = ScriptedModel(lambda source, prefix: EOS if len(prefix) >= source[0] else 5)
    waiting = Waiting(new_rows(target, [[3 + i % 22] for i in range(40)], Options()))
    driver = new_driver(target, None, Options())
    admitted, idle = [], [0]
    admit = driver.admit
    driver.admit = lambda rows: (admitted.append(len(rows)), idle.append(0), admit(rows))

    def watch(rows):
        idle[-1] += sum(bool(row.finish_reason) for row in rows)

    assert len(list(driver.decode(waiting, batch_size, watch))) == 40
    assert sum(admitted) == 40
    assert (2 < 40 / len(admitted) < 8) == held, admitted
    assert all(steps < 2 * batch_size for steps in idle[:-1])


@pytest.mark.slow
def test_memory_computed_from_a_config_is_what_decoding_takes(tmp_path, monkeypatch):
    """Eight rows of 32 tokens read and 32 written, within a tenth."""
    monkeypatch.setattr(sizes, "TOKENS", 32)
    shape = dict(d_model=512, d_kv=64, d_ff=1024, num_heads=8, num_layers=4, vocab_size=16000)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", **shape}))
    model, _ = skeleton(tmp_path)
    needed = sizes.needed(model, "float32")[16]
    before = mx.get_active_memory()
    mx.eval(model.parameters())  # random numbers take more than the weights
    mx.reset_peak_memory()
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, "a"))
    decoder = SpeculativeDecoder(model, tokenizer)
    options = dict(num_draft=0, max_tokens=32, min_tokens=32)
    assert len(decoder.batch_generate([[n] * 32 for n in range(5, 13)], 8, **options)) == 8
    assert mx.get_peak_memory() - before == pytest.approx(needed, rel=0.1)
