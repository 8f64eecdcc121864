"""mlx-lm's models behind the contract: their text is mlx-lm's own alone, and what cannot be so is refused."""

import re
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: requirements-apps.txt")

from helpers.causal_configs import WINDOW
from helpers.causal_models import alone, build, prompts
from helpers.decoding import decode_with, partial_steps, total

from speculative.common.errors import InputError
from speculative.drafters.draft_model import ModelDrafter
from speculative.drafters.drafter import Drafter
from speculative.drafters.prompt_lookup import PromptLookup
from speculative.models.causal import MASKED, CausalModel
from speculative.step import prefill
from speculative.step.cached_model import CachedModel

pytestmark = pytest.mark.slow

SLIDING = ["gemma3_text", "gpt_oss", "ministral3", "olmo3"]
OTHERS = "llama mixtral gpt2 deepseek_v3 gemma3n mistral4".split()  # more: test_causal_positions.py


def working() -> dict[str, bool]:
    """The models that work according to docs/mlx_lm_models.md, and whether they do in batches."""
    page = (Path(__file__).parents[2] / "docs/mlx_lm_models.md").read_text()
    count, section = page.split("\n## ")[1].split(" work")
    models: dict[str, bool] = {}
    for heading, names in pairwise(section.rstrip().split("\n\n")):
        if not names.endswith(":"):
            models |= dict.fromkeys(re.split(r",\s+", names), "one text" not in heading)
    assert len(models) == int(count)
    return models


@pytest.fixture(scope="module")
def llama():
    return build("llama", num_hidden_layers=2)


@pytest.mark.parametrize("name", [*OTHERS, *SLIDING])
def test_texts_are_mlx_lms_own(name):
    """Rows come and go, drafts are accepted in part, and prompts and texts outgrow the windows."""
    lm = build(name)
    model, noised = CausalModel(lm), CausalModel(build(name, noise=0.2))
    prompted, partial, whole = prompts(5, 25), 0, 0
    expected = [alone(lm, prompt, 10) for prompt in prompted]
    both = ModelDrafter(noised, lookup=PromptLookup())
    for drafter, num_draft, batch_size in (
        (both, 3, 3),
        (ModelDrafter(model), 5, 2),
        (Drafter(), 0, 3),
    ):
        options = dict(num_draft=num_draft, max_tokens=10)
        rows = decode_with(model, drafter, prompted, batch_size, **options)
        assert [row.generated for row in rows] == expected, (num_draft, batch_size)
        partial += partial_steps(rows, num_draft)
        whole += total(rows).accepted_lengths[num_draft] if num_draft else 0
    assert partial and whole
    assert (WINDOW in model.new_cache(1).windows) == (name in [*SLIDING, "gemma3n"])


def test_one_row_needs_no_mask(llama):
    model = CausalModel(llama)
    cache = model.start([[5, 6, 7]])
    layer = cache.layers[0]
    cache.reserve(np.array([[2]], np.int32))
    assert layer.offset == 2 and layer.make_mask(1) is None
    assert layer.make_mask(1, return_array=True).shape == (1, 1, 1, 3)
    cache.reserve(np.array([[3, 4]], np.int32))
    assert layer.make_mask(2) == "causal"
    seen = layer.make_mask(2, window_size=4).tolist()[0][0]
    assert seen == [[True] * 4 + [False], [False] + [True] * 4]


def test_fillers_see_themselves_and_nobody_sees_them(llama):
    cache = CausalModel(llama).start([[5, 6, 7], [8, 9]])
    cache.reserve(np.array([[MASKED, 2, 3], [1, 2, MASKED]], np.int32))
    assert cache.layers[0].offset.tolist() == [1, 1]
    mask = np.array(cache.layers[0].make_mask(3, window_size=2))[:, 0]
    positions = cache.position[:, : cache.cursor]
    for b in range(2):
        for t, i in enumerate(positions[b, -3:]):
            assert mask[b, t, 2 + t]
            if i != MASKED:
                assert positions[b, mask[b, t]].tolist() == [i - 1, i]


def test_drafted_tokens_of_a_row_that_begins_later_are_taken_back(llama):
    cached = CachedModel(CausalModel(llama))
    cached.admit(2, range(2), [[5], [8]])
    cached([[5, 6, 7], [8]], mx.array([[9, 9], [9, 9]]), np.array([2, 2]))
    cached.keep(np.array([1, 1]))
    assert cached.cache.lengths.tolist() == [4, 2]


def test_prompts_are_read_in_chunks_without_logits(llama, monkeypatch):
    whole = CausalModel(llama)
    tokens = np.random.default_rng(0).integers(3, 61, (2, 40))
    rows = [tokens[0].tolist(), tokens[1, :9].tolist()]
    last, at = mx.array(tokens[[0, 1], [39, 8]][:, None]), np.array([[39], [8]], np.int32)
    expected = whole.decode(last, at, whole.start(rows))
    monkeypatch.setattr(prefill, "CHUNK", 7)
    cache = whole.start(rows)
    assert cache.lengths.tolist() == [39, 8]
    assert mx.allclose(whole.decode(last, at, cache), expected, atol=1e-4)
    monkeypatch.undo()
    wide = CausalModel(build("llama", num_hidden_layers=1, vocab_size=20_000))
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    wide.start([[5] * 500])
    assert mx.get_peak_memory() - before < 20e6  # the logits would be 40 MB


def test_learned_positions_end():
    """The table is no longer than the text, and fillers lie beyond it."""
    lm = build("gpt2", num_hidden_layers=2, n_positions=30, n_ctx=30)
    model = CausalModel(lm, max_positions=99)
    assert (model.config.max_positions, model.config.max_prompt_tokens) == (30, 29)
    table = lm.model.wpe
    assert mx.array_equal(table(mx.array([-3, 29, 31, 10**6])), table(mx.array([0, 29, 29, 29])))
    prompted = prompts(4, 22)
    rows = decode_with(model, PromptLookup(), prompted, 3, num_draft=5, max_tokens=12)
    expected = [alone(lm, prompt, min(12, 30 - len(prompt))) for prompt in prompted]
    assert [row.generated for row in rows] == expected
    assert any(len(text) < 12 for text in expected)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("llama4", "a layer keeps its state in ChunkedKVCache, from which this step cannot"),
        ("afm7", "takes positions from the number of its keys"),
        ("gpt_bigcode", "a batch of rows of unequal length fails"),
        ("plamo3", "its masks span 7 tokens, its cache 6"),
    ],
)
def test_what_would_be_wrong_is_refused_by_name(name, why):
    with pytest.raises(InputError, match=f"^{name} cannot be decoded here: .*{why}"):
        CausalModel(build(name))


@pytest.mark.parametrize(("name", "batches"), working().items())
def test_every_model_on_the_page_loads(name, batches):
    assert (CausalModel(build(name)).max_rows is None) == batches


def test_experts_in_16_bits_need_a_gpu():
    lm = build("mixtral", num_hidden_layers=1)
    lm.set_dtype(mx.bfloat16)
    with mx.stream(mx.cpu), pytest.raises(InputError, match="mixtral cannot be decoded here"):
        CausalModel(lm)


def test_nan_and_an_empty_prompt_are_refused():
    lm = build("llama", num_hidden_layers=2)
    with pytest.raises(InputError, match="without a token"):
        CausalModel(lm).start([[5], []])
    lm.model.norm.weight = mx.full((32,), mx.nan)
    with pytest.raises(InputError, match="logits"):
        CausalModel(lm)
