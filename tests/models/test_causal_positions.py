"""Decoder-only checkpoints as transformers saves them: their texts here are transformers' own."""

import json
from functools import partial
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: requirements-apps.txt")

import transformers
from helpers.causal_checkpoints import ROPES, greedy, logits, save
from helpers.decoding import decode_with

import convert
from decoder import SpeculativeDecoder
from speculative.common.errors import InputError
from speculative.drafters.prompt_lookup import PromptLookup
from speculative.models import causal_loading
from speculative.models.mlx_lm_folders import runs_in_mlx_lm

pytestmark = pytest.mark.slow

CHECKPOINTS = [("llama", rope) for rope in ROPES]
CHECKPOINTS += [("gemma3_text", rope) for rope in ("linear", "dynamic", "yarn, mscale")]
CHECKPOINTS += [("qwen2", "linear"), ("qwen3", "yarn"), ("mistral", "llama3")]
CHECKPOINTS += [("gemma2", "default"), ("gemma2", "yarn")]
CHECKPOINTS += [("phi3", "default"), ("phi3", "longrope"), ("glm", "default")]


def assert_same(model, reference) -> None:
    """Logits of 60 tokens, beyond all windows and original lengths, and texts with copied drafts."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(6, 320, 60).tolist()
    cache = model.start([tokens[:1]])
    ours = model.decode(mx.array([tokens]), np.arange(60, dtype=np.int32)[None], cache)
    expected = logits(reference, tokens)
    assert np.abs(np.array(ours[0]) - expected).max() < 1e-4 * np.abs(expected).max()
    prompts = [rng.integers(6, 320, n).tolist() for n in (1, 9, 24)]
    rows = decode_with(model, PromptLookup(), prompts, 2, num_draft=3, max_tokens=25)
    assert [row.generated for row in rows] == [greedy(reference, p, 25) for p in prompts]


@pytest.mark.parametrize(("kind", "rope"), CHECKPOINTS)
def test_texts_are_those_of_transformers(kind, rope, tmp_path):
    reference = save(tmp_path, kind, rope)
    assert_same(causal_loading.load("x", tmp_path)[0], reference)


def test_older_configs_say_it_elsewhere(tmp_path):
    """transformers 4 wrote rope_theta, rope_local_base_freq and rope_scaling."""
    save(tmp_path, "gemma3_text", "yarn")
    config = tmp_path / "config.json"
    raw = json.loads(config.read_text())
    ropes = raw.pop("rope_parameters")
    scaling, local = ropes["full_attention"], ropes["sliding_attention"]["rope_theta"]
    raw |= dict(rope_theta=scaling.pop("rope_theta"), rope_local_base_freq=local)
    config.write_text(json.dumps(raw | dict(rope_scaling=scaling, sliding_window_pattern=2)))
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert_same(causal_loading.load("x", tmp_path)[0], reference)


def test_converted_checkpoints(tmp_path, monkeypatch):
    """mlx-lm has Mistral under another name; what it reads from the converted folder is right, too."""
    import mlx_lm

    monkeypatch.chdir(tmp_path)
    reference = save(Path("hub/some-mistral"), "mistral", "llama3", sliding_window=None)
    monkeypatch.setattr("sys.argv", "convert.py --model hub/some-mistral --dtype float32".split())
    convert.main()
    assert_same(causal_loading.load("x", Path("mlx_models/some-mistral"))[0], reference)
    lm = mlx_lm.load("mlx_models/some-mistral")[0]
    tokens = list(range(6, 40))
    assert np.abs(np.array(lm(mx.array([tokens]))[0]) - logits(reference, tokens)).max() < 1e-3


def test_model_types_that_mlx_lm_renames():
    from mlx_lm.utils import MODEL_REMAPPING

    assert "mistral" in MODEL_REMAPPING
    assert all(runs_in_mlx_lm(dict(model_type=kind)) for kind in MODEL_REMAPPING)


def test_unknown_positions_are_refused(tmp_path):
    save(tmp_path / "hub", "llama", "default")
    config = tmp_path / "hub" / "config.json"
    change = dict(rope_parameters=dict(rope_type="axial"))
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    for use in (
        partial(causal_loading.load, "x"),
        lambda folder: convert.convert(str(folder), tmp_path / "out"),
    ):
        with pytest.raises(InputError, match="hub: rope type axial is unknown; there are"):
            use(tmp_path / "hub")


def test_a_forced_first_token_is_for_prompts_of_one_token(tmp_path):
    reference = save(tmp_path, "llama", "default")
    (tmp_path / "generation_config.json").write_text('{"forced_bos_token_id": 9}')
    reference.generation_config.forced_bos_token_id = 9
    model, tokenizer = causal_loading.load("x", tmp_path)
    for prompt, forced in (([7], True), ([7, 8, 11], False)):
        (response,) = SpeculativeDecoder(model, tokenizer).batch_generate([prompt], max_tokens=6)
        assert response.tokens == greedy(reference, prompt, 6)
        assert (response.tokens[0] == 9) == forced
