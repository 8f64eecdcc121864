"""BART's family: positions, what is generated under checkpoints' own settings, and where texts end."""

import dataclasses
import json
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest
import torch
from helpers.bart_checkpoints import VARIANTS
from helpers.bart_models import KINDS, LIVELY
from helpers.decoding import Waiting, decode_with
from helpers.models import B, assert_close, cached_logits, reference_logits
from helpers.oracle import disturbed, flat_weights
from helpers.pairs import both, known
from transformers import GenerationConfig

from decoder import Batch
from speculative.common.errors import InputError
from speculative.drafters.draft_model import ModelDrafter
from speculative.drafters.drafter import Drafter
from speculative.models.bart import Bart, Config
from speculative.step.cache import MASKED
from speculative.step.driver import Driver
from speculative.step.options import Options
from speculative.step.row import Row
from speculative.step.schedule import Schedule
from speculative.text.generation import GenerationDefaults

pytestmark = pytest.mark.slow


@pytest.fixture
def bart():
    return both(VARIANTS["bart"])


@pytest.mark.parametrize("name", ["m2m", "nllb, other padding"])
def test_m2m_counts_tokens_without_end_and_padding_ids_are_none(name):
    reference, model = both(VARIANTS[name])
    source, target = (np.random.default_rng(i).integers(6, 58, (B, 100)) for i in range(2))
    source[0, 5] = source[1, 4] = model.config.pad_token_id  # between tokens
    mask = np.ones_like(source, bool)
    expected = reference_logits(reference, source, mask, target)
    assert_close(cached_logits(model, source, mask, target, [30, 70]), expected)


@pytest.mark.parametrize("name", KINDS)
def test_every_tensor_arrives_in_its_place(name):
    """A key's bias cancels in the softmax: no logits would miss it."""
    reference, model = both(VARIANTS[name])
    state, weights = reference.state_dict(), dict(flat_weights(model))
    for stack in ("encoder", "decoder"):
        for theirs, ours in (("self_attn.k_proj", "attention.key"), ("fc2", "down")):
            expected = state[f"model.{stack}.layers.1.{theirs}.bias"].numpy()
            assert np.array_equal(weights[f"{stack}.layers.1.{ours}.bias"], expected)


def test_fillers_do_not_reach_the_positions_table(bart):
    """MASKED as a row of the table would be foreign memory."""
    _, model = bart
    cache, kind = model.start([[5, 6, 2]]), type(model.decoder.positions)
    positions = np.array([[MASKED, MASKED, 0, 1, 2]], np.int32)
    with mock.patch.object(kind, "__call__", autospec=True, side_effect=kind.__call__) as table:
        model.decode(mx.full((1, 5), 7), positions, cache)
    assert all(mx.max(call.args[1]).item() < 66 for call in table.call_args_list)
    assert table.call_count == 2  # words and positions


@pytest.mark.parametrize("name", ["bart", "mbart", "marian", "pegasus"])
def test_positions_end_where_the_table_does(name):
    reference, model = both(VARIANTS[name])
    assert model.config.max_positions == 64
    rng = np.random.default_rng(0)
    source, target = (rng.integers(3, 58, (B, 64)) for _ in range(2))
    mask = np.ones_like(source, bool)
    expected = reference_logits(reference, source, mask, target)
    logits = cached_logits(model, source, mask, target, [60, 4])
    assert_close(known(logits, model.config), known(expected, model.config))
    with pytest.raises(InputError, match="longer than the 64 positions that the model knows"):
        cached_logits(model, source, mask, np.tile(target, 2), [64, 1])


def prompts(config: Config, count: int) -> list[list[int]]:
    rng, eos = np.random.default_rng(3), config.eos_token_ids[0]
    right = [i for i in range(3, config.source_vocab_size) if i != config.pad_token_id]
    return [[*rng.choice(right, rng.integers(1, 21)).tolist(), eos] for _ in range(count)]


# As bart-large-cnn's, mbart's, nllb's, opus-mt's and pegasus-xsum's generation_config.json, for short texts.
SETTINGS = {
    "bart": dict(no_repeat_ngram_size=3, min_length=9, max_length=18, forced_bos_token_id=0)
    | dict(forced_eos_token_id=2, num_beams=4, length_penalty=2.0, early_stopping=True),
    "mbart": dict(forced_eos_token_id=2, max_length=12, num_beams=5),
    "m2m": dict(max_length=14, num_beams=5, forced_bos_token_id=9),
    "marian": dict(bad_words_ids=[[60]], forced_eos_token_id=0, max_length=13, num_beams=6)
    | dict(no_repeat_ngram_size=2),  # not its own: random weights repeat one token
    "pegasus": dict(forced_eos_token_id=1, min_length=6, max_length=11, num_beams=8),
}


@pytest.mark.parametrize("name", KINDS)
def test_texts_under_a_checkpoints_own_settings(tmp_path, name):
    """Plain and drafted, side by side; ends of sequence come early where they may."""
    settings, raw = SETTINGS[name], VARIANTS[name]
    ids = {key: value for key, value in settings.items() if key.endswith("_token_id")}
    bias = {"bart": 4.0, "pegasus": 4.0, "mbart": 1.0, "m2m": 1.0, "marian": 0.0}[name]
    eos = torch.tensor(raw["eos_token_id"])
    early = {"final_logits_bias": lambda b: b.index_fill(1, eos, bias)}
    reference, model = both(raw | ids, 1, LIVELY | early)
    ours = {key: raw[key] for key in ("eos_token_id", "pad_token_id")} | settings
    (tmp_path / "generation_config.json").write_text(json.dumps(ours))
    reference.generation_config = GenerationConfig.from_pretrained(
        tmp_path, decoder_start_token_id=model.config.decoder_start_token_id
    )
    generation = GenerationDefaults.load(tmp_path, ["forced_bos_token_id"])
    sources, draft = prompts(model.config, 12), disturbed(model, 0.08)
    expected = []
    for source in sources:
        row = reference.generate(torch.tensor([source]), num_beams=1)[0].tolist()
        expected.append(row[len(model.prefix(source)) :])
    assert len(set(map(tuple, expected))) > 6
    for num_draft in (0, 3):
        rows = []
        for source in sources:
            prefix = model.prefix(source)
            options = generation.with_defaults(Options(num_draft=num_draft), len(prefix))
            rows.append(Row.begin(source, options, prefix, model.config))
        drafter = ModelDrafter(draft) if num_draft else Drafter()
        driver = Driver(Batch(model, drafter, Options(), Schedule(100)))
        list(driver.decode(Waiting(rows), 5))
        assert [row.generated for row in rows] == expected


def test_texts_end_where_the_positions_do_and_drafts_where_the_draft_models_do(bart):
    _, model = bart
    model.config = dataclasses.replace(model.config, eos_token_ids=(3,))
    short = Bart(dataclasses.replace(model.config, max_positions=20))
    weights = dict(flat_weights(model))
    for name in ("encoder", "decoder"):
        weights[f"{name}.positions.weight"] = weights[f"{name}.positions.weight"][:22]
    short.load_weights(list(weights.items()))
    prompts = [[5, 6, 2], list(range(4, 34))]  # the second is too long for it to read
    rows = decode_with(model, ModelDrafter(short), prompts, num_draft=4, max_tokens=80)
    plain = decode_with(model, None, prompts, max_tokens=80)
    assert [row.tokens for row in rows] == [row.tokens for row in plain]
    assert {(len(row.tokens), row.finish_reason) for row in rows} == {(64, "length")}
    assert rows[0].stats.draft_tokens > 0 and rows[1].stats.draft_tokens == 0
    assert all(origin == "target" for origin in rows[0].origins[20:])
