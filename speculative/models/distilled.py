"""Draft models made from their target (distill.py): a few decoder layers on the target's encoder, embedding and head.

A layer reads a token and the target's last state before it, as EAGLE's does (Li et al. 2024, arXiv 2401.15077).
"""

import json
from collections.abc import Sequence
from copy import copy
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from speculative.checkpoints.folder import WEIGHTS
from speculative.checkpoints.tensors import to_mlx, to_numpy
from speculative.checkpoints.weights import DTYPES, stored_type
from speculative.common.errors import InputError
from speculative.common.files import locked, replacing
from speculative.common.reporting import reporter
from speculative.models.contract import Model
from speculative.models.encoder_decoder import EncoderDecoder
from speculative.models.registry import DISTILLED

Weights = dict[str, mx.array]
HeldOut = tuple[np.ndarray, list[int], int]  # see EncoderDecoder.prompt_array and TrainingText
STATES = 3  # of the target, that are read of a token


def target_states(outputs: Sequence[mx.array], head_input: mx.array) -> mx.array:
    """The target's states, [B, T, STATES D]: a low and a middle layer's outputs, normed, and the head's input, [B, T, D] each
    (EAGLE-3, Li et al. 2025, arXiv 2503.01840)."""
    below = outputs[len(outputs) // 4], outputs[len(outputs) // 2]
    normed = [mx.fast.rms_norm(x, None, 1e-6).astype(head_input.dtype) for x in below]
    return mx.concatenate([*normed, head_input], axis=-1)


class Mix(nn.Linear):
    """What states before tokens add to the first layer's input: the target's, [B, T, STATES D], or a draft model's own,
    [B, T, D], with a weight behind theirs."""

    def __call__(self, previous: mx.array) -> mx.array:
        D = len(self.weight)
        weight = self.weight[:, :-D]
        if previous.shape[-1] == D:
            weight = self.weight[:, -D:]
        return previous @ weight.T


def skeleton(target: Any, layers: Sequence[int]) -> Any:
    """A draft model with decoder layers such as these, its own weights unset."""
    draft: Any = copy(target)
    kind: Any = type(target)
    decoder = draft.decoder = kind(target.config).decoder.only(layers)  # nothing is computed yet
    for name, part in target.decoder.items():
        if hasattr(part, "as_linear"):  # a table of tokens or positions
            decoder[name] = part
    width = len(decoder.layers[0].attention.out.weight)
    decoder.mix = Mix((STATES + 1) * width, width, bias=False)
    # By name, because `narrowed` puts another module in a table's place
    draft.own = [name for name, part in decoder.items() if part is not target.decoder.get(name)]
    draft.layers = list(layers)
    draft.target_states = target_states
    draft.accuracy = 0.0  # on the texts held out when it was made; 0: not known
    draft.held_out = ()  # HeldOut: some of these
    draft.promised = 0.0  # accuracy on those; 0: not measured yet
    return draft


def from_target(target: EncoderDecoder, layers: Sequence[int]) -> Any:
    """A draft model to train: copies of the target's layers in float32, which do not read states yet."""
    draft = skeleton(target, layers)
    part = target.decoder.only(layers)
    weights: Weights = dict(tree_flatten(part.parameters()))
    for name, module in part.named_modules():
        if isinstance(module, nn.QuantizedLinear):
            packed = module.weight, module.scales, module.get("biases")
            settings = module.group_size, module.bits, module.mode
            weights[f"{name}.weight"] = mx.dequantize(*packed, *settings)
    own = own_weights(draft)
    weights["mix.weight"] = mx.zeros_like(own["mix.weight"])
    set_weights(draft, {name: weights[name].astype(mx.float32) for name in own})
    return draft


def own_weights(draft: Any) -> Weights:
    """The weights that are not the target's, by their names in the decoder."""
    weights: Weights = dict(tree_flatten(draft.decoder.parameters()))
    return {name: x for name, x in weights.items() if name.partition(".")[0] in draft.own}


def stored_weights(draft: Any, dtype: str) -> Weights:
    """Its own weights in the types in which a folder of `dtype` has them."""
    weights = own_weights(draft).items()
    return {name: x.astype(getattr(mx, stored_type(name, dtype))) for name, x in weights}


def set_weights(draft: Any, weights: Weights) -> None:
    draft.decoder.update(tree_unflatten(list(weights.items())))


def vocabulary(target: Any) -> str:
    """A hash of a model's vocabulary, without the tokens that were added to it."""
    pieces = target.text.tokenizer.get_vocab(with_added_tokens=False) if target.text else {}
    return sha256(repr(sorted(pieces.items())).encode()).hexdigest()[:16]


def type_of(target: EncoderDecoder) -> str:
    """The type of a model's weights or, if it is quantized, of their scales."""
    weights = dict(tree_flatten(target.parameters())).values()
    types = [kind for kind in DTYPES for x in weights if x.dtype == getattr(mx, kind)]
    return max(DTYPES, key=types.count)


def save(
    draft: Any, target: EncoderDecoder, name: str, folder: Path, dtype: str, accuracy: float = 0.0
) -> None:
    """Write a draft model of the target `name`. accuracy: on held-out texts, 0: not known. All that is read again is in
    one file, so that nobody reads parts of two models."""
    config = dict(
        model_type=DISTILLED,
        draft_of=name,
        origin=target.origin,
        vocabulary=vocabulary(target),
        layers=draft.layers,
        dtype=dtype,
        accuracy=accuracy,
    )
    arrays = {name: to_numpy(weight) for name, weight in stored_weights(draft, dtype).items()}
    for i, (prompt, tokens, _) in enumerate(draft.held_out):
        arrays |= {f"prompt.{i}": prompt, f"tokens.{i}": np.array(tokens, np.int32)}
    all_settings = config | {"prefixes": [prefix for _, _, prefix in draft.held_out]}
    arrays["config"] = np.frombuffer(json.dumps(all_settings).encode(), np.uint8)
    with locked(folder.resolve().parent, wait=True):  # the folder itself may be locked by this run
        folder.mkdir(exist_ok=True)
        with replacing(folder / "config.json") as partial:
            partial.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        with replacing(folder / WEIGHTS) as partial, open(partial, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]


class Distilled(Model):
    """A draft model as its folder has it, without the target's parts. `for_target` makes it one to decode with."""

    def __init__(self, path: Path):
        """The draft model in a folder that `save` has written. InputError if it is damaged."""
        try:
            with open(path / WEIGHTS, "rb") as file:
                if ZipFile(file).testzip():
                    raise ValueError("a checksum differs")
                file.seek(0)
                arrays = dict(np.load(file))
            config = json.loads(arrays.pop("config").tobytes())
            self.layers = [int(layer) for layer in config["layers"]]
            self.deepest = max(self.layers)
            self.held_out: tuple[HeldOut, ...] = tuple(
                (arrays.pop(f"prompt.{i}"), arrays.pop(f"tokens.{i}").tolist(), prefix)
                for i, prefix in enumerate(config["prefixes"])
            )
            self.weights = {name: to_mlx(array) for name, array in arrays.items()}
            self.draft_of: str = config["draft_of"]
            self.vocabulary: str = config["vocabulary"]
            self.origin = str(config["origin"] or "")
            self.accuracy: float = config["accuracy"]
        except Exception as error:  # damage raises many kinds
            fault = "damaged, or not a draft model made from its target"
            raise InputError(f"{path}: {fault}: {error!r}") from None
        self.name = path.name
        mx.eval(self.weights)  # what is lazy can only be computed by the thread that made it

    def for_target(self, target: Any) -> Any:
        """With the encoder, embedding and head of a target; a note if it is another than it was made from."""
        fits = isinstance(target, EncoderDecoder) and self.vocabulary == vocabulary(target)
        fits = fits and self.deepest < len(target.decoder.layers)
        if fits:
            draft = skeleton(target, self.layers)
            shapes = {name: weight.shape for name, weight in own_weights(draft).items()}
            fits = shapes == {name: weight.shape for name, weight in self.weights.items()}
        if not fits:
            raise InputError(
                f"{self.name} is a draft model of {self.draft_of}, and this model has other shapes or another vocabulary: "
                "make one of its own with distill.py"
            )
        if not self.origin or Path(self.origin) != Path(target.origin or ""):
            reporter.note(f"{self.name} is made from {self.draft_of}: same texts, speed may differ")
        set_weights(draft, self.weights)
        draft.accuracy = self.accuracy
        draft.held_out = self.held_out
        return draft
