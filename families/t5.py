"""T5 and its kin (v1.1, FLAN, mT5, byT5, umT5, UL2, MADLAD-400, Aya): model.py, from and to files."""

from pathlib import Path

from tokenizers import Tokenizer

from checkpoints import names
from checkpoints.config import Config
from checkpoints.folder import read_json
from checkpoints.tensors import Tensor
from errors import InputError
from families import Family
from model import T5
from text.tokenizer import FILE as TOKENIZER
from text.tokenizer import byte_tokenizer, like_sentencepiece, readable
from text.tokenizer_files import copy_sources, from_transformers, save


def rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's tensors under our names, each once: aliases of the embedding are dropped."""
    single = names.one_embedding(tensors, names.T5_EMBEDDINGS, "lm_head.weight", "T5")
    return names.renamed(single, names.T5, "T5")


def write_tokenizer(folder: Path, output: Path) -> None:
    """Copy the tokenizer's files, and write the tokenizer.json that follows from them."""
    save(_tokenizer(folder, copy_sources(folder, output)), output)


def _tokenizer(folder: Path, found: list[str]) -> Tokenizer:
    if "spiece.model" not in found and TOKENIZER not in found:
        configs = [read_json(folder / n) for n in ("config.json", *found) if n.endswith(".json")]
        if any(config.get("tokenizer_class") == "ByT5Tokenizer" for config in configs):
            return byte_tokenizer()
        raise InputError(f"{folder}: no tokenizer: neither {TOKENIZER} nor spiece.model")
    # For umT5 the automatic class reads tokenizer.json only.
    kind = "AutoTokenizer" if TOKENIZER in found else "T5Tokenizer"
    tokenizer = from_transformers(kind, folder)
    with readable(str(folder / found[0])):
        return like_sentencepiece(tokenizer)


FAMILY = Family(
    name="T5",
    config=Config,
    model=T5,
    rename=rename,
    write_tokenizer=write_tokenizer,
    float32=("feed_forward.down.weight",),
    shows_special=True,
)
