"""Speculative decoding writes what plain decoding writes, token for token.

Proved once per level: here with scripted models, which see every slip of either cache, and with every
family's variants against an oracle that has no cache; in test_generate.py with the embedded pair against
transformers; in test_sampling.py and test_laws.py for what is sampled.
"""

import itertools
import random
from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from helpers.bart_models import lively_model
from helpers.decoding import (
    Fixed,
    Stopping,
    decode_with,
    drafters,
    finish,
    new_driver,
    new_rows,
    partial_steps,
    ragged_prompts,
    start,
)
from helpers.models import random_model
from helpers.oracle import disturbed, greedy, until, with_eos
from helpers.pairs import ours
from helpers.scripted import EOS, ScriptedModel, agreeing, plain

from speculative.drafters.draft_model import ModelDrafter
from speculative.step.cache import CrossCache, SlotCache
from speculative.step.draft import Plan
from speculative.step.options import Options
from speculative.step.row import DRAFTED
from speculative.step.schedule import Schedule

BATCH_SIZES = (1, 3, 8)


@pytest.fixture
def events(monkeypatch):
    """Caches that grow by small steps; how often they grew, were compacted, widened, narrowed, selected."""
    counts = dict.fromkeys(("_grown", "_compact", "widened", "narrowed", "select"), 0)
    monkeypatch.setattr(SlotCache, "STEP", 8)
    monkeypatch.setattr(SlotCache, "FEW", 4)

    def spy(name):
        method = getattr(CrossCache, name)

        def counting(self, *args):
            before = self.mask.shape[1]
            result = method(self, *args)
            if name == "_fit":
                counts["widened"] += self.mask.shape[1] > before
                counts["narrowed"] += self.mask.shape[1] < before
            else:
                counts[name] += 1
            return result

        monkeypatch.setattr(CrossCache, name, counting)

    for name in ("_grown", "_compact", "_fit", "select"):
        spy(name)
    return counts


# ---------------------------------------------------------------------------------------------
# Scripted models


class AnyLength(Fixed):
    """Other candidates and lengths in every step, and at times none, or fewer where a draft model becomes
    unsure: whatever `auto` may do."""

    def __init__(self):
        super().__init__(0)
        self._rng = random.Random(0)

    def plan(self, candidates, room, wanted=None):
        self.num_draft = self._rng.choice((0, 1, 2, 5, 20))
        plan = super().plan([self._rng.sample(c, len(c)) for c in candidates], room)
        lengths = [self._rng.randint(0, n) for n in plan.limits]
        drafting = [c if n else None for c, n in zip(plan.candidates, lengths, strict=True)]
        stops = [self._rng.random() < 0.2 for _ in range(21)]
        stop = self._rng.choice((None, lambda confidence, drafted: stops[drafted]))
        return Plan(drafting, np.array(lengths, np.int32), stop)


NUM_DRAFTS = {
    "model": [0, 2, 7, "any"],
    "lookup": [7, "auto", "any"],
    "both": [1, 20, "auto", "any", "any, late"],
}
NUM_DRAFTS_QUICK = [("model", 7), ("lookup", 7), ("both", "any")]


def either(cases, quick):
    """The cases, of which only these are quick."""
    return [
        case if case in quick else pytest.param(*case, marks=pytest.mark.slow) for case in cases
    ]


@pytest.mark.parametrize(
    ("kind", "num_draft"),
    either([(kind, n) for kind in NUM_DRAFTS for n in NUM_DRAFTS[kind]], NUM_DRAFTS_QUICK),
)
def test_scripted_rows_that_come_and_go_are_plain_rows(monkeypatch, events, kind, num_draft):
    """Prompts of 1 to 60 tokens and texts of 1 to 60; drafts from useless to perfect side by side. Any
    bookkeeping error of either cache is an assertion inside ScriptedModel; one of a drafter, which costs
    acceptance and nothing else, shows in the tokens' origins, which no batch changes."""
    target, draft = agreeing(ends=0.03, copies=0.6)
    prompts, any_length = ragged_prompts(18, 50, 60), str(num_draft).startswith("any")
    # Else rows that have ended may show what promises most.
    monkeypatch.setattr(Schedule, "_best", lambda self, candidates, *_: (candidates or [None])[0])
    if num_draft == "any, late":  # as on a GPU, where drafts stop a token later
        monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    expected, alone = [plain(target, prompt, 60) for prompt in prompts], None
    assert len(set(map(len, expected))) > 10
    for batch_size in BATCH_SIZES:
        events.update(dict.fromkeys(events, 0))
        schedule = AnyLength() if any_length else None
        options = dict(num_draft="auto" if any_length else num_draft, max_tokens=60)
        drafter = drafters(draft)[kind]
        rows = decode_with(target, drafter, prompts, batch_size, schedule, **options)
        assert [row.generated for row in rows] == expected
        for row in rows:
            assert row.finish_reason == ("stop" if row.tokens[-1] == EOS else "length")
            assert len(row.origins) == len(row.generated)
            drafted = sum(origin in DRAFTED for origin in row.origins)
            assert drafted == row.stats.accepted <= row.stats.draft_tokens
            assert sum(row.stats.accepted_lengths.values()) == row.stats.target_calls
        if batch_size > 1 and num_draft != "auto":  # what `auto` drafts depends on the machine
            assert events["_grown"] and events["select"]
            # One row of eight always has a long prompt.
            assert (events["widened"] and events["narrowed"]) or batch_size == 8
        if num_draft not in (0, 1, "auto"):
            assert partial_steps(rows, 20 if any_length else num_draft) > 15
            assert events["_compact"] or batch_size == 1
        if isinstance(num_draft, int):
            origins = [row.origins for row in rows]
            alone = alone or origins
            assert origins == alone, batch_size


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("last", range(1, 10))
@pytest.mark.parametrize("num_draft", [0, 1, 3])
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_text_may_end_anywhere_in_a_step(last, num_draft, reason):
    def next_token(source, prefix):
        return EOS if reason == "stop" and len(prefix) == last else 3 + len(prefix)

    target, drafter = ScriptedModel(next_token), ModelDrafter(ScriptedModel(next_token))
    options = dict(num_draft=num_draft, max_tokens=last if reason == "length" else 20)
    (row,) = decode_with(target, drafter, [[5]], **options)
    assert row.tokens[1:] == plain(target, [5], last)
    assert row.finish_reason == reason
    assert target.calls == -(-last // (num_draft + 1))
    if reason == "length":
        assert row.stats.draft_tokens == last - target.calls  # nothing that had no room


# ---------------------------------------------------------------------------------------------
# Real models of random weights


def oracles(model) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts, and what the oracle writes for them. The model's end of sequence becomes the token that
    gives its texts the most different lengths."""
    with_eos(model)
    prompts = ragged_prompts(12, model.config.vocab_size, 50)
    texts = greedy(model, prompts, 24)

    def ended(eos: int) -> list[list[int]]:
        return [until([eos], text) for text in texts]

    def variety(eos: int) -> int:
        return len({len(text) for text in ended(eos)})

    with_eos(model, eos := max(sorted({t for text in texts for t in text}), key=variety))
    assert variety(eos) > 2
    return prompts, ended(eos)


# Drafts from identical to useless.
WAYS = [
    *itertools.product(["model"], (0, 0.02, 0.1, 2), BATCH_SIZES),
    *itertools.product(["lookup", "both"], (0.05,), BATCH_SIZES),
]


MODELS = (
    {variant: partial(random_model, variant) for variant in ("t5", "umt5")}
    | {"marian": partial(lively_model, "marian, own vocabularies")}
    | {name: partial(lively_model, name) for name in ("bart", "m2m", "pegasus")}
    | {name: partial(ours, name) for name in ("t5gemma2", "t5gemma")}
)


@pytest.mark.slow
@pytest.mark.parametrize("variant", MODELS)
def test_tokens_are_the_oracles_in_every_variant(events, variant):
    """Every sixth way, with the others in the next five variants, and other numbers of drafted tokens. The others' caches: test_families.py."""
    model, partly = MODELS[variant](), 0
    prompts, expected = oracles(model)
    shift = list(MODELS).index(variant)
    runs = [(*way, 1 + (i + shift) % 7) for i, way in enumerate(WAYS) if (i + shift) % 6 == 0]
    for kind, noise, batch_size, num_draft in [
        *runs,
        ("model", 2, 8, 0),
        ("model", 0.02, 3, 7),  # rows of uneven acceptance leave slots to compact
        ("both", 0.05, 3, "auto"),
    ]:
        drafter = drafters(disturbed(model, noise))[kind]
        count = 3 if batch_size == 1 else len(prompts)
        rows = decode_with(
            model, drafter, prompts[:count], batch_size, num_draft=num_draft, max_tokens=24
        )
        texts = [row.generated for row in rows]
        assert texts == expected[:count], (kind, noise, batch_size, num_draft)
        if num_draft != "auto":
            partly += partial_steps(rows, num_draft)
    assert partly > 12
    assert all(events.values())


@pytest.mark.parametrize("models", [agreeing, lambda: (random_model(), random_model())])
def test_rows_join_in_free_places_and_beside_the_others(models):
    """A step after others have begun, and get what they get alone."""
    (target, draft), options = models(), Options(num_draft=2, max_tokens=30)
    first, second, third = ragged_prompts(3, 50), ragged_prompts(5, 50, 45)[3:], [[8, 9, 10]]
    driver = start(target, ModelDrafter(draft), first, num_draft=2, max_tokens=30)
    driver.advance()
    driver.batch.rows[1].finish_reason = "stop"  # say
    driver.admit(new_rows(target, second, options))
    assert len(driver.batch.rows) == 4  # one in its place, one beside the others
    driver.advance()
    driver.admit(new_rows(target, third, options))
    for row in finish(driver):
        (alone,) = decode_with(target, None, [row.prompt], max_tokens=30)
        assert row.tokens == alone.tokens
    assert [row.prompt for row in driver.batch.rows] == [
        first[0],
        second[0],
        first[2],
        second[1],
        *third,
    ]


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("stops", [False, True])
def test_synchronisations_of_a_step(monkeypatch, stops):
    """The host reads one array per step, however many tokens are drafted; where drafts may stop, besides how sure
    the draft model is of each but the last, which nothing depends on. A model that drafts for itself needs
    the fewest steps: the last drafted token reaches the draft's cache."""
    model, copied = random_model(), []
    with_eos(model)
    array = np.array

    def spy(x, *args, **kwargs):
        if isinstance(x, mx.array):
            copied.append(x.shape)
        return array(x, *args, **kwargs)

    for num_draft in (1, 3, 7):
        options = Options(num_draft=num_draft, max_tokens=48)
        schedule = Stopping(num_draft, least=-1.0) if stops else None
        monkeypatch.setattr(np, "array", spy)
        driver = new_driver(model, ModelDrafter(model), options, schedule)
        driver.admit(new_rows(model, [[5, 6]], options))
        copied.clear()
        (row,) = finish(driver)
        monkeypatch.undo()
        of_step = [(1,)] * (num_draft - 1 if stops else 0) + [(1, num_draft + 2)]
        assert copied == of_step * row.stats.target_calls
        assert row.stats.target_calls == 48 // (num_draft + 1)
