"""A checkpoint's tokenizer at conversion: its files, and how transformers reads them."""

import os
import shutil
from pathlib import Path

from tokenizers import Tokenizer

from checkpoints.tokenizer import FILE
from errors import InputError

SOURCES = (  # of a checkpoint, those that say something about its tokenizer
    FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "target.spm",
    "vocab.json",
    "target_vocab.json",
    "merges.txt",
)


def copy_sources(folder: Path, output: Path) -> list[str]:
    """Copy the tokenizer's files that there are; their names."""
    found = [name for name in SOURCES if (folder / name).exists()]
    for name in found:
        shutil.copyfile(folder / name, output / name)
    return found


def from_transformers(kind: str, folder: Path) -> Tokenizer:
    """The tokenizer that a class of transformers makes of a folder's files."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that there is no PyTorch
    import transformers

    try:
        return getattr(transformers, kind).from_pretrained(folder).backend_tokenizer
    except (ValueError, OSError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"{folder}: transformers cannot read the tokenizer: {reason}") from None


def save(tokenizer: Tokenizer, output: Path) -> None:
    """Write the converted folder's tokenizer.json."""
    # Its own save makes a full disk an exception of no class.
    (output / FILE).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
