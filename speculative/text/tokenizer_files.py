"""A checkpoint's tokenizer files, at conversion, and reading them with transformers."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from speculative.checkpoints.folder import TOKENIZER_FILES, read_json
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.text.languages import Languages
from speculative.text.tokenizer import FILE, load_tokenizer, tokenizer_errors

_SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model")
BPE = 2  # a type of SentencePiece's models
_NORMAL, _USER_DEFINED = 1, 4  # types of its pieces


def copy_sources(folder: Path, output: Path) -> list[str]:
    """Copy the tokenizer files that exist; returns their names."""
    files = [name for name in TOKENIZER_FILES if (folder / name).exists()]
    for name in files:
        shutil.copyfile(folder / name, output / name)
    return files


def check_files(folder: Path, names: Iterable[str]) -> None:
    """InputError if the folder lacks one of these files of a tokenizer."""
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise InputError(f"{folder}: no tokenizer: it has no {' and no '.join(missing)}")


def settings_of(folder: Path) -> dict:
    """The tokenizer_config.json, {} if there is none."""
    file = folder / "tokenizer_config.json"
    return read_json(file) if file.exists() else {}


def class_of(folder: Path) -> str:
    """The class of transformers that a checkpoint names for its tokenizer; "" if it names none."""
    own, general = settings_of(folder), read_json(folder / "config.json")
    named = own.get("tokenizer_class") or general.get("tokenizer_class") or ""
    return str(named).removesuffix("Fast")


def added_tokens(folder: Path) -> dict[int, AddedToken]:
    """The tokens that were added to a tokenizer without a tokenizer.json, in the order of their ids."""
    old = folder / "added_tokens.json"
    listed = settings_of(folder).get("added_tokens_decoder")
    tokens = {i: {"content": t} for t, i in (read_json(old) if old.exists() else {}).items()}
    tokens |= {int(i): token for i, token in (listed or {}).items()}
    return {i: AddedToken(**tokens[i] | {"normalized": False}) for i in sorted(tokens)}


def _vocabulary(kind: str, folder: Path) -> list[str]:
    """The files with the vocabulary that a transformers class reads from a folder."""
    import transformers

    if kind == "AutoTokenizer":  # which imports PyTorch
        from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

        model_type = read_json(folder / "config.json").get("model_type", "")
        kind = class_of(folder) or TOKENIZER_MAPPING_NAMES.get(model_type) or ""
    names = getattr(getattr(transformers, kind, None), "vocab_files_names", {})
    return [names[key] for key in ("vocab_file", "merges_file") if key in names]


def from_transformers(kind: str, folder: Path) -> Tokenizer:
    """The tokenizer that a transformers class reads from a folder. InputError if a file is damaged or missing."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # "PyTorch was not found"
    import transformers

    transformers.logging.set_verbosity_error()
    if not (folder / FILE).exists():  # transformers would take the special tokens for a vocabulary
        needed = _vocabulary(kind, folder)
        if not needed or not all((folder / name).exists() for name in needed):
            check_files(folder, [FILE, *needed])
    for name in _SENTENCEPIECE:  # transformers would take a damaged one for a tiktoken file
        if (folder / name).exists():
            read_model(folder / name)
    files = [name for name in TOKENIZER_FILES if (folder / name).exists()]
    with tokenizer_errors(f"{folder} ({', '.join(files)})"):
        read = getattr(transformers, kind).from_pretrained(folder, trust_remote_code=False)
    if not isinstance(read, transformers.TokenizersBackend):
        raise InputError(f"{folder}: tokenizers of {type(read).__name__} cannot be converted")
    return read.backend_tokenizer


def read_model(path: Path) -> Any:
    from sentencepiece import sentencepiece_model_pb2

    format: Any = sentencepiece_model_pb2
    with tokenizer_errors(str(path)):
        return format.ModelProto.FromString(path.read_bytes())


def scores_of(proto: Any) -> dict[str, float]:
    """The scores of the pieces that a SentencePiece model cuts texts into."""
    return {p.piece: p.score for p in proto.pieces if p.type in (_NORMAL, _USER_DEFINED)}


def bpe(scores: Mapping[str, float], ids: Mapping[str, int], unknown: str, **options) -> Any:
    """SentencePiece joins the pair whose piece scores best: merges in the order of scores."""
    merges = []
    for piece in sorted(scores, key=lambda piece: -scores[piece]):
        cuts = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        merges += [(a, b) for a, b in cuts if a in scores and b in scores]
    return models.BPE(dict(ids), merges, unk_token=unknown, fuse_unk=True, **options)


def as_trained(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """The tokenizer of a SentencePiece model of type BPE as one, if transformers has made it a Unigram one."""
    files = [folder / name for name in _SENTENCEPIECE]
    trained = next((read_model(file) for file in files if file.exists()), None)
    model = json.loads(tokenizer.to_str())["model"]
    if not trained or trained.trainer_spec.model_type != BPE or model["type"] != "Unigram":
        return tokenizer
    ids = {piece: i for i, (piece, _) in enumerate(model["vocab"])}
    unknown = model["vocab"][model["unk_id"]][0]
    options = {"byte_fallback": model["byte_fallback"]}
    whole = [p.piece for p in trained.pieces if p.type == _USER_DEFINED]
    if whole:  # which no merge makes
        longest_first = sorted(map(re.escape, whole), key=len, reverse=True)
        apart = pre_tokenizers.Split(Regex("|".join(longest_first)), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([tokenizer.pre_tokenizer, apart])
        options["ignore_merges"] = True
    tokenizer.model = bpe(scores_of(trained), ids, unknown, **options)
    return tokenizer


def fit_tokenizer(folder: Path, rows: int, name: str = FILE) -> None:
    """Leave out the added tokens and languages that have no row in the embedding. InputError for other such tokens."""
    state = json.loads(load_tokenizer(folder, name=name).to_str())
    added, model = state["added_tokens"], state["model"]
    beyond = [token["content"] for token in added if token["id"] >= rows]
    if beyond:
        state["added_tokens"] = [token for token in added if token["id"] < rows]
        vocab = model["vocab"]
        if isinstance(vocab, list):
            model["vocab"] = [piece for piece in vocab if piece[0] not in beyond]
        else:
            model["vocab"] = {piece: i for piece, i in vocab.items() if piece not in beyond}
        save(Tokenizer.from_str(json.dumps(state)), folder, name)
        few = shorten(" ".join(beyond), 60, placeholder=" ...")
        reporter.note(f"{name}: left out {len(beyond)} tokens without a row in the model: {few}")
        languages = Languages.load(folder, sys.maxsize)
        if languages:
            codes = {c: t for c, t in languages.codes.items() if isinstance(t, str) or t < rows}
            replace(languages, codes=codes).save(folder)
    load_tokenizer(folder, rows, name)


def save(tokenizer: Tokenizer, output: Path, name: str = FILE) -> None:
    """Write the converted folder's tokenizer.json."""
    # Its own save raises a bare Exception if the disk is full.
    (output / name).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")


def write_tokenizer(folder: Path, output: Path) -> None:
    """Copy the tokenizer's files, and write the tokenizer.json that transformers makes of them."""
    copy_sources(folder, output)
    save(from_transformers("AutoTokenizer", folder), output)
