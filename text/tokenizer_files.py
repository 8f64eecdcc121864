"""A checkpoint's tokenizer at conversion: its files, and how transformers reads them."""

import os
import shutil
from pathlib import Path

from tokenizers import Tokenizer

from checkpoints.folder import TOKENIZER_FILES, read_json
from text.tokenizer import FILE, load_tokenizer, readable


def copy_sources(folder: Path, output: Path) -> list[str]:
    """Copy the tokenizer's files that there are; their names."""
    found = [name for name in TOKENIZER_FILES if (folder / name).exists()]
    for name in found:
        shutil.copyfile(folder / name, output / name)
    return found


def from_transformers(kind: str, folder: Path) -> Tokenizer:
    """The tokenizer that a class of transformers makes of a folder's files.

    InputError, which names the file, where one is damaged.
    """
    found = [name for name in TOKENIZER_FILES if (folder / name).exists()]
    for name in found:
        _check_file(folder / name)
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that there is no PyTorch
    import transformers

    with readable(f"{folder} ({', '.join(found)})"):
        return getattr(transformers, kind).from_pretrained(folder).backend_tokenizer


def _check_file(path: Path) -> None:
    """InputError where a file is damaged: transformers would rarely say which, or try others."""
    if path.name == FILE:
        load_tokenizer(path.parent)
    elif path.suffix == ".json":
        read_json(path)
    elif path.suffix == ".model":
        from sentencepiece import SentencePieceProcessor

        with readable(str(path)):
            SentencePieceProcessor(model_file=str(path))


def save(tokenizer: Tokenizer, output: Path, name: str = FILE) -> None:
    """Write the converted folder's tokenizer.json."""
    # Its own save makes a full disk an exception of no class.
    (output / name).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
