"""Tokenizers at run time: always a tokenizer.json, read by the `tokenizers` package alone.

Importing transformers takes seconds; only conversion does, which writes a tokenizer.json for every model.
"""

import contextlib
import json
import re
from collections.abc import Callable, Collection, Container, Iterator
from pathlib import Path
from textwrap import shorten

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from speculative.common.errors import InputError

FILE = "tokenizer.json"
SOURCE_FILE = "source_tokenizer.json"  # if a model reads with another tokenizer than it writes with
# Begins the names of pieces that no text is cut into: where one vocabulary serves two tokenizers, the other's.
UNUSED = "\ue001"
_BYTE = re.compile("<0x[0-9A-F]{2}>")


@contextlib.contextmanager
def tokenizer_errors(name: str) -> Iterator[None]:
    """Turn what a tokenizer's reader raises, often a bare Exception, into InputError: `name` is not a tokenizer."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
        raise InputError(f"{name}: not a tokenizer: {reason}") from None


def load_tokenizer(folder: Path, rows: int | None = None, name: str = FILE) -> Tokenizer:
    """The tokenizer of a converted folder; it neither truncates nor pads. InputError for a token without a row in an
    embedding of so many rows."""
    file = folder / name
    if not file.exists():
        raise InputError(f"{file} is missing: convert the model again")
    with tokenizer_errors(str(file)):
        tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    framing = tokenizer.encode("").ids  # its tokens may not be in the vocabulary
    token = max([*tokenizer.get_vocab(with_added_tokens=True).values(), *framing], default=0)
    if rows is not None and token >= rows:
        fault = f"the tokenizer has the token {token}, but the embedding has only {rows} rows"
        raise InputError(f"{file}: {fault}")
    return tokenizer


def like_sentencepiece(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer corrected to match SentencePiece, with which the models were trained.

    transformers 5 takes token 2 as the unknown token (MADLAD-400's is 0), does not fall back to bytes for characters without
    a piece (mT5, umT5), and cuts the text at pieces such as MADLAD's <2de>, which have a score of 0.
    """
    state = json.loads(tokenizer.to_str())
    model = state["model"]
    if model["type"] != "Unigram":
        return tokenizer
    pieces = [piece for piece, _ in model["vocab"]]
    scores = dict(model["vocab"])
    if "<unk>" in scores:
        model["unk_id"] = pieces.index("<unk>")
    if {f"<0x{byte:02X}>" for byte in range(256)} <= scores.keys() and not model["byte_fallback"]:
        model["byte_fallback"] = True
        bytes_first = [{"type": "ByteFallback"}, state["decoder"]]
        state["decoder"] = {"type": "Sequence", "decoders": bytes_first}
    added = state["added_tokens"]
    state["added_tokens"] = [t for t in added if t["special"] or scores.get(t["content"]) != 0]
    return Tokenizer.from_str(json.dumps(state))


def byte_characters() -> dict[int, str]:
    """The byte-level alphabet: the character that stands for each byte (GPT-2's)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = {ord(character): character for character in alphabet if ord(character) < 256}
    others = [byte for byte in range(256) if byte not in own]
    return own | dict(zip(others, alphabet[len(own) :], strict=True))


def pieces(tokenizer: Tokenizer) -> dict[str, int]:
    """Piece -> token, added tokens and unused pieces too."""
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    return {piece.removeprefix(UNUSED): token for piece, token in vocab.items()}


def piece_of(tokenizer: Tokenizer, token: int) -> str:
    """A token's piece; "" if it has none."""
    return (tokenizer.id_to_token(token) or "").removeprefix(UNUSED)


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Whether a token's piece has a character for each of its bytes."""
    return b'"ByteLevel"' in tokenizer.decoder.__getstate__()


def token_bytes(tokenizer: Tokenizer, hidden: Container[int]) -> Callable[[int], bytes]:
    """A function that gives a token's bytes, with the space before a word; none for hidden and special tokens."""
    added = tokenizer.get_added_tokens_decoder()
    byte_level = is_byte_level(tokenizer)
    byte_of = {character: byte for byte, character in byte_characters().items()}

    def own(token: int) -> bytes:
        piece = piece_of(tokenizer, token)
        if token in hidden or (token in added and added[token].special):
            return b""
        if byte_level and token not in added:
            return bytes(byte_of[character] for character in piece)
        byte = re.fullmatch("<0x([0-9A-F]{2})>", piece)
        if byte:
            return bytes.fromhex(byte[1])
        return piece.replace("▁", " ").encode()

    return own


def token_names(
    tokenizer: Tokenizer, hidden: Container[int]
) -> Callable[[int, bool], tuple[str, bytes]]:
    """A function that gives a token's name and bytes: with the space before it, unless it is a text's first."""
    bytes_of = token_bytes(tokenizer, hidden)

    def named(token: int, first: bool) -> tuple[str, bytes]:
        text = bytes_of(token)
        if not text:  # special: shown unless it is hidden
            name = tokenizer.id_to_token(token) or ""
            return name, b"" if token in hidden else name.encode()
        if first and not tokenizer.decode([token]).startswith(" "):
            text = text.removeprefix(b" ")
        return text.decode(errors="backslashreplace"), text

    return named


def byte_tokenizer(extra_ids: int = 125) -> Tokenizer:
    """byT5's tokenizer: each token is a byte, with the id byte + 3 (Xue et al. 2022, arXiv 2105.13626)."""
    character = byte_characters()
    specials = ["<pad>", "</s>", "<unk>"]
    vocab = {token: i for i, token in enumerate(specials)}
    vocab |= {character[byte]: byte + len(specials) for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    # As in transformers, bytes that are no UTF-8 are left out; a U+FFFD of the text's own is kept, as U+FFFF meanwhile.
    own, kept = ("".join(character[i] for i in mark.encode()) for mark in "\ufffd\uffff")
    steps = [decoders.Fuse(), decoders.Replace(own, kept), decoders.ByteLevel()]
    steps += [decoders.Replace("\ufffd", ""), decoders.Replace("\uffff", "\ufffd")]
    tokenizer.decoder = decoders.Sequence(steps)
    sentinels = [f"<extra_id_{i}>" for i in range(extra_ids)]
    # As in transformers, the first three take the white space around them.
    around = {"lstrip": True, "rstrip": True, "normalized": False}
    tokenizer.add_special_tokens([AddedToken(token, **around) for token in specials])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in sentinels])
    end = [("</s>", 1)]
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=end)
    return tokenizer


def translation(source: Tokenizer, target: Tokenizer) -> Callable[[int], int]:
    """A function from a token of `source` to the same piece's token in `target`, or to the unknown token."""
    ids = pieces(target)
    same = {token: ids[piece] for piece, token in pieces(source).items() if piece in ids}
    return lambda token: same.get(token, ids["<unk>"])


def shared_vocabulary(target: Tokenizer, draft: Tokenizer) -> int:
    """The number of ids, from 0 on, that are the same pieces in both. InputError if one differs."""
    listed = [sorted(vocab, key=vocab.__getitem__) for vocab in map(pieces, (target, draft))]
    for i, (ours, theirs) in enumerate(zip(*listed, strict=False)):
        if ours != theirs:
            other = "the draft model has a different vocabulary from the target"
            hint = "lookup and memories draft without one"
            raise InputError(f"{other}: token {i} is {theirs!r}, not {ours!r}; {hint}")
    return min(map(len, listed))


def completion(tokenizer: Tokenizer) -> Callable[[Collection[int]], set[int]]:
    """A function that adds to tokens those that any text in their scripts may need: special tokens, language codes,
    bytes and single characters. A script is approximated by a block of 256 Unicode characters."""
    special = set(tokenizer.get_added_tokens_decoder())
    named = {i: piece for piece, i in tokenizer.get_vocab(with_added_tokens=False).items()}
    special |= {i for i, piece in named.items() if _BYTE.fullmatch(piece)}
    letters = {i: p.lstrip("▁Ġ") or "a" for i, p in named.items() if len(p) <= 2}
    blocks = {i: ord(p) >> 8 for i, p in letters.items() if len(p) == 1}

    def complete(tokens: Collection[int]) -> set[int]:
        scripts = {0, 1}  # Latin; a byte-level tokenizer's bytes
        scripts |= {ord(c) >> 8 for token in tokens for c in named.get(token, "")}
        return special | set(tokens) | {i for i, block in blocks.items() if block in scripts}

    return complete
