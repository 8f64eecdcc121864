"""Tokenizers of BART's family: one tokenizer.json each, exact with the `tokenizers` package alone.

Those of BART, mBART, NLLB and Pegasus come from transformers and are mended to treat white space and
Unicode as SentencePiece does, with which the models were trained. Those of Marian and M2M-100, which
transformers lacks, are made of their SentencePiece models and of vocab.json, which numbers the pieces.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from checkpoints.folder import read_json
from errors import InputError
from text.languages import Languages
from text.tokenizer import FILE as TOKENIZER
from text.tokenizer import SOURCE_FILE, readable
from text.tokenizer_files import added_tokens, copy_sources, from_transformers, save, settings_of

UNKNOWN, END, PADDING = "<unk>", "</s>", "<pad>"
_LANGUAGE = re.compile(r"[a-z]{2,3}_([A-Z]{2}|[A-Z][a-z]{3})")  # en_XX, eng_Latn
_NORMAL, _USER_DEFINED = 1, 4  # kinds of SentencePiece's pieces
_BPE = 2
# Private-use characters: they mark pieces that no text may match.
_CODE, _HIDDEN = "\ue000", "\ue001"


def write_tokenizer(folder: Path, output: Path) -> None:
    """Copy the tokenizer's files, write tokenizer.json and, for a model of several languages, languages.json."""
    files = copy_sources(folder, output)
    config = read_json(folder / "config.json")
    kind = config.get("model_type")
    rows = config.get("vocab_size")
    with readable(str(folder)):
        if kind == "marian":
            tokenizer, languages = _marian(folder, "source.spm", "vocab.json")
            if settings_of(folder).get("separate_vocabs"):
                save(_within(tokenizer, rows), output, SOURCE_FILE)
                tokenizer, _ = _marian(folder, "target.spm", "target_vocab.json")
                languages = None if languages and languages.source else languages
                rows = config.get("decoder_vocab_size") or rows
        elif kind == "m2m_100" and "vocab.json" in files and TOKENIZER not in files:
            tokenizer, languages = _m2m(folder)
        else:
            tokenizer = _as_sentencepiece(from_transformers("AutoTokenizer", folder), folder)
            languages = _languages(tokenizer, kind)
    save(_within(tokenizer, rows), output)
    if languages:
        languages.save(output)


def _within(tokenizer: Tokenizer, rows: Any) -> Tokenizer:
    """The tokenizer without special tokens that the embedding lacks, such as <mask> in bart-large-cnn."""
    state = json.loads(tokenizer.to_str())
    added = state["added_tokens"]
    model = state["model"]
    beyond = {t["content"] for t in added if isinstance(rows, int) and t["id"] >= rows}
    if not beyond or model["type"] != "BPE":
        return tokenizer
    state["added_tokens"] = [token for token in added if token["content"] not in beyond]
    model["vocab"] = {piece: i for piece, i in model["vocab"].items() if piece not in beyond}
    return Tokenizer.from_str(json.dumps(state))


def _as_sentencepiece(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """The tokenizer with SentencePiece's normalization, part of which transformers leaves out: a space at the
    end of a text would be a piece, and mBART would not know ligatures."""
    if "Metaspace" not in str(tokenizer.pre_tokenizer):  # bytes, which SentencePiece never saw
        return tokenizer
    own = tokenizer.get_vocab(False)
    added = tokenizer.get_added_tokens_decoder().values()
    if any(not token.special or token.content not in own for token in added):
        return tokenizer  # fine-tuned, with tokens added, on what transformers makes of texts
    steps = [tokenizer.normalizer] if tokenizer.normalizer else []
    trained = folder / "sentencepiece.bpe.model"
    if "Precompiled" not in str(tokenizer.normalizer) and trained.exists():
        charsmap = _read_model(trained).normalizer_spec.precompiled_charsmap
        steps[:0] = [normalizers.Precompiled(charsmap)] if charsmap else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Strip()])
    return tokenizer


def _languages(tokenizer: Tokenizer, kind: str | None) -> Languages | None:
    """The languages, read from the special tokens and the frame around a text."""
    added = tokenizer.get_added_tokens_decoder()
    special = {token.content: i for i, token in added.items()}
    words = {t.content for t in added.values() if t.special and t.content[:1].isalpha()}  # mansi
    codes = {code: i for code, i in special.items() if code in words or _LANGUAGE.fullmatch(code)}
    frame = json.loads(tokenizer.to_str())["post_processor"] or {}
    source: list[int | str] = []
    for part in frame.get("single", []):
        token = part.get("SpecialToken", {}).get("id")
        if token is None:
            source.append("text")
        elif token in codes:
            source.append("source")
        elif token in special:
            source.append(special[token])
        else:  # NLLB's SentencePiece model knows none
            raise InputError(f"no token for the language {token}: its {TOKENIZER} is needed")
    if "source" not in source:
        return None
    # The first mBART's decoder begins with the language; in the others it comes second.
    first = kind == "mbart" and source[-1] == "source"
    return Languages(codes, source, ["target"] if first else ["start", "target"])


def _read_model(path: Path) -> Any:
    from sentencepiece import sentencepiece_model_pb2

    format: Any = sentencepiece_model_pb2
    with readable(str(path)):
        return format.ModelProto.FromString(path.read_bytes())


def _from_sentencepiece(proto: Any, ids: Mapping[str, int], cuts: list[AddedToken]) -> Tokenizer:
    """A tokenizer that splits text as the SentencePiece model does and numbers pieces by `ids`; pieces
    without a number are split further. cuts: tokens of `ids` at which a text is split first."""
    pieces = {p.piece: p.score for p in proto.pieces if p.type in (_NORMAL, _USER_DEFINED)}
    scores = {piece: score for piece, score in pieces.items() if piece in ids}
    make = _bpe if proto.trainer_spec.model_type == _BPE else _unigram
    tokenizer = Tokenizer(make(scores, ids, {token.content for token in cuts}))
    spec = proto.normalizer_spec
    steps: list[Any] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if make is _unigram:
        steps.append(_unknown_runs(scores))
    tokenizer.normalizer = normalizers.Sequence(steps)
    before = "always" if spec.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=before)
    shown = [decoders.Replace(_HIDDEN, ""), decoders.Metaspace(prepend_scheme=before)]
    tokenizer.decoder = decoders.Sequence(shown)
    tokenizer.add_tokens(cuts)
    return tokenizer


def _special(*tokens: str) -> list[AddedToken]:
    return [AddedToken(token, special=True, normalized=False) for token in tokens]


def _unigram(scores: Mapping[str, float], ids: Mapping[str, int], plain: set[str]) -> Any:
    """Pieces that are not the model's, such as the target language's, can be decoded but match no text,
    except single characters, if the model knows nothing better."""
    names = {i: piece for piece, i in ids.items()}
    worst = min(scores.values(), default=0.0) - 10
    vocabulary = []
    for i in range(max(names) + 1):
        piece = names.get(i, f"{_HIDDEN}{i}")
        if piece in scores:
            vocabulary.append((piece, scores[piece]))
        elif piece in plain or _CODE in piece:
            vocabulary.append((piece, 0.0))
        else:
            vocabulary.append((piece if len(piece) == 1 else _HIDDEN + piece, worst))
    return models.Unigram(vocabulary, unk_id=ids[UNKNOWN], byte_fallback=False)


def _unknown_runs(pieces: Iterable[str]) -> Any:
    """SentencePiece takes adjacent unknown characters for one unknown piece."""
    # "<" ends a language's code, whose piece would be lost to a run.
    pieces_and_marks = {" ", _CODE, "<", *(piece for piece in pieces if len(piece) == 1)}
    listed = "".join(f"\\x{{{ord(character):x}}}" for character in sorted(pieces_and_marks))
    return normalizers.Replace(Regex(f"[^{listed}]{{2,}}"), _HIDDEN)


def _bpe(scores: Mapping[str, float], ids: Mapping[str, int], plain: set[str]) -> Any:
    """SentencePiece joins the pair whose piece scores best: merges in the order of scores."""
    merges = []
    for piece in sorted(scores, key=lambda piece: -scores[piece]):
        cuts = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        merges += [(a, b) for a, b in cuts if a in scores and b in scores]
    return models.BPE(dict(ids), merges, unk_token=UNKNOWN, fuse_unk=True)


def _template(tokenizer: Tokenizer, single: str) -> Any:
    tokens = [(token, tokenizer.token_to_id(token)) for token in single.split() if token != "$A"]
    return processors.TemplateProcessing(single=single, special_tokens=tokens)


def _marian(folder: Path, model: str, vocabulary: str) -> tuple[Tokenizer, Languages | None]:
    """A model of many target languages reads one as >>fra<< at the text's very start."""
    ids = read_json(folder / vocabulary)
    added = added_tokens(folder) if vocabulary == "vocab.json" else {}
    ids |= {token.content: i for i, token in added.items()}
    codes = {t[2:-2]: i for t, i in ids.items() if t.startswith(">>") and t.endswith("<<")}
    pieces = {t: i for t, i in ids.items() if i not in codes.values()}
    pieces |= {f"▁{_CODE}{code}<<": i for code, i in codes.items()}
    cuts = _special(UNKNOWN, END, PADDING) + [t for t in added.values() if t.content in pieces]
    tokenizer = _from_sentencepiece(_read_model(folder / model), pieces, cuts)
    if codes:  # ">>" counts at the start only, so there it becomes what no piece of text has
        start = normalizers.Replace(Regex(r"\A>>(?=[\s\S]*?<<)"), _CODE)
        apart = pre_tokenizers.Split(Regex(rf"{_CODE}[\s\S]*?<<"), "isolated")
        tokenizer.normalizer = normalizers.Sequence([start, tokenizer.normalizer])
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([apart, tokenizer.pre_tokenizer])
    tokenizer.post_processor = _template(tokenizer, f"$A {END}")
    languages = Languages(codes, ["target", "text", ids[END]], ["start"]) if codes else None
    settings = settings_of(folder)
    reads, writes = settings.get("source_lang"), settings.get("target_lang")
    if not codes and isinstance(reads, str) and isinstance(writes, str):
        languages = Languages({writes: ""}, reads=reads)
    return tokenizer, languages


def _m2m(folder: Path) -> tuple[Tokenizer, Languages]:
    from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

    settings = settings_of(folder)
    ids = read_json(folder / "vocab.json")
    names = FAIRSEQ_LANGUAGE_CODES[settings.get("language_codes") or "m2m100"]
    added = added_tokens(folder)
    numbered = {i: f"__{name}__" for i, name in enumerate(names, len(ids))}
    ids |= {token: i for i, token in numbered.items() if i not in added}
    ids |= {token.content: i for i, token in added.items()}
    codes = {token[2:-2]: i for token, i in ids.items() if re.fullmatch(r"__\w+__", token)}
    languages = Languages(codes, ["source", "text", ids[END]], ["start", "target"])
    proto = _read_model(folder / "sentencepiece.bpe.model")
    special = _special(UNKNOWN, "<s>", PADDING, END, *(f"__{name}__" for name in codes))
    tokenizer = _from_sentencepiece(proto, ids, [*special, *added.values()])
    own = languages.find("source_lang", settings.get("src_lang") or "en")  # raises if it is none
    tokenizer.post_processor = _template(tokenizer, f"__{own}__ $A {END}")
    return tokenizer, languages
