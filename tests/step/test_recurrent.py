"""Models with states that cannot forget: their text is mlx-lm's own alone, whatever drafts and whatever fails."""

import mlx.core as mx
import pytest

pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: requirements-apps.txt")

from helpers import causal_folders
from helpers.causal_models import alone, build, prompts
from helpers.decoding import (
    RashSchedule,
    Waiting,
    decode_with,
    new_rows,
    partial_steps,
    start,
    total,
)

from decoder import Batch, SpeculativeDecoder
from speculative.common.errors import InputError
from speculative.drafters.draft_model import ModelDrafter
from speculative.drafters.prompt_lookup import PromptLookup
from speculative.models import loading
from speculative.models.causal import MASKED, CausalCache, CausalModel
from speculative.step import prefill
from speculative.step.cached_model import CachedModel
from speculative.step.driver import Driver
from speculative.step.options import Options
from speculative.step.prefix_cache import PrefixCache
from speculative.text.tokenizer import byte_tokenizer

pytestmark = pytest.mark.slow
# Alone: their states do not tell fillers from tokens.
TOGETHER = ["qwen3_next", "falcon_h1", "lfm2", "mamba2"]
ALONE = ["jamba", "rwkv7"]


def pair(name: str) -> tuple:
    lm = build(name)
    return lm, CausalModel(lm), CausalModel(build(name, noise=0.05))


@pytest.mark.parametrize("name", [*TOGETHER, *ALONE])
def test_texts_are_mlx_lms_own(name):
    """Rows come and go; drafts pass in part, and the rows lack many tokens."""
    lm, model, draft = pair(name)
    prompted, partial = prompts(5, 25), 0
    expected = [alone(lm, prompt, 16) for prompt in prompted]
    most = model.max_rows or 3
    of_model = ModelDrafter(draft)
    both = ModelDrafter(draft, lookup=PromptLookup())
    for drafter, num_draft in ((of_model, 0), (of_model, 4), (both, 1), (both, "auto")):
        rows = decode_with(model, drafter, prompted, most, num_draft=num_draft, max_tokens=16)
        assert [row.generated for row in rows] == expected, num_draft
        partial += partial_steps(rows, num_draft) if num_draft == 4 else 0
    assert partial
    assert (model.max_rows == 1) == (name in ("jamba", "rwkv7"))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_states_that_fillers_wipe_are_seen_in_every_model(dtype):
    """nemotron_h keeps `lengths` from its states; the logits of a few tokens may not show it."""
    for seed in range(4):
        lm = build("nemotron_h", seed=seed)
        lm.set_dtype(dtype)
        assert CausalModel(lm).max_rows == 1


def test_a_deep_model_is_not_refused_for_its_rounding():
    """Of 48 layers in 16 bits the logits differ by a tenth if the same tokens come in other calls."""
    lm = build("mamba2", num_hidden_layers=48)
    lm.set_dtype(mx.bfloat16)
    assert CausalModel(lm).max_rows is None


def test_prompts_in_chunks_and_rows_that_go(monkeypatch):
    lm, model, draft = pair("qwen3_next")
    prompted = prompts(4, 30)
    expected = [alone(lm, prompt, 12) for prompt in prompted]
    monkeypatch.setattr(prefill, "CHUNK", 7)
    driver = start(model, ModelDrafter(draft), prompted, num_draft=3, max_tokens=12)
    driver.advance()
    rows = list(driver.batch.rows)
    driver.batch.select([2, 0, 3])
    while not all(row.finish_reason for row in driver.batch.rows):
        driver.advance()
    assert [rows[b].generated for b in (0, 2, 3)] == [expected[b] for b in (0, 2, 3)]


@pytest.fixture
def spoiled(monkeypatch):
    """As on Metal, where kernels of mlx-lm's for one token take fillers for text."""
    decoded = CausalCache.decoded

    def spoiling(self, positions, *rest):
        idle = mx.array((positions == MASKED).all(axis=1))
        for state in self.states:
            state.cache = [x + idle.reshape(-1, *[1] * (x.ndim - 1)) for x in state.cache]
        decoded(self, positions, *rest)

    monkeypatch.setattr(CausalCache, "decoded", spoiling)


@pytest.mark.parametrize("name", TOGETHER)
def test_calls_that_begin_ahead(name, monkeypatch, spoiled):
    """As on a GPU, also where the foreseen call is not the one that comes. A row without a token in a call keeps its
    states: when its prompt is shorter, and when it has ended and is remembered."""
    lm, model, draft = pair(name)
    prefix_cache, prompted, options = (
        PrefixCache(1 << 30),
        prompts(5, 25),
        Options(max_tokens=20),
    )
    monkeypatch.setattr(Batch, "runs_ahead", lambda self: True)
    monkeypatch.setattr(prefill, "CHUNK", 7)
    for _ in range(2):
        batch = Batch(model, ModelDrafter(draft), options, RashSchedule(), prefix_cache)
        rows = new_rows(model, prompted, options)
        list(Driver(batch).decode(Waiting(rows), 3))
        assert [row.generated for row in rows] == [alone(lm, prompt, 20) for prompt in prompted]
        prompted = [[*row.tokens, 9, 4] for row in rows]


def test_conversations_share_their_system_prompt(tmp_path):
    causal_folders.write(tmp_path, "lfm2")
    model, tokenizer = loading.load(tmp_path)
    system = "a dog saw the cat on the mat, or is it so? " * 3
    shared = tokenizer.encode(f"<system>{system}<end><user>", add_special_tokens=False).ids
    ours = SpeculativeDecoder(model, tokenizer)
    plain = SpeculativeDecoder(model, tokenizer, prefix_cache=0)
    for user, cached in (("the cat", 0), ("and the dog", len(shared)), ("\nis", len(shared))):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        (answer,), (expected,) = (
            decoder.batch_generate([messages], max_tokens=8) for decoder in (ours, plain)
        )
        assert (answer.tokens, answer.stats.cached_tokens) == (expected.tokens, cached)


def states_stay(self, n):
    after = self._snapshot()
    right_keep(self, n)
    for state, arrays in zip(self.states, after, strict=True):
        state.cache = arrays


right_keep = CausalCache.keep


def test_what_is_wrong_on_purpose_is_seen(monkeypatch):
    lm, model, draft = pair("qwen3_next")
    prompted = prompts(5, 25)
    expected = [alone(lm, prompt, 10) for prompt in prompted]
    monkeypatch.setattr(CausalCache, "keep", states_stay)
    rows = decode_with(model, ModelDrafter(draft), prompted, 3, num_draft=3, max_tokens=10)
    assert [row.generated for row in rows] != expected
    with pytest.raises(InputError, match="its logits are not those alone"):
        CausalModel(lm)


def test_a_row_that_lacks_many_tokens_is_read_alone_once():
    """Here no draft passes whole: what a step reads stays bounded."""
    lm, model, _ = pair("qwen3_next")
    prompt, (text,) = prompts(1, 9)[0], [alone(lm, prompts(1, 9)[0], 40)]

    class Nearly(PromptLookup):
        def admit(self, batch, new):
            for row in batch:
                row.reference = [t if i % 3 else t % 57 + 3 for i, t in enumerate(text)]
            super().admit(batch, new)

    widths, decode = [], model.decode
    model.decode = lambda tokens, *args: widths.append(tokens.shape[1]) or decode(tokens, *args)
    (row,) = decode_with(model, Nearly(to_target=None), [prompt], num_draft=4, max_tokens=40)
    assert row.generated == text
    assert total([row]).accepted and max(widths) <= CachedModel.MAX_MISSING + 1 + 4 + 4


def test_beams_need_rows_side_by_side():
    model = CausalModel(build("rwkv7"))
    decoder = SpeculativeDecoder(model, byte_tokenizer())
    with pytest.raises(InputError, match="one row at a time"):
        list(decoder.stream_generate([5], num_beams=2))
    assert decoder.max_batch_size(8) == 1
