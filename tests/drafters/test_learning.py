"""What `auto` is told: what a step took, what the draft model had to read first, and nothing else; and
who owns what was learned."""

import gc
import weakref
from dataclasses import replace

import mlx.core as mx
import pytest
from helpers.decoding import Fixed, decode_with, finish, start
from helpers.scripted import EOS, Clock, ScriptedModel, scripted_next

from decoder import SpeculativeDecoder
from speculative.drafters.draft_model import ModelDrafter
from speculative.drafters.prompt_lookup import PromptLookup
from speculative.models.ranks import Ranks
from speculative.step.options import Options


class Timed(ScriptedModel):
    """Every token takes so many seconds of the clock."""

    def __init__(self, clock: Clock, seconds: float):
        super().__init__(next_token)
        self._clock, self._seconds = clock, seconds

    def start(self, prompts):
        self._clock.now += self._seconds * max(map(len, prompts))
        return super().start(prompts)

    def decode(self, tokens, positions, cache):
        self._clock.now += self._seconds * tokens.shape[1]
        return super().decode(tokens, positions, cache)


class Scripted(Fixed):
    """Drafts of given lengths, one a step, and what was observed of them."""

    def __init__(self, lengths):
        super().__init__(0)
        self._lengths, self.seen = iter(lengths), []

    def plan(self, candidates, room, wanted=None):
        self.num_draft = next(self._lengths)
        return replace(super().plan(candidates, room), learns=True)

    def observe(self, step, ended=()):
        drafted = int(step.draft.lengths.max())
        self.seen.append(
            (
                drafted,
                sum(candidate.missing for candidate in step.plan.candidates if candidate),
                step.seconds,
                step.draft.prefill_seconds,
                list(ended),
            )
        )


def next_token(prompt, prefix):
    return scripted_next(prompt, prefix, 50)


@pytest.fixture
def pair(monkeypatch):
    clock = Clock(monkeypatch)
    return Timed(clock, 100), Timed(clock, 1)


@pytest.mark.usefixtures("cpu")
def test_reading_the_prompt_for_the_draft_model_is_no_part_of_a_step(pair):
    target, draft = pair
    schedule, prompt = Scripted([0, 3, 3]), list(range(3, 43))
    (row,) = decode_with(target, ModelDrafter(draft), [prompt], 1, schedule, max_tokens=9)
    assert schedule.seen == [
        (0, 0, 100, 0, []),
        # The draft model reads two tokens, drafts, and reads two of three.
        (3, 40, 400 + 2 + 2, 40, []),
        (3, 0, 400 + 2 + 2, 0, [9]),
    ]
    assert row.stats.preparing_seconds == 40
    assert row.stats.seconds == 100 + 2 * 404


@pytest.mark.usefixtures("cpu")
def test_catching_up_is_no_part_of_a_step(pair):
    """After many plain steps the draft model has many tokens to read, once."""
    target, draft = pair
    schedule = Scripted([1, *[0] * 62, 2, 2])
    decode_with(target, ModelDrafter(draft), [[5, 6]], 1, schedule, max_tokens=70)
    late, next_one = schedule.seen[63:65]
    assert late == (2, 64, 300 + 2, 63, [])  # 63 read beforehand, the last one with the draft
    assert next_one[1:4] == (0, 300 + 3, 0)


def test_only_the_rows_to_draft_for_are_read():
    """A row that copies needs nothing of the draft model."""
    prompts = [list(range(3, 30)), [40, 41, 42]]

    def copying(prompt, prefix):
        return prompt[min(len(prefix), len(prompt)) - 1] if len(prefix) < 25 else EOS

    target, draft = ScriptedModel(copying), ScriptedModel(next_token)
    drafter = ModelDrafter(draft, lookup=PromptLookup())
    decode_with(target, drafter, prompts, 2, num_draft=4, max_tokens=60)
    assert 27 not in draft.reads


@pytest.mark.parametrize("num_draft", [0, "auto"])
def test_plain_decoding_is_one_exchange_a_token(monkeypatch, num_draft):
    exchanged = []
    monkeypatch.setattr(Ranks, "broadcast", lambda self, x: exchanged.append(x) or x)
    model = ScriptedModel(next_token)
    model.ranks = Ranks()
    monkeypatch.setattr(Ranks, "share", lambda self, x: x)
    rows = decode_with(model, None, [[5, 6]], num_draft=num_draft, max_tokens=20)
    assert len(exchanged) == rows[0].stats.target_calls == 20


def test_what_is_learned_belongs_to_a_decoder(demo_pair):
    target, tokenizer, draft = demo_pair
    ours, another = (SpeculativeDecoder(target, tokenizer, draft) for _ in range(2))
    with ours.running(Options()) as first, ours.running(Options(temp=1.0)) as second:
        assert first.batch.schedule is second.batch.schedule is not another.schedule
    forgotten = weakref.ref(ours.schedule)
    del ours, first, second
    gc.collect()
    assert forgotten() is None


def test_auto_copies_beside_a_draft_model():
    assert Options().copies(True) and Options(lookup=True, num_draft=3).copies(True)
    for options in (dict(lookup=False), dict(num_draft=3), dict(delta=0.5)):
        assert not Options(**options).copies(True)
    assert not Options().copies(False) and Options(lookup=True).copies(False)


def test_a_draft_of_a_row_never_waits_for_a_row_that_has_not_been_read():
    """Rows with nothing to draft stay unread beside one that is drafted for."""
    target, draft = ScriptedModel(next_token), ScriptedModel(next_token)
    driver = start(target, ModelDrafter(draft), [[5], [6, 7]], num_draft=3, max_tokens=8)
    driver.batch.rows[0].max_tokens = 1
    rows = finish(driver)
    expected = [decode_with(target, None, [p], max_tokens=m)[0] for p, m in (([5], 1), ([6, 7], 8))]
    assert [row.tokens for row in rows] == [row.tokens for row in expected]
    assert draft.reads[0] == 2


def test_memory_is_wired_while_a_batch_is_open(monkeypatch, demo_pair):
    """As far as the system recommends, where it recommends anything; until a stream is closed, too."""
    limits, most = [0], {"max_recommended_working_set_size": 1 << 30}
    monkeypatch.setattr(mx, "device_info", lambda: most)
    monkeypatch.setattr(mx, "set_wired_limit", lambda limit: limits.append(limit) or limits[-2])
    decoder = SpeculativeDecoder(*demo_pair)
    responses = decoder.stream_generate("repair: teh king")
    next(responses)
    assert limits == [0, 1 << 30]
    responses.close()
    assert limits == [0, 1 << 30, 0]
    with decoder.running(Options()) as driver:
        assert not driver.batch.rows and limits[-1] == 1 << 30
    assert limits[-1] == 0
