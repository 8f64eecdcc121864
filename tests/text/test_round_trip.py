"""Every family's tokenizers: what a model has written is read again as the same tokens, and no vocabulary may be missing."""

import json
import re
import shutil

import pytest
import transformers
from helpers import opt_checkpoints, t5gemma_checkpoints
from helpers.bart_tokenizers import SENTENCES
from helpers.programs import DEMO
from sentencepiece import SentencePieceProcessor
from tokenizers import BertWordPieceTokenizer

from speculative.common.errors import InputError
from speculative.models.registry import FAMILIES, family_of
from speculative.text.languages import Languages
from speculative.text.rows import TextStream
from speculative.text.tokenizer import load_tokenizer

# The tokenizers of each model_type's checkpoints: those of bart_folders, or the class that is named for them
NAMES = {
    "t5": ["T5Tokenizer", "BPE", "BertTokenizer", "RobertaTokenizer", "ByT5Tokenizer"],
    "mt5": ["MT5Tokenizer", "BPE"],
    "umt5": ["T5Tokenizer", "BPE"],
    "t5gemma": ["GemmaTokenizer"],
    "t5gemma2": ["GemmaTokenizer"],
    "opt": ["GPT2Tokenizer"],
    "bart": ["bart", "BertTokenizer"],
    "mbart": ["mbart", "mbart-50"],
    "m2m_100": ["m2m", "nllb"],
    "marian": ["marian", "marian, codes", "marian, two"],
    "pegasus": ["pegasus"],
    "whisper": ["WhisperTokenizer"],
}
TEXTS = [*SENTENCES.values()]


def write_files(name, folder, models) -> None:
    """The files of a tokenizer of this class, as the hub has them."""
    match name:
        case "T5Tokenizer" | "MT5Tokenizer" | "BPE":
            model = models["t5, bpe" if name == "BPE" else "pegasus"]
            (folder / "spiece.model").write_bytes(model)
        case "BertTokenizer":
            trained = BertWordPieceTokenizer(lowercase=False)
            trained.train_from_iterator(TEXTS * 3, 500, show_progress=False)
            trained.save_model(str(folder))
        case "GemmaTokenizer":
            t5gemma_checkpoints.save_tokenizer(folder)
        case "GPT2Tokenizer" | "RobertaTokenizer":
            opt_checkpoints.write_bpe(folder)
        case "WhisperTokenizer":
            shutil.copy(DEMO / "speech" / "target" / "tokenizer.json", folder)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [(k, name) for k in FAMILIES for name in NAMES[k]])
def test_a_text_is_read_as_it_was_written(bart_folders, spm_models, tmp_path, kind, name):
    """As transformers writes it, or SentencePiece where that has no class for a BPE model; unknown characters, which no
    text shows, aside. And without one of the files transformers would take the special tokens for a vocabulary."""
    folder, output = tmp_path / "hub", tmp_path / "out"
    output.mkdir()
    if name in bart_folders:
        shutil.copytree(bart_folders[name][0], folder)
    else:
        folder.mkdir()
        write_files(name, folder, spm_models)
        named = {"tokenizer_class": name} if name != "BPE" else {}
        (folder / "tokenizer_config.json").write_text(json.dumps(named | {"do_lower_case": False}))
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    family_of({"model_type": kind}).write_tokenizer(folder, output)
    ours, languages = load_tokenizer(output), Languages.load(output, 10**6)
    special = {i for i, token in ours.get_added_tokens_decoder().items() if token.special}
    special |= {*languages.codes.values()} if languages else set()
    reader = "T5Tokenizer" if name in ("T5Tokenizer", "MT5Tokenizer", "BPE") else "AutoTokenizer"
    reference = getattr(transformers, reader).from_pretrained(folder)
    for text in TEXTS:
        # The other families' tokenizers do not differ for targets.
        tokens = reference(**{"text_target" if kind == "marian" else "text": text}).input_ids
        if name == "BPE":
            tokens = SentencePieceProcessor(model_file=str(folder / "spiece.model")).encode(text)
        written = [i for i in tokens if i not in special]
        stream = TextStream(ours, special)
        shown = stream.push(written) + stream.finish()
        assert shown == reference.decode(written, clean_up_tokenization_spaces=False)
        assert ours.encode(shown, add_special_tokens=False).ids == written != []
    files = {path.name for path in folder.iterdir()} - {"config.json", "special_tokens_map.json"}
    for file in {"tokenizer.json"} & files or files - {"tokenizer_config.json"}:
        (folder / file).rename(tmp_path / "away")
        with pytest.raises(InputError, match=re.escape(file)):
            family_of({"model_type": kind}).write_tokenizer(folder, output)
        (tmp_path / "away").rename(folder / file)
