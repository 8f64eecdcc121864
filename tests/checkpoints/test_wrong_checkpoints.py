"""Checkpoints that cannot be converted are named, in one line."""

import json
import time
from itertools import chain

import pytest
import torch
from helpers import checkpoints
from helpers.pairs import RAW
from safetensors.torch import load_file, save_file
from transformers.models.auto import modeling_auto

from decoder import load
from speculative.common.errors import InputError
from speculative.models.conversion import convert
from speculative.models.registry import FAMILIES, check_head


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("model.bin", "is CTranslate2's"),
        ("checkpoint-1500", "no weights but a Trainer's folders: use .*/checkpoint-1500$"),
        ("model-Q4.gguf", "is GGUF"),
    ],
)
def test_formats_of_other_projects_are_named(tmp_path, file, message):
    (tmp_path / file).write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "checkpoint-500").mkdir()
    for model in (tmp_path, *tmp_path.glob("*.gguf")):
        with pytest.raises(InputError, match=message):
            convert(str(model), tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "config.json: no such file"),
        (lambda f: checkpoints.edit(f, model_type="bert"), "a bert model; there are t5, mt5"),
        (
            lambda f: checkpoints.edit(f, architectures=["T5EncoderModel"]),
            "a T5EncoderModel is for other tasks: it cannot generate text",
        ),
        (lambda f: (f / "spiece.model").unlink(), "it has no tokenizer.json and no spiece.model"),
        (lambda f: (f / "spiece.model").write_bytes(b"x"), "spiece.model: not a tokenizer: "),
    ],
)
def test_wrong_checkpoints_are_named(folder, tmp_path, change, message):
    change(folder)
    with pytest.raises(InputError, match=message) as caught:
        convert(str(folder), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_every_model_for_another_task_is_refused():
    tasks = "SEQUENCE TOKEN AUDIO".split()
    others = [f"MODEL_FOR_{task}_CLASSIFICATION_MAPPING_NAMES" for task in tasks]
    others += [
        "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
        "MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES",
    ]
    listed = [vars(modeling_auto)[name].items() for name in others]
    refused = [name for kind, name in chain(*listed) if kind in FAMILIES]
    assert len(refused) > 20
    for name in refused:
        with pytest.raises(InputError, match=f"a {name} is for other tasks"):
            check_head({"architectures": [name]})
    for name in chain(*(raw["architectures"] for raw in RAW.values() if "architectures" in raw)):
        check_head({"architectures": [name]})


# With these MLX would read outside a table, or not come to an end.
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_start_token_id": 10**6}, "is 1000000, but vocab_size is only 1024"),
        ({"num_layers": 20_000}, "num_layers is 20000, not a whole number from 1 to 1024"),
    ],
)
def test_a_config_that_cannot_be_is_refused_when_converted_and_when_loaded(
    folder, tmp_path, changes, message
):
    output = convert(str(folder), tmp_path / "out")
    for place, use in (
        (folder, lambda: convert(str(folder), tmp_path / "no")),
        (output, lambda: load(output)),
    ):
        checkpoints.edit(place, **changes)
        started = time.process_time()
        with pytest.raises(InputError, match=message) as caught:
            use()
        assert str(place) in str(caught.value)
        assert time.process_time() - started < 5
    assert not (tmp_path / "no").exists()


def test_more_pieces_than_rows_are_refused_when_converted_and_when_loaded(folder, tmp_path):
    output = convert(str(folder), tmp_path / "out")  # as many pieces as rows
    few = checkpoints.make_folder(tmp_path / "few", "t5", vocab_size=1023)
    with pytest.raises(
        InputError, match="token 1023, but the embedding has only 1023 rows"
    ) as caught:
        convert(str(few), tmp_path / "no")
    assert str(few) in str(caught.value)
    tokenizer = json.loads((output / "tokenizer.json").read_text())
    framing = tokenizer["post_processor"]["special_tokens"]["</s>"]
    for change in (
        lambda: framing.update(ids=[10**6]),
        lambda: framing.update(ids=[1]) or tokenizer["model"]["vocab"].append(["new", -9.0]),
    ):
        change()
        (output / "tokenizer.json").write_text(json.dumps(tokenizer))
        with pytest.raises(InputError, match=r"tokenizer.json: the tokenizer has the token 10"):
            load(output)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("decoder.final_layer_norm.weight", None, "Missing 1 parameters: decoder.norm.weight"),
        ("shared.weight", None, "no shared.weight: not a T5-type model"),
        ("shared.weight", (1024, 25), r"shape \(1024, 24\) but received shape \(1024, 25\)"),
        ("encoder.block.2.layer.1.layer_norm.weight", (24,), "not in model: encoder.layers.2"),
        ("x.lora_A.weight", (8, 24), "x.lora_A.weight is PEFT's: merge_and_unload"),
        ("base_model.model.x", (24,), "base_model.model.x is PEFT's: merge_and_unload"),
    ],
)
def test_wrong_weights_are_named(folder, tmp_path, name, shape, message):
    state = load_file(folder / "model.safetensors")
    state.pop(name, None)
    state |= {name: torch.zeros(shape)} if shape else {}
    save_file(state, folder / "model.safetensors")
    with pytest.raises(InputError, match=message) as caught:
        convert(str(folder), tmp_path / "out")
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)
    assert {p.name for p in tmp_path.iterdir()} == {"checkpoint", ".out.lock"}
