"""The tokens in texts, for a draft model that scores only those (speculative/draft_vocabulary.py)."""

import re
from collections.abc import Callable, Collection
from pathlib import Path

from tokenizers import Tokenizer

from common.errors import InputError
from text.memory import Report, load_memory

_BYTE = re.compile("<0x[0-9A-F]{2}>")


def read_tokens(tokenizer: Tokenizer, path: Path, report: Report) -> set[int]:
    """The tokens in a file: in the texts of a translation memory (.jsonl, .tmx, .tsv), else in all lines.
    Errors and `report` as in text.memory.load_memory."""
    if path.suffix.lower() in (".jsonl", ".tmx", ".tsv"):
        texts = [pair.text for pair in load_memory(path, report).pairs]
    else:
        texts = path.read_text(encoding="utf-8-sig", errors="ignore").splitlines()
    tokens = set[int]()
    for text in texts:
        tokens.update(tokenizer.encode(text, add_special_tokens=False).ids)
    if not tokens:
        raise InputError(f"{path} holds no text")
    return tokens


def completion(tokenizer: Tokenizer) -> Callable[[Collection[int]], set[int]]:
    """A function that adds to tokens those that any text in their scripts may need: special tokens, language codes,
    bytes and single characters. A script is approximated by a block of 256 Unicode characters."""
    special = set(tokenizer.get_added_tokens_decoder())
    pieces = {i: piece for piece, i in tokenizer.get_vocab(with_added_tokens=False).items()}
    special |= {i for i, piece in pieces.items() if _BYTE.fullmatch(piece)}
    letters = {i: p.lstrip("▁Ġ") or "a" for i, p in pieces.items() if len(p) <= 2}
    blocks = {i: ord(p) >> 8 for i, p in letters.items() if len(p) == 1}

    def complete(tokens: Collection[int]) -> set[int]:
        scripts = {0, 1}  # Latin; a byte-level tokenizer's bytes
        scripts |= {ord(c) >> 8 for token in tokens for c in pieces.get(token, "")}
        return special | set(tokens) | {i for i, block in blocks.items() if block in scripts}

    return complete
