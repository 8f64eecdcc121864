"""Folders of tokenizers as the hub has them for BART's family, their vocabularies small and trained here."""

import io
import json
import random
from pathlib import Path

import sentencepiece
import transformers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import ByteLevelBPETokenizer, Tokenizer

from demo.training.tasks import training_example
from helpers import bart_checkpoints, checkpoints
from helpers.programs import ROOT
from speculative.models.bart_tokenizer import write_tokenizer
from speculative.text.tokenizer import FILE, SOURCE_FILE, load_tokenizer

MULTILINGUAL = ["mbart", "mbart-50", "nllb", "m2m", "marian, codes"]
FAMILIES = ["bart", *MULTILINGUAL, "marian", "marian, two", "pegasus"]

SENTENCES = {
    "en_XX": "The quick brown fox jumps over the lazy dog, doesn't it? Yes: 1,234.5 times.",
    "fr_XX": "L'élève était déjà là, où l'on sert « œufs » et crème brûlée à Noël.",
    "de_DE": "Füchse größer als Bären? Übermäßig schöne Grüße aus Köln.",
    "ru_RU": "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "ar_AR": "أهلا بالعالم، كيف حالك اليوم؟",
    "zh_CN": "你好,世界。今天天气很好!",
    "ja_XX": "こんにちは世界、元気ですか。",
}
# Where normalizations differ: ligature, full width, combining accent, emoji, odd spaces, marks, specials.
ODD = [
    "ofﬁce ﬂow",
    "\uff26\uff55\uff4c\uff4c\u3000\uff57\uff49\uff44\uff54\uff48",
    "e\u0301te\u0301",
    "good 👍🏽 day",
    "a\u00a0b",
    "a  b   c",
    "a\tb\nc",
    "▁x",
]
EDGES = ["trailing ", " leading", "both  ", "line\n", "\n\nline"]


def sentencepiece_model(texts: list[str], kind: str, size: int = 700, **settings) -> bytes:
    lines = [line for text in texts for line in text.split("\n") if line.strip()]
    model = io.BytesIO()
    settings |= dict(vocab_size=size, model_type=kind, character_coverage=1.0, minloglevel=2)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, hard_vocab_limit=False, **settings
    )
    return model.getvalue()


def pieces(model: bytes) -> list[str]:
    return [p.piece for p in sentencepiece_model_pb2.ModelProto.FromString(model).pieces]


def _folder(path: Path, kind: str, files: dict, **settings) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"model_type": kind}))
    if settings:
        files = files | {"tokenizer_config.json": settings}
    for name, content in files.items():
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        (path / name).write_bytes(content)
    return path


def train_models() -> dict[str, bytes]:
    """SentencePiece models: of English alone, of French and others, of all."""
    rng = random.Random(0)
    examples = [training_example(rng).prompt for _ in range(300)]  # texts that do not change
    english = [SENTENCES["en_XX"], (ROOT / "LICENSE").read_text(), *examples]
    others = [*SENTENCES.values()] * 3
    return {
        "unigram": sentencepiece_model([*english, *others], "unigram"),
        "bpe": sentencepiece_model([*english, *others], "bpe"),
        "pegasus": sentencepiece_model([*english, *others], "unigram", **PEGASUS_IDS),
        "t5, bpe": sentencepiece_model([*english, *others], "bpe", **PEGASUS_IDS),
        "english": sentencepiece_model(english, "unigram", 500),
        "others": sentencepiece_model(others, "unigram", 400),
    }


def build(root: Path, models: dict[str, bytes]) -> dict[str, tuple[Path, Path]]:
    """By family: the hub's folder, and a folder with what is written for it."""
    two = models["english"], models["others"]
    unigram = {"sentencepiece.bpe.model": models["unigram"]}
    spiece, mbart50 = {"spiece.model": models["pegasus"]}, dict(tokenizer_class="MBart50Tokenizer")
    made = {
        "bart": bart(root / "bart", [*SENTENCES.values()] * 3),
        "mbart": _folder(root / "mbart", "mbart", unigram, tokenizer_class="MBartTokenizer"),
        "mbart-50": _folder(root / "mbart50", "mbart", unigram, src_lang="fr_XX", **mbart50),
        "nllb": nllb(root / "nllb", models["bpe"]),
        "m2m": m2m(root / "m2m", models["bpe"]),
        "marian": marian(root / "marian", *two),
        "marian, codes": marian(root / "codes", *two, (">>fra<<", ">>deu<<")),
        "marian, two": marian(root / "two", *two, separate=True),
        "pegasus": _folder(root / "pegasus", "pegasus", spiece, tokenizer_class="PegasusTokenizer"),
    }
    outputs = {}
    for name, folder in made.items():
        outputs[name] = folder, folder.with_name(f"{folder.name}-converted")
        outputs[name][1].mkdir()
        write_tokenizer(*outputs[name])
    return outputs


def reader(folder: Path) -> Tokenizer:
    """What makes tokens of a source."""
    return load_tokenizer(folder, name=SOURCE_FILE if (folder / SOURCE_FILE).exists() else FILE)


def assert_same(reference, ours, texts) -> None:
    assert [ours.encode(text).ids for text in texts] == [reference(t).input_ids for t in texts]


def bart(path: Path, texts: list[str]) -> Path:
    trained = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trained.train_from_iterator(texts, 700, special_tokens=special, show_progress=False)
    path = _folder(path, "bart", {})
    trained.save_model(str(path))
    vocabulary = json.loads((path / "vocab.json").read_text())
    (path / "vocab.json").write_text(json.dumps(vocabulary | {"<mask>": len(vocabulary)}))
    return path


PEGASUS_IDS = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)


def nllb(path: Path, model: bytes) -> Path:
    from transformers.convert_slow_tokenizer import SentencePieceExtractor
    from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

    path = _folder(path, "m2m_100", {"sentencepiece.bpe.model": model})
    parts = SentencePieceExtractor(str(path / "sentencepiece.bpe.model")).extract(None)
    names = ["<s>", "<pad>", "</s>", "<unk>", *pieces(model)[3:], *FAIRSEQ_LANGUAGE_CODES, "<mask>"]
    vocab, charsmap = {name: i for i, name in enumerate(names)}, parts["_spm_precompiled_charsmap"]
    made = transformers.NllbTokenizer(vocab, parts["merges"], _spm_precompiled_charsmap=charsmap)
    made.save_pretrained(path)
    return path


def m2m(path: Path, model: bytes) -> Path:
    names = ["<s>", "<pad>", "</s>", "<unk>", *reversed(pieces(model)[3:])]
    vocab = {name: i for i, name in enumerate(names)}
    files = {"vocab.json": vocab, "sentencepiece.bpe.model": model}
    return _folder(path, "m2m_100", files, tokenizer_class="M2M100Tokenizer", src_lang="de")


def marian(path: Path, source: bytes, target: bytes, codes=(), separate: bool = False) -> Path:
    """Ids in another order than either model's; padding last. `separate`: a vocabulary for each."""

    def vocab(*models: bytes) -> dict[str, int]:
        learned = sorted({piece for model in models for piece in pieces(model)[3:]})
        names = dict.fromkeys(["</s>", "<unk>", *codes, *learned])
        return {name: i for i, name in enumerate([*names, "<pad>"])}

    files = {"source.spm": source, "target.spm": target}
    languages = dict(source_lang="en", target_lang="fr")
    if not separate:
        return _folder(path, "marian", files | {"vocab.json": vocab(source, target)}, **languages)
    files |= {"vocab.json": vocab(source), "target_vocab.json": vocab(target)}
    return _folder(path, "marian", files, separate_vocabs=True, **languages)


RAW = {"nllb": "m2m", "marian, codes": "marian", "marian, two": "marian, own vocabularies"}


def checkpoint(folder: Path, built: tuple, name: str, form="new", kind="safetensors", **changes):
    """A checkpoint with the tokenizer of `built`, in `folder`; its torch model and transformers' tokenizer."""
    tokens, converted = built
    reference = transformers.AutoTokenizer.from_pretrained(tokens)
    tokenizer = load_tokenizer(converted)
    raw, size = bart_checkpoints.VARIANTS[RAW.get(name, name)], tokenizer.get_vocab_size()
    raw = raw | dict(vocab_size=size + 3, max_position_embeddings=200) | changes
    if name == "marian, two":
        raw |= dict(vocab_size=reference.vocab_size, decoder_vocab_size=size)
    if "marian" in name:
        pad = tokenizer.token_to_id("<pad>")
        raw |= dict(pad_token_id=pad, decoder_start_token_id=pad, bad_words_ids=[[pad]])
    model = bart_checkpoints.torch_model(raw)
    state = bart_checkpoints.state_dict(model, form)
    checkpoints.save(folder, raw, state, shards=1 + (form == "old"), kind=kind)
    for file in tokens.iterdir():
        if file.name != "config.json":
            (folder / file.name).write_bytes(file.read_bytes())
    return model, reference
