"""Folders as mlx-community has them: a small random model, its config.json and its tokenizer's files."""

import importlib
import json
from pathlib import Path

import mlx.nn as nn
from tokenizers import ByteLevelBPETokenizer, Tokenizer

from .causal_models import MORE, arguments, build

TEXTS = ["the cat sat on the mat", "a dog saw the cat and ran", "is it so, or is it not?"]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

# As Qwen's: it knows tools, and a call begins with the model's own mark.
TOOL_TEMPLATE = (
    "{% if tools %}<system>{{ tools|map(attribute='function')|map(attribute='name')|join }}<end>{% endif %}"
    + TEMPLATE.replace(
        "{{ m.content }}",
        """{{ m.content }}{% for c in m.tool_calls or [] %}{% if m.content or not loop.first %}{{ '\\n' }}{% endif %}
{{- '<call>\\n{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments|tojson + '}\\n</call>' }}
{%- endfor %}""",
    )
)


def tokenizer() -> Tokenizer:
    """A byte-level one, with marks for a chat."""
    marks = ["<pad>", "<eos>", "<user>", "<system>", "<assistant>", "<end>"]
    made = ByteLevelBPETokenizer()
    made.train_from_iterator(TEXTS * 5, 320, special_tokens=marks, show_progress=False)
    return made._tokenizer


def write(folder: Path, name: str = "llama", **changes) -> nn.Module:
    """Write a folder; the model."""
    from mlx_lm.utils import save_model

    changes = dict(vocab_size=320) | changes
    model = build(name, **changes)
    module = importlib.import_module(f"mlx_lm.models.{name}")
    config = arguments(module, **MORE.get(name, {}) | changes) | {"eos_token_id": 1}
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder, model)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 5]}')
    write_tokenizer(folder)
    return model


def write_tokenizer(folder: Path) -> None:
    """Write the tokenizer's files."""
    names = dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<eos>", pad_token="<pad>")
    config = names | {"chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer().save(str(folder / "tokenizer.json"))
