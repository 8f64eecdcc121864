"""Checkpoints' names of tensors -> ours: a table for each architecture, and what applies it."""

import re
from collections.abc import Callable, Sequence

from checkpoints.tensors import Tensor
from errors import InputError

# A pattern of their names, and our name of what matches it. None: dropped on purpose.
Rule = tuple[str, Callable[[re.Match], str] | None]


def our_name(name: str, table: Sequence[Rule], family: str) -> str | None:
    """Our name of a checkpoint's tensor, by the first rule that matches; None: not needed.

    InputError: never heard of it.
    """
    for pattern, rename in table:
        if match := re.fullmatch(pattern, name):
            return rename and rename(match)
    raise InputError(f"unknown tensor {name}: not a {family}-type checkpoint")


def renamed(tensors: dict[str, Tensor], table: Sequence[Rule], family: str) -> dict[str, Tensor]:
    """The tensors under our names, without those that are dropped."""
    ours = {name: our_name(name, table, family) for name in tensors}
    return {new: tensors[name] for name, new in ours.items() if new is not None}


def one_embedding(
    tensors: dict[str, Tensor], aliases: Sequence[str], head: str, family: str
) -> dict[str, Tensor]:
    """The tensors with one of the embedding's `aliases` in place of all, under the first's name.

    A checkpoint may hold any of them, or several; `head`, one of them, is kept where it differs.
    """
    found = [name for name in aliases if name in tensors]
    if not found:
        raise InputError(f"the checkpoint has no {aliases[0]}: not a {family}-type model")
    kept = {aliases[0]: tensors[found[0]]}
    if head in found[1:] and not equal(tensors[found[0]], tensors[head]):
        kept[head] = tensors[head]
    return kept | {name: tensor for name, tensor in tensors.items() if name not in found}


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same, wherever they lie."""
    if a == b:  # the same place in the same file
        return True
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return all(x.tobytes() == y.tobytes() for x, y in zip(a.blocks(), b.blocks(), strict=True))


# ---------------------------------------------------------------------------------------------
# T5

_ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "out"}
_FEED_FORWARD = {"wi": "up", "wi_0": "gate", "wi_1": "up", "wo": "down"}
_SUBLAYERS = {
    ("encoder", "0"): "attention",
    ("encoder", "1"): "feed_forward",
    ("decoder", "0"): "attention",
    ("decoder", "1"): "cross_attention",
    ("decoder", "2"): "feed_forward",
}


def _sublayer(match: re.Match) -> str:
    stack, layer, part = match[1], match[2], match[3]
    return f"{stack}.layers.{layer}.{_SUBLAYERS.get((stack, part), part)}"


_LAYER = r"(encoder|decoder)\.block\.(\d+)\.layer\.(\d)\."
T5: list[Rule] = [
    (r"shared\.weight", lambda m: "embedding.weight"),
    (r"lm_head\.weight", lambda m: "head.weight"),
    (r"(encoder|decoder)\.final_layer_norm\.weight", lambda m: f"{m[1]}.norm.weight"),
    # In every old checkpoint, and never used by the model.
    (_LAYER + r"EncDecAttention\.relative_attention_bias\.weight", None),
    (
        _LAYER + r"SelfAttention\.relative_attention_bias\.weight",
        lambda m: f"{m[1]}.relative_bias.{m[2]}.weight",
    ),
    (
        _LAYER + r"(?:SelfAttention|EncDecAttention)\.([qkvo])\.weight",
        lambda m: f"{_sublayer(m)}.{_ATTENTION[m[4]]}.weight",
    ),
    (
        _LAYER + r"DenseReluDense\.(wi|wi_0|wi_1|wo)\.weight",
        lambda m: f"{_sublayer(m)}.{_FEED_FORWARD[m[4]]}.weight",
    ),
    (_LAYER + r"layer_norm\.weight", lambda m: f"{_sublayer(m)}_norm.weight"),
]
T5_EMBEDDINGS = (  # best first
    "shared.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "lm_head.weight",
)
