"""Tokenizers of BART's family: one tokenizer.json each, exact with the `tokenizers` package alone.

Those of BART, mBART, NLLB and Pegasus come from transformers, mended to treat white space and Unicode as SentencePiece does.
Those of Marian and M2M-100 are made of their SentencePiece models and of vocab.json, which numbers the pieces.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers.processors import TemplateProcessing

from speculative.checkpoints.folder import read_json
from speculative.text import tokenizer_files as files
from speculative.text.languages import Languages
from speculative.text.tokenizer import FILE as TOKENIZER
from speculative.text.tokenizer import SOURCE_FILE, UNUSED, tokenizer_errors

UNKNOWN, END, PADDING = "<unk>", "</s>", "<pad>"
_LANGUAGE = re.compile(r"[a-z]{2,3}_([A-Z]{2}|[A-Z][a-z]{3})")  # en_XX, eng_Latn
_SMALL = "SMALL100Tokenizer"  # SMaLL-100's (Mohammadshahi et al. 2022, arXiv 2210.11621)
# Private-use characters, which no text has: the beginning of a language's code, and a run of unknown characters
_CODE, _RUN = "\ue000", "\ue002"


def write_tokenizer(folder: Path, output: Path) -> None:
    """Copy the tokenizer's files, write tokenizer.json and, for a model of several languages, languages.json."""
    names = files.copy_sources(folder, output)
    kind = read_json(folder / "config.json").get("model_type")
    with tokenizer_errors(str(folder)):
        if kind == "marian":
            separate = files.settings_of(folder).get("separate_vocabs")
            source, languages = _marian(folder, "source.spm", "vocab.json")
            files.save(source, output, SOURCE_FILE)
            vocabulary = "target_vocab.json" if separate else "vocab.json"
            tokenizer, _ = _marian(folder, "target.spm", vocabulary)
            if separate and languages and languages.source:
                languages = None
        elif kind == "m2m_100" and TOKENIZER not in names:
            tokenizer, languages = _m2m(folder)
        else:
            tokenizer = _as_sentencepiece(files.from_transformers("AutoTokenizer", folder), folder)
            tokenizer = files.as_trained(tokenizer, folder)
            languages = _languages(tokenizer, kind)
    files.save(tokenizer, output)
    if languages:
        languages.save(output)


def _as_sentencepiece(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """The tokenizer with SentencePiece's normalization, of spaces and ligatures, part of which transformers leaves out."""
    if "Metaspace" not in str(tokenizer.pre_tokenizer):  # bytes, which SentencePiece never saw
        return tokenizer
    trained = tokenizer.get_vocab(with_added_tokens=False)
    added = tokenizer.get_added_tokens_decoder().values()
    if any(not token.special or token.content not in trained for token in added):
        return tokenizer  # fine-tuned, with tokens added, on what transformers makes of texts
    steps = [tokenizer.normalizer] if tokenizer.normalizer else []
    file = folder / "sentencepiece.bpe.model"
    if "Precompiled" not in str(tokenizer.normalizer) and file.exists():
        charsmap = files.read_model(file).normalizer_spec.precompiled_charsmap
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
        else:
            source.append(special[token])
    if "source" not in source:
        return None
    # The first mBART's decoder begins with the language; in the others it comes second.
    first = kind == "mbart" and source[-1] == "source"
    return Languages(codes, source, ["target"] if first else ["start", "target"])


def _from_sentencepiece(
    proto: Any, ids: Mapping[str, int], cuts: list[AddedToken], frame: str
) -> Tokenizer:
    """SentencePiece's pieces, numbered by `ids`. cuts: tokens at which a text is split first; frame: those around "$A"."""
    scores = {piece: score for piece, score in files.scores_of(proto).items() if piece in ids}
    spec = proto.normalizer_spec
    steps: list[Any] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if proto.trainer_spec.model_type == files.BPE:
        tokenizer = Tokenizer(files.bpe(scores, ids, UNKNOWN))
    else:
        tokenizer = Tokenizer(_unigram(scores, ids, {token.content for token in cuts}))
        steps.append(_unknown_runs(scores))
    tokenizer.normalizer = normalizers.Sequence(steps)
    before = "always" if spec.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre.Metaspace(prepend_scheme=before)
    shown = [decoders.Replace(UNUSED, ""), decoders.Metaspace(prepend_scheme=before)]
    tokenizer.decoder = decoders.Sequence(shown)
    tokenizer.add_tokens(cuts)
    around = [(token, ids[token]) for token in frame.split() if token != "$A"]
    tokenizer.post_processor = TemplateProcessing(single=frame, special_tokens=around)
    return tokenizer


def _special(*tokens: str) -> list[AddedToken]:
    return [AddedToken(token, special=True, normalized=False) for token in tokens]


def _unigram(scores: Mapping[str, float], ids: Mapping[str, int], plain: set[str]) -> Any:
    """Pieces that are not the model's can be decoded but match no text, except single characters, if the model knows no better."""
    names = {i: piece for piece, i in ids.items()}
    worst = min(scores.values(), default=0.0) - 10
    vocabulary = []
    for i in range(max(names) + 1):
        piece = names.get(i, f"{UNUSED}{UNUSED}{i}")
        if piece in scores:
            vocabulary.append((piece, scores[piece]))
        elif piece in plain or _CODE in piece:
            vocabulary.append((piece, 0.0))
        else:
            vocabulary.append((piece if len(piece) == 1 else UNUSED + piece, worst))
    return models.Unigram(vocabulary, unk_id=ids[UNKNOWN], byte_fallback=False)


def _unknown_runs(pieces: Iterable[str]) -> Any:
    """SentencePiece takes adjacent unknown characters for one unknown piece."""
    # "<" ends a language's code, whose piece would be lost to a run.
    known = {" ", _CODE, "<", *(piece for piece in pieces if len(piece) == 1)}
    listed = "".join(f"\\x{{{ord(character):x}}}" for character in sorted(known))
    return normalizers.Replace(Regex(f"[^{listed}]{{2,}}"), _RUN)


def _marian(folder: Path, model: str, vocabulary: str) -> tuple[Tokenizer, Languages | None]:
    """A model of many target languages reads one as >>fra<< at the text's very start."""
    files.check_files(folder, [model, vocabulary])
    ids = read_json(folder / vocabulary)
    added = files.added_tokens(folder) if vocabulary == "vocab.json" else {}
    ids |= {token.content: i for i, token in added.items()}
    codes = {t[2:-2]: i for t, i in ids.items() if t.startswith(">>") and t.endswith("<<")}
    pieces = {t: i for t, i in ids.items() if i not in codes.values()}
    pieces |= {f"▁{_CODE}{code}<<": i for code, i in codes.items()}
    cuts = _special(UNKNOWN, END, PADDING) + [t for t in added.values() if t.content in pieces]
    proto = files.read_model(folder / model)
    tokenizer = _from_sentencepiece(proto, pieces, cuts, f"$A {END}")
    if codes:  # ">>" counts at the start only, so there it becomes what no piece of text has
        start = normalizers.Replace(Regex(r"\A>>(?=[\s\S]*?<<)"), _CODE)
        apart = pre.Split(Regex(rf"{_CODE}[\s\S]*?<<"), "isolated")
        tokenizer.normalizer = normalizers.Sequence([start, tokenizer.normalizer])
        tokenizer.pre_tokenizer = pre.Sequence([apart, tokenizer.pre_tokenizer])
    languages = Languages(codes, ["target", "text", ids[END]], ["start"]) if codes else None
    settings = files.settings_of(folder)
    reads, writes = settings.get("source_lang"), settings.get("target_lang")
    if not codes and isinstance(reads, str) and isinstance(writes, str):
        languages = Languages({writes: ""}, reads=reads)
    return tokenizer, languages


def _m2m(folder: Path) -> tuple[Tokenizer, Languages]:
    from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

    settings, named = files.settings_of(folder), files.class_of(folder)
    if named not in ("", "M2M100Tokenizer", _SMALL):  # NLLB's SentencePiece model has no languages
        files.check_files(folder, [TOKENIZER])
    files.check_files(folder, ["sentencepiece.bpe.model", "vocab.json"])
    ids = read_json(folder / "vocab.json")
    names = FAIRSEQ_LANGUAGE_CODES[settings.get("language_codes") or "m2m100"]
    added = files.added_tokens(folder)
    numbered = {i: f"__{name}__" for i, name in enumerate(names, len(ids))}
    ids |= {token: i for i, token in numbered.items() if i not in added}
    ids |= {token.content: i for i, token in added.items()}
    codes = {token[2:-2]: i for token, i in ids.items() if re.fullmatch(r"__\w+__", token)}
    reads, prefix, key = "source", ["start", "target"], "src_lang"
    if named == _SMALL:  # whose encoder is told the target's language, and nobody the source's
        reads, prefix, key = "target", ["start"], "tgt_lang"
    languages = Languages(codes, [reads, "text", ids[END]], prefix)
    proto = files.read_model(folder / "sentencepiece.bpe.model")
    special = _special(UNKNOWN, "<s>", PADDING, END, *(f"__{name}__" for name in codes))
    language = languages.find(f"{reads}_lang", settings.get(key) or "en")  # raises if it is none
    frame = f"__{language}__ $A {END}"
    return _from_sentencepiece(proto, ids, [*special, *added.values()], frame), languages
