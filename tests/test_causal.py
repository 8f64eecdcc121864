"""mlx-lm's models behind the contract: their text is mlx-lm's own alone, and what cannot be so is refused."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: requirements-lm.txt")

from helpers import causal_folders
from helpers.causal_configs import WINDOW
from helpers.causal_models import alone, build, prompts
from helpers.decoding import decode_with, partial_steps, total
from test_distributed import launch

from checkpoints.quantization import Quantization
from errors import InputError
from families import causal, causal_loading
from families.causal import MASKED, CausalCache, CausalModel, LayerCache
from families.causal_loading import convert_with_mlx_lm, find_causal, format_prompt, is_causal
from speculative.drafting import CombinedDrafter, Drafter, ModelDrafter, PromptLookup

ROOT = Path(__file__).parent.parent
SLIDING = ["gemma3_text", "gpt_oss", "olmo3"]
ARCHITECTURES = [
    *["llama", "qwen2", "qwen3", "gemma2", "phi3", "mixtral", "gpt2", "deepseek_v3", "gemma3n"],
    *SLIDING,
]


@pytest.fixture(scope="module")
def llama():
    return build("llama", num_hidden_layers=2)


# ---------------------------------------------------------------------------------------------
# Text


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_texts_are_mlx_lms_own(name):
    """Rows come and go, drafts are accepted in part, and prompts and texts outgrow the windows."""
    lm = build(name)
    model, noised = CausalModel(lm), CausalModel(build(name, noise=0.2))
    prompted, partial, whole = prompts(5, 25), 0, 0
    expected = [alone(lm, prompt, 10) for prompt in prompted]
    both = CombinedDrafter(PromptLookup(), ModelDrafter(noised))
    ways = [(ModelDrafter(noised), 3, 3), (ModelDrafter(model), 5, 2), (PromptLookup(), 3, 5)]
    for drafter, num_draft, batch_size in [*ways, (both, 1, 1), (Drafter(), 0, 3)]:
        options = dict(num_draft=num_draft, max_tokens=10)
        rows = decode_with(model, drafter, prompted, batch_size, **options)
        assert [row.generated for row in rows] == expected, (num_draft, batch_size)
        partial += partial_steps(rows, num_draft)
        whole += total(rows).accepted_lengths[num_draft] if num_draft else 0
    assert partial and whole
    assert (WINDOW in model._windows) == (name in [*SLIDING, "gemma3n"])


def test_another_architecture_drafts(llama):
    model, other = CausalModel(llama), CausalModel(build("gpt2", seed=3))
    prompted = prompts(4, 20)
    rows = decode_with(model, ModelDrafter(other), prompted, 3, num_draft=3, max_tokens=10)
    assert [row.generated for row in rows] == [alone(llama, prompt, 10) for prompt in prompted]


def test_quantized_models():
    import mlx.nn as nn

    lm = build("qwen3", num_hidden_layers=2, intermediate_size=64)
    nn.quantize(lm, group_size=32, bits=4)
    model, prompted = CausalModel(lm), prompts(4, 20)
    rows = decode_with(model, PromptLookup(), prompted, 3, num_draft=3, max_tokens=8)
    assert [row.generated for row in rows] == [alone(lm, prompt, 8) for prompt in prompted]


def offset_of_the_first_row(self):
    offset = self._slots.offset
    return offset if isinstance(offset, int) else mx.full(offset.shape, offset[0])


def offset_without_fillers(self):
    """As if a row's first token were in the block's first column."""
    column = (self._slots._queries != MASKED).argmax(axis=1)
    return self._slots.offset + mx.array(column)


def mask_of_order(self, window, as_array):
    """As a cache without positions has it: causal by slots."""
    T, N = self._queries.shape[1], self.cursor
    return mx.array(np.arange(N) <= np.arange(N - T, N)[:, None])[None, None]


def mask_one_wider(self, window, as_array):
    return right_mask(self, window and window + 1, as_array)


def keep_one_more(self, n):
    right_keep(self, n + 1)


right_mask, right_keep = CausalCache._make_mask, CausalCache.keep
MUTANTS = {
    "offset of the first row": (LayerCache, "offset", property(offset_of_the_first_row)),
    "offset without fillers": (LayerCache, "offset", property(offset_without_fillers)),
    "mask by order": (CausalCache, "_make_mask", mask_of_order),
    "window one wider": (CausalCache, "_make_mask", mask_one_wider),
    "keep one more": (CausalCache, "keep", keep_one_more),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_is_wrong_on_purpose_is_seen(mutant, monkeypatch):
    lm = build("gemma3_text", num_hidden_layers=2)
    model, noised = (
        CausalModel(lm),
        CausalModel(build("gemma3_text", noise=0.2, num_hidden_layers=2)),
    )
    prompted = prompts(5, 25)
    expected = [alone(lm, prompt, 10) for prompt in prompted]
    monkeypatch.setattr(*MUTANTS[mutant])
    try:
        found = [
            row.generated
            for row in decode_with(
                model, ModelDrafter(noised), prompted, 3, num_draft=3, max_tokens=10
            )
        ]
    except ValueError:  # a cache that holds more than there is
        found = []
    if mutant != "offset without fillers":  # which a target's blocks have on the right only
        assert found != expected
    with pytest.raises(InputError, match="gemma3_text cannot be decoded here"):
        CausalModel(lm)


# ---------------------------------------------------------------------------------------------
# The cache's rules


def test_one_row_needs_no_mask(llama):
    model = CausalModel(llama)
    cache = model.start(mx.array([[5, 6, 7]]))
    layer = cache.layers[0]
    cache.reserve(np.array([[2]], np.int32))
    assert layer.offset == 2 and layer.make_mask(1) is None
    assert layer.make_mask(1, return_array=True).shape == (1, 1, 1, 3)
    cache.reserve(np.array([[3, 4]], np.int32))
    assert layer.make_mask(2) == "causal"
    assert layer.make_mask(2, window_size=4).tolist()[0][0] == [
        [True] * 4 + [False],
        [False] + [True] * 4,
    ]


def test_fillers_see_themselves_and_nobody_sees_them(llama):
    cache = CausalModel(llama).start(
        mx.array([[5, 6, 7], [8, 9, 9]]), np.array([[1, 1, 1], [1, 1, 0]])
    )
    cache.reserve(np.array([[MASKED, 2, 3], [1, 2, MASKED]], np.int32))
    assert cache.layers[0].offset.tolist() == [1, 1]
    mask = np.array(cache.layers[0].make_mask(3, window_size=2))[:, 0]
    positions = cache.position[:, : cache.cursor]
    for b in range(2):
        for t, i in enumerate(positions[b, -3:]):
            assert mask[b, t, 2 + t]
            if i != MASKED:
                assert positions[b, mask[b, t]].tolist() == [i - 1, i]


def test_prompts_are_read_in_chunks_without_logits(llama, monkeypatch):
    told = []
    whole = CausalModel(llama)
    tokens, mask = np.random.default_rng(0).integers(3, 61, (2, 40)), np.arange(40) < [[40], [9]]
    last, at = mx.array(tokens[[0, 1], [39, 8]][:, None]), np.array([[39], [8]], np.int32)
    expected = whole.decode(last, at, whole.start(mx.array(tokens), mask))
    monkeypatch.setattr(causal, "PREFILL", 7)
    cache = whole.start(mx.array(tokens), mask, progress=lambda *done: told.append(done))
    assert told == [(n, 39) for n in (7, 14, 21, 28, 35, 39)]
    assert cache.lengths.tolist() == [39, 8]
    assert mx.allclose(whole.decode(last, at, cache), expected, atol=1e-4)
    monkeypatch.undo()
    wide = CausalModel(build("llama", num_hidden_layers=1, vocab_size=20_000))
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    wide.start(mx.array(np.full((1, 500), 5)))
    assert mx.get_peak_memory() - before < 20e6  # the logits would be 40 MB


def test_an_empty_prompt_is_refused(llama):
    with pytest.raises(InputError, match="without a token"):
        CausalModel(llama).start(mx.array([[5], [5]]), np.array([[1], [0]]))


def test_learned_positions_end():
    """The table is no longer than the text, and fillers lie beyond it."""
    lm = build("gpt2", num_hidden_layers=2, n_positions=30, n_ctx=30)
    model = CausalModel(lm, max_positions=99)
    assert model.config.max_positions == 30
    with pytest.raises(InputError, match="a prompt of 30 tokens, and the model takes 30"):
        model.start(mx.array([[5] * 30]))
    table = lm.transformer.wpe if hasattr(lm, "transformer") else lm.model.wpe
    assert mx.array_equal(table(mx.array([-3, 29, 31, 10**6])), table(mx.array([0, 29, 29, 29])))
    prompted = prompts(4, 22)
    rows = decode_with(model, PromptLookup(), prompted, 3, num_draft=5, max_tokens=8)
    assert [row.generated for row in rows] == [alone(lm, prompt, 8) for prompt in prompted]


# ---------------------------------------------------------------------------------------------
# Refused


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mamba", r"keeps more than keys and values \(ArraysCache\)"),
        ("qwen3_next", r"keeps more than keys and values \(ArraysCache\)"),
        ("llama4", r"keeps more than keys and values \(ChunkedKVCache\)"),
        ("deepseek_v32", r"keeps more than keys and values \(CacheList\)"),
        ("afm7", "takes positions from the number of its keys"),
        ("gpt_bigcode", "a batch of rows of unequal length fails"),
        ("plamo3", "its masks span 7 tokens, its cache 6"),
    ],
)
def test_what_would_be_wrong_is_refused_by_name(name, why):
    with pytest.raises(InputError, match=f"^{name} cannot be decoded here: .*{why}"):
        CausalModel(build(name))


def test_logits_refuse_what_types_let_pass(monkeypatch):
    """afm7 is known by name as well, for half precision."""
    monkeypatch.setattr(causal, "_ELSEWHERE", {})
    with pytest.raises(
        InputError, match=r"afm7 cannot be decoded here: .*its logits are not those"
    ):
        CausalModel(build("afm7"))


def test_nan_is_refused(llama):
    lm = build("llama", num_hidden_layers=2)
    lm.model.norm.weight = mx.full((32,), mx.nan)
    with pytest.raises(InputError, match="logits"):
        CausalModel(lm)


# ---------------------------------------------------------------------------------------------
# Files


def test_a_folder_of_mlx_communitys(tmp_path):
    lm = causal_folders.write(tmp_path / "some-llama")
    assert is_causal(tmp_path / "some-llama")
    model, tokenizer = causal_loading.load(tmp_path / "some-llama")
    config = model.config
    assert (config.vocab_size, config.eos_token_ids, config.pad_token_id) == (320, (1, 5), 0)
    assert config.max_positions == 256
    ids = tokenizer.encode("the cat sat").ids
    assert ids == model.chat.encode("the cat sat") and model.tokenizer is tokenizer
    assert tokenizer.decode(ids) == "the cat sat"
    prompted = [tokenizer.encode(text).ids for text in causal_folders.TEXTS]
    rows = decode_with(model, PromptLookup(), prompted, 2, num_draft=3, max_tokens=8)
    for row, prompt in zip(rows, prompted, strict=True):
        text = alone(lm, prompt, 8)
        ends = [i for i, token in enumerate(text) if token in (1, 5)]
        assert row.generated == (text[: ends[0] + 1] if ends else text)


def test_a_quantized_folder(tmp_path):
    causal_folders.write(tmp_path / "q", "qwen3", bits=4, intermediate_size=64)
    model, _ = causal_loading.load(tmp_path / "q")
    assert "scales" in model.model.model.layers[0].mlp.down_proj
    prompted = prompts(3, 12)
    rows = decode_with(model, None, prompted, 3, num_draft=0, max_tokens=5)
    expected = [alone(model.model, prompt, 5) for prompt in prompted]
    assert [row.generated for row in rows] == expected


def test_chat_templates_are_applied_as_mlx_lm_does(tmp_path):
    causal_folders.write(tmp_path / "m")
    chat = causal_loading.load(tmp_path / "m")[0].chat
    assert format_prompt(chat, "hi") == ("<user>hi<end><assistant>", False)
    assert format_prompt(chat, "hi", "be brief") == (
        "<system>be brief<end><user>hi<end><assistant>",
        False,
    )
    assert format_prompt(chat, "hi", ignore_chat_template=True) == ("hi", True)
    with pytest.raises(InputError, match="a system prompt needs a chat template"):
        format_prompt(chat, "hi", "be brief", ignore_chat_template=True)


def test_which_folders_are_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    causal_folders.write(tmp_path / "mlx_models" / "small")
    assert find_causal("small") == find_causal("org/small") == Path("mlx_models/small")
    assert find_causal(str(tmp_path / "mlx_models" / "small")) is not None
    assert find_causal("another") is None
    config = tmp_path / "mlx_models" / "small" / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"t5"'))
    assert find_causal("small") is None
    config.write_text(config.read_text().replace('"t5"', '"llama"'))
    (tmp_path / "mlx_models" / "small" / "model.safetensors").unlink()
    (tmp_path / "mlx_models" / "small" / "model.safetensors.index.json").unlink()
    assert find_causal("small") is None


def test_models_in_the_hubs_cache(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    repository = tmp_path / "cache" / "models--org--small"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    causal_folders.write(repository / "snapshots" / ("0" * 40))
    assert find_causal("org/small") == repository / "snapshots" / ("0" * 40)
    assert find_causal("org/other") is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (dict(model_type="no_such"), "no_such not supported"),
        (dict(model_type="mamba"), "mlx-lm cannot load it"),
        (dict(hidden_size=48), "mlx-lm cannot load it"),
        (dict(model_file="x.py"), "mlx-lm cannot load it"),
    ],
)
def test_what_mlx_lm_cannot_load_is_one_line(change, why, tmp_path, capsys):
    causal_folders.write(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(InputError, match=why) as raised:
        causal_loading.load(tmp_path)
    assert "\n" not in str(raised.value) and str(tmp_path) in str(raised.value)
    assert capsys.readouterr().out == ""


def test_a_damaged_file_is_one_line(tmp_path):
    causal_folders.write(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InputError, match="mlx-lm cannot load it"):
        causal_loading.load(tmp_path)


def test_without_mlx_lm_the_error_says_what_to_install(tmp_path, monkeypatch):
    causal_folders.write(tmp_path)
    monkeypatch.setitem(sys.modules, "mlx_lm.utils", None)
    with pytest.raises(InputError, match=r"pip install -r requirements-lm\.txt"):
        causal_loading.load(tmp_path)


def test_the_limit_of_open_files_is_not_lowered_and_nothing_heavy_is_imported():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    program = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({min(soft, 5000)}, {hard}))
before = resource.getrlimit(resource.RLIMIT_NOFILE)
from families import causal, causal_loading
assert not {{"mlx_lm", "transformers", "torch", "huggingface_hub"}} & sys.modules.keys()
causal_loading._mlx_lm()
assert "mlx_lm" in sys.modules
assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("raw", "most"),
    [
        (dict(max_position_embeddings=4096), 4096),
        (dict(text_config=dict(max_position_embeddings=8192)), 8192),
        (dict(n_positions=1024), 1024),
        (dict(vocab_size=3), None),
        (
            dict(
                max_position_embeddings=40960,
                rope_scaling=dict(
                    rope_type="yarn", factor=4.0, original_max_position_embeddings=32768
                ),
            ),
            131072,
        ),
    ],
)
def test_context_limits(raw, most):
    assert causal_loading.max_positions(raw) == most


def test_conversion_goes_through_mlx_lm(tmp_path, capsys):
    causal_folders.write(tmp_path / "hub", hidden_size=64)
    output = convert_with_mlx_lm(
        str(tmp_path / "hub"), tmp_path / "out", "float32", Quantization(bits=8, group_size=32)
    )
    assert is_causal(output)
    assert capsys.readouterr().out == ""
    model, tokenizer = causal_loading.load(output)
    assert model.model.model.layers[0].mlp.up_proj.bits == 8
    assert model.config.eos_token_ids == (1, 5) and tokenizer.get_vocab_size() <= 320


def test_what_cannot_be_decoded_is_not_converted(tmp_path):
    causal_folders.write(tmp_path / "hub", "mamba")
    with pytest.raises(InputError, match="mamba cannot be decoded here"):
        convert_with_mlx_lm(str(tmp_path / "hub"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ranks_share_a_model(tmp_path):
    """Real processes, each with its part of the heads, write what one alone does."""
    causal_folders.write(tmp_path, num_hidden_layers=2)
    launch(2, Path(__file__).parent / "helpers" / "causal_ranks.py", tmp_path, cwd=ROOT)
    model, _ = causal_loading.load(tmp_path)
    rows = decode_with(model, None, prompts(3, 9), 2, num_draft=0, max_tokens=5)
    expected = dict(texts=[row.generated for row in rows], heads=2)
    assert model.model.model.layers[0].self_attn.n_heads == 4
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == expected


def test_what_has_no_shards_is_refused():
    with pytest.raises(InputError, match="cannot split a gpt2 model among ranks"):
        causal_loading._shard(build("gpt2"), dict(model_type="gpt2"), None)
