"""A checkpoint's tokenizer files, at conversion, and reading them with transformers."""

import os
import shutil
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from checkpoints.folder import TOKENIZER_FILES, read_json
from errors import InputError
from text.tokenizer import FILE, readable


def copy_sources(folder: Path, output: Path) -> list[str]:
    """Copy the tokenizer files that exist; returns their names."""
    files = [name for name in TOKENIZER_FILES if (folder / name).exists()]
    for name in files:
        shutil.copyfile(folder / name, output / name)
    return files


def settings_of(folder: Path) -> dict:
    """The tokenizer_config.json, {} if there is none."""
    file = folder / "tokenizer_config.json"
    return read_json(file) if file.exists() else {}


def added_tokens(folder: Path) -> dict[int, AddedToken]:
    """The tokens that were added to a tokenizer without a tokenizer.json, in the order of their ids."""
    old = folder / "added_tokens.json"
    listed = settings_of(folder).get("added_tokens_decoder")
    tokens = {i: {"content": t} for t, i in (read_json(old) if old.exists() else {}).items()}
    tokens |= {int(i): token for i, token in (listed or {}).items()}
    return {i: AddedToken(**tokens[i] | {"normalized": False}) for i in sorted(tokens)}


def from_transformers(kind: str, folder: Path) -> Tokenizer:
    """The tokenizer that a transformers class reads from a folder's files. InputError, with their names, if one
    is damaged."""
    files = [name for name in TOKENIZER_FILES if (folder / name).exists()]
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # "PyTorch was not found"
    import transformers
    from sentencepiece import SentencePieceProcessor

    transformers.logging.set_verbosity_error()
    for name in files:
        if name.endswith(".model"):  # transformers would take a damaged one for a tiktoken file
            with readable(str(folder / name)):
                SentencePieceProcessor(model_file=str(folder / name))
    with readable(f"{folder} ({', '.join(files)})"):
        return getattr(transformers, kind).from_pretrained(folder).backend_tokenizer


def save(tokenizer: Tokenizer, output: Path, name: str = FILE) -> None:
    """Write the converted folder's tokenizer.json."""
    # Its own save raises a bare Exception if the disk is full.
    (output / name).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")


def write_tokenizer(folder: Path, output: Path) -> None:
    """Copy the tokenizer's files, and write the tokenizer.json that transformers makes of them."""
    if not copy_sources(folder, output):
        raise InputError(f"{folder}: no tokenizer: it has no {FILE}")
    save(from_transformers("AutoTokenizer", folder), output)
