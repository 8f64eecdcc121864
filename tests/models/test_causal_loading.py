"""Decoder-only models from files: folders of mlx-community's, chat templates, conversion, ranks."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: requirements-apps.txt")

from helpers import causal_folders
from helpers.causal_models import alone, build, prompts
from helpers.decoding import decode_with
from helpers.rank_program import decode
from helpers.ranks import run_jobs
from helpers.texts import chat_tokens

import convert
import main
from speculative.checkpoints.weights import Quantization
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.drafters.prompt_lookup import PromptLookup
from speculative.models import causal_loading, loading
from speculative.models.mlx_lm_folders import find_mlx_lm_folder, is_mlx_lm_folder

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LONG = dict(factor=4.0, original_max_position_embeddings=32768)


def test_a_folder_of_mlx_communitys(tmp_path):
    lm = causal_folders.write(tmp_path / "some-llama")
    assert is_mlx_lm_folder(tmp_path / "some-llama")
    model, tokenizer = causal_loading.load("x", tmp_path / "some-llama")
    config = model.config
    assert (config.vocab_size, config.eos_token_ids, config.pad_token_id) == (320, (1, 5), 0)
    assert config.max_positions == 256
    ids = tokenizer.encode("the cat sat").ids
    own = model.text.chat.apply.__self__  # transformers' tokenizer
    assert ids == own.encode("the cat sat") and model.text.tokenizer is tokenizer
    assert tokenizer.decode(ids) == "the cat sat"
    prompted = [tokenizer.encode(text).ids for text in causal_folders.TEXTS]
    rows = decode_with(model, PromptLookup(), prompted, 2, num_draft=3, max_tokens=8)
    for row, prompt in zip(rows, prompted, strict=True):
        text = alone(lm, prompt, 8)
        ends = [i for i, token in enumerate(text) if token in (1, 5)]
        assert row.generated == (text[: ends[0] + 1] if ends else text)

    def prompted_with(system, template=None, ignore=False) -> str:
        prompt_format = model.text.prompt_format(system, template, ignore)
        tokens = model.text.encode(prompt_format.prompt("hi")).tokens
        return tokenizer.decode(tokens, skip_special_tokens=False)

    assert prompted_with(None) == "<user>hi<end><assistant>"
    assert prompted_with("be brief") == "<system>be brief<end><user>hi<end><assistant>"
    with pytest.raises(InputError, match="need a chat template, and none is in use"):
        prompted_with("be brief", ignore=True)
    chat = model.text.chat.apply.__self__
    chat.chat_template += "{{ 'hm' if thinks }}"
    assert prompted_with(None, {"thinks": True}).endswith("hm")
    chat.chat_template = "<user>"
    with pytest.warns(UserWarning, match="the chat template leaves out or changes the user's text"):
        prompted_with(None)


def test_which_folders_are_meant(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.chdir(tmp_path)
    small = tmp_path / "mlx_models" / "small"
    causal_folders.write(small)
    assert (
        find_mlx_lm_folder("small") == find_mlx_lm_folder("org/small") == Path("mlx_models/small")
    )
    assert find_mlx_lm_folder(str(small)) == small
    assert find_mlx_lm_folder("another") is None
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    repository = tmp_path / "cache" / "models--org--other"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    shutil.copytree(small, repository / "snapshots" / ("0" * 40))
    assert find_mlx_lm_folder("org/other") == repository / "snapshots" / ("0" * 40)
    assert find_mlx_lm_folder("org/none") is None
    config = small / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"t5"'))
    assert find_mlx_lm_folder("small") is None
    config.write_text(config.read_text().replace('"t5"', '"llama"'))
    for file in small.glob("model.safetensors*"):
        file.unlink()
    assert find_mlx_lm_folder("small") is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "mlx-lm cannot load it"),  # and a damaged file
        (dict(model_type="no_such"), "no_such not supported"),
        (dict(hidden_size=48), "mlx-lm cannot load it"),
        (dict(model_file="x.py"), "mlx-lm cannot load it"),
    ],
)
def test_what_mlx_lm_cannot_load_is_one_line(change, why, tmp_path, capsys):
    causal_folders.write(tmp_path)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    if not change:
        weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InputError, match=why) as raised:
        causal_loading.load("x", tmp_path)
    assert "\n" not in str(raised.value) and str(tmp_path) in str(raised.value)
    assert capsys.readouterr().out == ""


def test_without_mlx_lm_the_error_says_what_to_install(tmp_path, monkeypatch):
    causal_folders.write(tmp_path)
    monkeypatch.setitem(sys.modules, "mlx_lm.utils", None)
    with pytest.raises(InputError, match=r"pip install -r requirements-apps\.txt"):
        causal_loading.load("x", tmp_path)


def test_nothing_heavy_is_imported_before_it_is_needed():
    heavy = {"mlx_lm", "transformers", "torch", "huggingface_hub"}
    program = f"import sys; from speculative.models import causal, causal_loading; assert not {heavy} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("raw", "most"),
    [
        (dict(max_position_embeddings=4096), 4096),
        (dict(text_config=dict(max_position_embeddings=8192)), 8192),
        (dict(vocab_size=3), None),
        (dict(max_position_embeddings=40960, rope_scaling=dict(LONG, type="yarn")), 131072),
        (dict(max_position_embeddings=131072, rope_parameters=dict(LONG, type="su")), 32768),
    ],
)
def test_context_limits(raw, most):
    assert causal_loading.max_positions(raw) == most


@pytest.mark.usefixtures("cpu")
def test_conversion_goes_through_mlx_lm(tmp_path, capsys):
    causal_folders.write(tmp_path / "hub", hidden_size=64)
    file = tmp_path / "hub" / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    template = {"chat_template": settings.pop("chat_template")}
    file.write_text(json.dumps(settings))
    (tmp_path / "hub" / "chat_template.json").write_text(json.dumps(template))
    quantization = Quantization(bits=8, group_size=32)
    output = convert.convert(
        str(tmp_path / "hub"), tmp_path / "out", "float32", quantization=quantization
    )
    assert is_mlx_lm_folder(output)
    assert capsys.readouterr().out == ""
    model, tokenizer = causal_loading.load("x", output)
    assert model.model.model.layers[0].mlp.up_proj.bits == 8
    tokens = chat_tokens(model, "hi")
    text = tokenizer.decode(tokens, skip_special_tokens=False)
    assert text == "<user>hi<end><assistant>"
    prompted = prompts(3, 12)
    rows = decode_with(model, PromptLookup(), prompted, 3, num_draft=3, max_tokens=5)
    assert [row.generated for row in rows] == [alone(model.model, p, 5) for p in prompted]
    assert model.config.eos_token_ids == (1, 5) and tokenizer.get_vocab_size() <= 320


def train(adapter: str, seed: int, **config) -> None:
    """Write an adapter of the folder `base` as mlx_lm.lora does."""
    import mlx_lm
    from mlx_lm.tuner.utils import linear_to_lora_layers

    parameters = dict(rank=2, scale=5.0, dropout=0.0)
    lm, _ = mlx_lm.load("base")
    linear_to_lora_layers(lm, 2, parameters)
    mx.random.seed(seed)
    weights = [
        (n, mx.random.normal(x.shape)) for n, x in tree_flatten(lm.parameters()) if "lora" in n
    ]
    Path(adapter).mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(f"{adapter}/adapters.safetensors", dict(weights))
    config |= dict(model="base", num_layers=2, lora_parameters=parameters)
    Path(adapter, "adapter_config.json").write_text(json.dumps(config))


@pytest.mark.usefixtures("cpu")
def test_an_adapter_of_mlx_lms_is_fused_again_when_it_has_changed_and_is_never_anothers(
    tmp_path, monkeypatch
):
    """Also of older versions, whose config has no fine_tune_type."""
    import mlx_lm

    monkeypatch.chdir(tmp_path)
    causal_folders.write(Path("base"))
    ids = mx.array([[9, 8, 7]])

    def differs(folder: Path, adapter: str) -> float:
        logits = causal_loading.load("x", folder)[0].model(ids)
        return (logits - mlx_lm.load("base", adapter_path=adapter)[0](ids)).abs().max().item()

    for name, config in (("one/adapters", {"fine_tune_type": "lora"}), ("two/adapters", {})):
        train(name, 1, **config)
        assert differs(loading.find(name, f"{tmp_path}/base"), name) < 1e-4
        shutil.rmtree("mlx_models")
    folder = loading.find("one/adapters", "base")
    assert folder == loading.find("one/adapters", "base") == Path("mlx_models/base-adapters")
    with pytest.raises(
        InputError, match=r"one/adapters of base, not from two/adapters of base; .* base --a"
    ):
        loading.find("two/adapters", "base")
    train("one/adapters", 2)
    assert differs(folder, "one/adapters") > 1e-2
    assert differs(loading.find("one/adapters", "base"), "one/adapters") < 1e-4
    causal_folders.write(Path("base"), noise=0.05)
    assert differs(loading.find("one/adapters", "base"), "one/adapters") < 1e-4


def test_what_cannot_be_decoded_is_not_converted(tmp_path):
    causal_folders.write(tmp_path / "hub", "llama4")
    with pytest.raises(InputError, match="hub: llama4 cannot be decoded here"):
        convert.convert(str(tmp_path / "hub"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ranks_share_a_model(tmp_path):
    """Real processes, each with its part of the heads, write what one alone does."""
    for role, noise in (("target", 0.0), ("draft", 0.05)):
        causal_folders.write(tmp_path / role, noise=noise)
    job = dict(folder=str(tmp_path), ways=["draft"])
    ((first, second),) = run_jobs(2, [job], tmp_path)
    alone = decode(**job)
    assert first.pop("bytes") == second.pop("bytes") < alone.pop("bytes")
    logits = [np.array(found.pop("logits")) for found in (first, second, alone)]
    assert np.abs(logits[:2] - logits[2]).max() < 1e-4
    assert first == second == alone


def test_what_has_no_shards_is_refused():
    with pytest.raises(InputError, match="cannot split a gpt2 model among ranks"):
        causal_loading._shard(build("gpt2"), dict(model_type="gpt2"), None)


def test_the_commands_take_a_decoder_only_pair(tmp_path, monkeypatch, capsys):
    """Converted, in its template, drafted for, looked up, from a file: mlx-lm's own text each time."""
    import mlx_lm

    monkeypatch.chdir(tmp_path)
    causal_folders.write(Path("hub/target"))
    causal_folders.write(Path("hub/draft"), noise=0.05)
    for role in ("target", "draft"):
        convert.convert(f"hub/{role}", dtype="float32")
        with pytest.raises(InputError, match="already exists; --force replaces it"):
            convert.convert(f"hub/{role}")
        convert.convert(f"hub/{role}", dtype="float32", force=True)

    def written(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["main.py", "--model", "target", "-m", "12", *arguments])
        capsys.readouterr()
        main.main()
        return capsys.readouterr().out

    lm, chat = mlx_lm.load("mlx_models/target")
    model, _ = causal_loading.load("x", Path("mlx_models/target"))
    tokens = chat_tokens(model, "the cat sat")
    expected = mlx_lm.generate(lm, chat, tokens, max_tokens=12) + "\n"
    for drafting in (["--num-draft", "0"], ["--draft-model", "draft"], ["--lookup"]):
        assert written("-p", "the cat sat", *drafting) == expected
    monkeypatch.setattr(reporter, "note", lambda line: print(line, file=sys.stderr))
    Path("p.txt").write_text("the cat sat\n" + "the cat " * 300 + "\nthe cat sat\n")
    with pytest.raises(InputError, match="1 of 3 lines have no answer"):
        written("--prompt-file", "p.txt")
    printed, errors = capsys.readouterr()
    assert printed == f"{expected}\n{expected}"
    assert "p.txt, line 2: the prompt has" in errors and "tokens; the model reads" in errors
