"""Reads checkpoints of T5 and its relatives: v1.1, FLAN, mT5, byT5, umT5, UL2, MADLAD-400, Aya."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from tokenizers import Tokenizer

import model
from speculative.checkpoints.config import is_tied, token_id, token_ids
from speculative.checkpoints.folder import read_json
from speculative.checkpoints.names import Names
from speculative.models.family import Family
from speculative.text import tokenizer_files as files
from speculative.text.languages import Languages
from speculative.text.tokenizer import FILE as TOKENIZER
from speculative.text.tokenizer import byte_tokenizer, like_sentencepiece, tokenizer_errors


class Config(model.Config):
    @classmethod
    def from_hub(cls, raw: Mapping, weights: Collection[str] | None) -> "Config":
        """The weights decide what they can, because config.json is incomplete and sometimes wrong."""
        gated = str(raw.get("feed_forward_proj", "relu")).startswith("gated-")
        bias_per_layer = raw.get("model_type") == "umt5"
        if weights is not None:
            gated = "decoder.layers.0.feed_forward.gate.weight" in weights
            bias_per_layer = any(re.search(r"relative_bias\.[1-9]", name) for name in weights)
        activation = str(raw.get("feed_forward_proj", "relu")).removeprefix("gated-")
        if gated and activation == "gelu":
            activation = "gelu_new"  # what every gated-gelu checkpoint was trained with
        pad = token_id(raw, "pad_token_id", 0)
        # `tie_word_embeddings: false` means "do not scale the decoder's output by d_model**-0.5", whatever the head.
        scales = raw.get("scale_decoder_outputs", is_tied(raw, None))
        return cls.read(
            raw,
            "T5",
            num_decoder_layers=raw.get("num_decoder_layers") or raw.get("num_layers"),
            activation=activation,
            gated=gated,
            tied_head=is_tied(raw, weights),
            shared_embedding="source_embedding.weight" not in (weights or ()),
            bias_per_layer=bias_per_layer,
            scale_decoder_outputs=raw.get("model_type") != "mt5" and scales,
            pad_token_id=pad,
            eos_token_ids=token_ids(raw.get("eos_token_id"), 1),
            decoder_start_token_id=token_id(raw, "decoder_start_token_id", pad),
        )


_LAYER = r"(encoder|decoder)\.block\.(\d+)\.layer\.\d\."
_BIAS = r"relative_attention_bias\.weight"
_NORM = r"({})\.block\.(\d+)\.layer\.{}\.layer_norm\.weight"
NAMES = Names(
    family="T5",
    rules=[
        (r"shared\.weight", "embedding.weight"),
        (r"encoder\.embed_tokens\.weight", "source_embedding.weight"),
        (r"lm_head\.weight", "head.weight"),
        (r"(encoder|decoder)\.final_layer_norm\.weight", "{}.norm.weight"),
        (_LAYER + r"SelfAttention\." + _BIAS, "{}.relative_bias.{}.weight"),
        (_LAYER + r"EncDecAttention\." + _BIAS, None),  # in every old checkpoint, never used
        (
            _LAYER + r"(SelfAttention|EncDecAttention|DenseReluDense)\.([qkvo]|w[io]\w*)\.weight",
            "{}.layers.{}.{}.{}.weight",
        ),
        (_NORM.format("encoder|decoder", 0), "{}.layers.{}.attention_norm.weight"),
        (_NORM.format("encoder", 1), "{}.layers.{}.feed_forward_norm.weight"),
        (_NORM.format("decoder", 1), "{}.layers.{}.cross_attention_norm.weight"),
        (_NORM.format("decoder", 2), "{}.layers.{}.feed_forward_norm.weight"),
    ],
    words={"SelfAttention": "attention", "EncDecAttention": "cross_attention"}
    | {"DenseReluDense": "feed_forward", "q": "query", "k": "key", "v": "value", "o": "out"}
    | {"wi": "up", "wi_0": "gate", "wi_1": "up", "wo": "down"},
    embedding="shared.weight encoder.embed_tokens.weight decoder.embed_tokens.weight lm_head.weight".split(),
)


def write_tokenizer(folder: Path, output: Path) -> None:
    names = files.copy_sources(folder, output)
    named = files.class_of(folder)
    if named == "ByT5Tokenizer" and not {TOKENIZER, "spiece.model"} & {*names}:
        tokenizer = byte_tokenizer()
        tokenizer.add_tokens([*files.added_tokens(folder).values()])
        files.save(tokenizer, output)
        return
    # For umT5 and MT5Tokenizer the automatic class reads tokenizer.json only.
    is_t5s = named in ("", "T5Tokenizer", "MT5Tokenizer")
    kind = "T5Tokenizer" if is_t5s and TOKENIZER not in names else "AutoTokenizer"
    tokenizer = files.from_transformers(kind, folder)
    with tokenizer_errors(str(folder)):
        tokenizer = files.as_trained(like_sentencepiece(tokenizer), folder)
    files.save(tokenizer, output)
    codes = codes_in_words(read_json(folder / "config.json"), tokenizer)
    if codes:
        reads = None if any(words.startswith("<2") for words in codes.values()) else "en"
        Languages(codes, reads=reads).save(output)


def codes_in_words(raw: Mapping, tokenizer: Tokenizer) -> dict[str, str]:
    """Language -> the beginning of a text to translate into it: MADLAD-400's <2de>, T5's prefixes in config.json."""
    tags = (re.fullmatch(r"<2(\w+)>", piece) for piece in tokenizer.get_vocab())
    codes = {tag[1]: f"{tag[0]} " for tag in tags if tag}
    if codes:
        return codes
    tasks = raw.get("task_specific_params")
    for name, task in (tasks if isinstance(tasks, dict) else {}).items():
        match = re.fullmatch(r"translation_en_to_(\w+)", name)
        if match and isinstance(task, dict) and isinstance(task.get("prefix"), str):
            codes[match[1]] = task["prefix"]
    return codes


FAMILY = Family(Config, model.T5, NAMES.rename, write_tokenizer, shown_special=r"<extra_id_\d+>")
