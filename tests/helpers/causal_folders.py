"""Folders as mlx-community has them: a small random model, its config.json and its tokenizer's files."""

import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from tokenizers import decoders as decoding

from .causal_models import MORE, arguments, build

TEXTS = ["the cat sat on the mat", "a dog saw the cat and ran", "is it so, or is it not?"]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer(vocab_size: int = 320) -> Tokenizer:
    """A byte-level one, with marks for a chat."""
    marks = ["<pad>", "<eos>", "<user>", "<system>", "<assistant>", "<end>"]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoding.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=marks, initial_alphabet=letters, show_progress=False
    )
    made.train_from_iterator(TEXTS * 5, trainer)
    return made


def write(folder: Path, name: str = "llama", bits: int = 0, **changes) -> nn.Module:
    """Write a folder, quantized with `bits`; the model."""
    import importlib

    from mlx_lm.utils import save_model

    changes = dict(vocab_size=320) | changes
    model = build(name, **changes)
    module = importlib.import_module(f"mlx_lm.models.{name}")
    config = arguments(module, **MORE.get(name, {}) | changes) | {"eos_token_id": 1}
    if bits:
        nn.quantize(model, group_size=32, bits=bits)
        config["quantization"] = dict(group_size=32, bits=bits)
    mx.eval(model.parameters())
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder, model)
    settings = {"config.json": config, "generation_config.json": {"eos_token_id": [1, 5]}}
    for file, content in settings.items():
        (folder / file).write_text(json.dumps(content))
    write_tokenizer(folder)
    return model


def write_tokenizer(folder: Path) -> None:
    """Write the tokenizer's files."""
    names = dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<eos>", pad_token="<pad>")
    config = names | {"chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer().save(str(folder / "tokenizer.json"))
