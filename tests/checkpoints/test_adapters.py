"""Adapters of PEFT, merged on conversion, against PEFT's own forward pass."""

import json
import os
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import torch
import transformers
from helpers import checkpoints, whisper_models
from helpers.decoding import decode_with
from helpers.models import assert_close, cached_logits, reference_logits, reference_texts
from helpers.pairs import RAW, both, inputs, known
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

import serve
from speculative.checkpoints.adapters import merge
from speculative.checkpoints.folder import open_checkpoint, read_json
from speculative.checkpoints.tensors import to_mlx
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.models.conversion import convert
from speculative.models.loading import find, load
from speculative.models.registry import build, family_of
from speculative.models.whisper import SoundPrompt

Q = ["q", "q_proj"]
OPTIONS = {
    "all-linear": dict(target_modules="all-linear", lora_alpha=1),
    "a pattern": dict(target_modules=r".*decoder.*\.(k|o|k_proj|o_proj|out_proj)"),
    "patterns": dict(
        target_modules=["q", "v", "q_proj", "v_proj"],
        rank_pattern={"q": 3, "q_proj": 3},
        alpha_pattern={"v": 5, r"layers\.0\..*v_proj": 5},
    ),
    "rslora": dict(target_modules=Q, use_rslora=True),
    "fan in, fan out": dict(target_modules=Q, fan_in_fan_out=True),
    "biases": dict(target_modules=Q, bias="all"),
    "layers' biases": dict(target_modules=Q, bias="lora_only"),
    "a head": dict(target_modules=Q, modules_to_save=["lm_head"]),
    "embeddings": dict(target_modules=Q, modules_to_save=["embed_tokens", "lm_head"]),
    "low-rank embeddings": dict(target_modules=[*Q, "embed_tokens"]),
    "tokens": dict(target_modules=Q, trainable_token_indices=[5, 9, 7]),
}
# Every option with every seventh variant, and so with one of T5 and some of the others
CASES = [
    pytest.param(variant, option, marks=pytest.mark.slow if i % 8 else ())
    for i, variant in enumerate(RAW)
    for j, option in enumerate(OPTIONS)
    if (i + j) % 7 == 0
]


# What may be saved whole of a vocabulary that has grown; nothing in the first
SAVED: list[list[str]] = [
    [],
    ["embed_tokens"],
    ["embed_tokens", "lm_head"],
    ["lm_head"],
    ["shared"],
]
SAVED += [["encoder.embed_tokens"], ["decoder.embed_tokens", "lm_head"], ["shared", "lm_head"]]
FAMILIES = "t5 mt5 umt5 bart mbart m2m marian pegasus".split()
GROWN = [
    pytest.param(variant, saved, marks=pytest.mark.slow if (i + j) % 8 else ())
    for i, variant in enumerate([*FAMILIES, "marian, own vocabularies"])
    for j, saved in enumerate(SAVED)
    if (i + j) % 3 == 0 and (variant in FAMILIES or "shared" not in saved)
]
GROWN += [
    pytest.param("t5gemma", SAVED[2], marks=pytest.mark.slow)
]  # else PEFT leaves out new rows


def tuned(reference, folder: Path, base: str = "", **options):
    """PEFT's model of the reference, with random weights in its adapter, which is saved."""
    tuned = get_peft_model(reference, LoraConfig(r=2, **options)).eval()
    tuned.peft_config["default"].base_model_name_or_path = base
    torch.manual_seed(3)
    for weight in tuned.parameters():
        if weight.requires_grad:
            weight.data = torch.randn(weight.shape) * 0.2
    tuned.save_pretrained(folder)
    return tuned


def merged(folder: Path):
    """Our model of the folder's base and adapter, without a conversion."""
    raw = read_json(folder / "base" / "config.json")
    family = family_of(raw)
    tensors, changed = merge(folder / "adapter", open_checkpoint(folder / "base"), raw)
    tensors = family.rename(tensors)
    config = family.config.from_hub(changed, tensors)
    model = build(family.model(config), tensors)
    arrays = {name: np.concatenate(list(tensor.blocks())) for name, tensor in tensors.items()}
    model.load_weights([(name, to_mlx(array)) for name, array in arrays.items()])
    return model


@pytest.mark.parametrize("variant, option", CASES)
def test_logits_are_those_of_peft(variant, option, tmp_path):
    raw = RAW[variant]
    reference, _ = both(raw)
    reference.save_pretrained(tmp_path / "base")
    model = tuned(reference, tmp_path / "adapter", **OPTIONS[option])
    try:
        ours = merged(tmp_path)
    except (
        InputError
    ) as error:  # T5Gemma 2's embedding has a part of its own; tokens of an untied T5
        assert "eoi_embedding" in str(error) or "not of a tied embedding" in str(error)
        return
    given = inputs(ours.config)
    expected = known(reference_logits(model, *given), ours.config)
    logits = known(cached_logits(ours, *given, 7), ours.config)
    assert np.abs(logits - expected).max() <= 1e-3 * np.abs(expected).max()


@pytest.fixture
def t5(tmp_path, monkeypatch):
    """A T5's checkpoint and an adapter of it, in the current folder."""
    monkeypatch.chdir(tmp_path)
    checkpoints.make_folder(Path("base"), "t5")
    reference = transformers.T5ForConditionalGeneration.from_pretrained("base")
    return tuned(reference, Path("adapter"), "base", target_modules="all-linear", lora_alpha=1)


def test_an_adapter_is_converted_on_first_use_and_again_when_it_or_its_base_changes(t5):
    folder = find("adapter")
    model, _ = load("adapter")
    given = inputs(model.config)
    convert("adapter", folder, "float32", force=True)
    logits = cached_logits(load("adapter")[0], *given, 7)
    assert_close(logits, reference_logits(t5, *given))
    for file in ("base/model.safetensors", "adapter/adapter_model.safetensors"):
        before = (folder / "weights.npz").stat().st_mtime_ns
        assert find("adapter") == folder
        assert (folder / "weights.npz").stat().st_mtime_ns == before
        os.utime(file)
        find("adapter")
        assert (folder / "weights.npz").stat().st_mtime_ns > before
    shutil.copytree("base", "other")
    assert find("adapter", "other") == Path("mlx_models/other-adapter")
    shutil.copytree("other", "elsewhere/other")
    shutil.copytree("adapter", "elsewhere/adapter")
    for adapter, base in (("elsewhere/adapter", "other"), ("adapter", "elsewhere/other")):
        told = f"converted from adapter of other, not from {adapter} of {base}; to convert that: python convert.py"
        with pytest.raises(
            InputError, match=f"{told} --model {base} --adapter-path {adapter} --mlx"
        ):
            find(adapter, base)


def test_an_adapter_beside_a_whole_model_is_used_if_it_is_named_as_one(t5, monkeypatch):
    for file in ("config.json", "model.safetensors", "spiece.model", "tokenizer_config.json"):
        shutil.copy(f"base/{file}", "adapter")
    notes: list[str] = []
    monkeypatch.setattr(reporter, "note", notes.append)
    alone, merged = find("adapter"), find("adapter", "base")
    assert any("the whole model is used, not the adapter beside it" in note for note in notes)
    given = inputs(load(alone)[0].config)
    convert("adapter", merged, "float32", force=True, base="base")
    assert_close(cached_logits(load(merged)[0], *given, 7), reference_logits(t5, *given))
    with t5.disable_adapter():
        convert("adapter", alone, "float32", force=True)
        assert_close(cached_logits(load(alone)[0], *given, 7), reference_logits(t5, *given))


@pytest.mark.parametrize(
    "model, adapter, names",
    [
        ("adapter", None, "adapter base"),
        ("mlx_models/adapter", None, "mlx_models/adapter adapter base"),
        ("base", "./adapter", "./adapter adapter base mlx_models/base-adapter base-adapter"),
    ],
)
def test_a_server_knows_an_adapters_model_by_each_name_that_its_user_may_give(
    t5, model, adapter, names
):
    find("adapter")
    used = str(find(adapter, model)) if adapter else model
    assert {*names.split(), "default_model"} <= {*serve.model_names(used, (model, adapter))}


def test_bin_files_and_a_tokenizer_of_its_own(t5):
    plain = find("adapter")
    torch.save(load_file("adapter/adapter_model.safetensors"), "adapter/adapter_model.bin")
    Path("adapter/adapter_model.safetensors").unlink()
    tokenizer = (plain / "tokenizer.json").read_text(encoding="utf-8")
    Path("adapter/tokenizer.json").write_text(tokenizer.replace('"▁en"', '"▁own"'))
    Path("adapter/tokenizer_config.json").write_text('{"tokenizer_class": "T5TokenizerFast"}')
    before = (plain / "weights.npz").read_bytes()
    assert load("adapter")[1].token_to_id("▁own")
    assert (plain / "weights.npz").read_bytes() == before


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(peft_type="IA3"), "only PEFT's LoRA"),
        (dict(peft_type="ADALORA"), "only PEFT's LoRA"),
        (dict(use_dora=True), "use_dora"),
        (dict(init_lora_weights="pissa"), "init_lora_weights=pissa"),
        (
            dict(base_model_name_or_path=None),
            "adapter names no base: --model BASE --adapter-path adapter",
        ),
        (
            dict(base_model_name_or_path="other"),
            "other: .* changes .30, 24., but the base has .30, 32.",
        ),
        (dict(base_model_name_or_path="lost"), "adapter of lost: .*--adapter-path"),
    ],
)
def test_what_cannot_be_merged_is_refused_in_a_line(t5, changes, message):
    checkpoints.make_folder(Path("other"), "t5", d_model=32)
    config = Path("adapter/adapter_config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with pytest.raises(InputError, match=message):
        find("adapter")


@pytest.mark.parametrize("variant, saved", GROWN)
def test_a_vocabulary_that_has_grown_from_a_base_that_peft_finds(variant, saved, tmp_path):
    """As of an NLLB for which languages were added. Logits and greedy text are those of PEFT's merged model."""
    raw = RAW[variant]
    reference, _ = both(raw)
    reference.save_pretrained(tmp_path / "base")
    size = len(reference.get_input_embeddings().weight) + 3
    reference.resize_token_embeddings(size)
    base = str(tmp_path / "base")
    model = tuned(reference, tmp_path / "adapter", base, target_modules=Q, modules_to_save=saved)
    model = model.merge_and_unload()
    ours = merged(tmp_path)
    config = ours.config
    assert ours.source_vocab_size == size
    given = inputs(config)
    expected = known(reference_logits(model, *given), config)
    assert_close(known(cached_logits(ours, *given, 7), config), expected)
    source = given[0][:1].tolist()
    settings = dict(forced_eos_token_id=None, forced_bos_token_id=None)
    if variant.startswith("marian"):
        settings["bad_words_ids"] = [[config.pad_token_id]]
    text = reference_texts(model, source, 12, [*config.eos_token_ids], **settings)
    rows = decode_with(ours, None, source, 1, max_tokens=12, num_draft=0)
    assert [row.generated for row in rows] == text


def test_an_adapter_that_lacks_new_tokens_is_refused_in_a_line(tmp_path):
    """PEFT saves untrained embeddings only if it finds the base."""
    reference, _ = both(RAW["t5"])
    reference.save_pretrained(tmp_path / "base")
    reference.resize_token_embeddings(64)
    tuned(reference, tmp_path / "adapter", target_modules=Q, modules_to_save=["lm_head"])
    with pytest.raises(
        InputError, match=r"embeddings of 61 and 64 tokens: .*embedding_layers=True"
    ):
        merged(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        dict(target_modules="all-linear", lora_alpha=1),
        dict(target_modules=["conv1", "conv2", "q_proj"], lora_alpha=1),
        dict(target_modules=Q, modules_to_save=["proj_out"]),
        dict(target_modules=Q, modules_to_save=["conv1", "embed_tokens", "proj_out"]),
    ],
)
def test_whispers_adapter_transcribes_as_peft_does(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reference = whisper_models.reference_model()
    whisper_models.write_hub(reference, Path("base"))
    model = tuned(reference, Path("adapter"), "base", **options).merge_and_unload()
    convert("adapter", dtype="float32")
    ours, _ = load("adapter")
    sound = np.random.default_rng(0).normal(size=(1, 60, 80)).astype(np.float32)
    tokens = np.array([[whisper_models.END + 1, 3, 9, 4]])
    with torch.no_grad():
        features = torch.tensor(sound).transpose(1, 2)
        expected = model(features, decoder_input_ids=torch.tensor(tokens)).logits.numpy()
    logits, _ = ours.attention([SoundPrompt(sound[0])], mx.array(tokens), {0: [1]})
    assert_close(np.array(logits), expected)
