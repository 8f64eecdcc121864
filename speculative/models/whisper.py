"""Whisper in MLX (Radford et al. 2022, arXiv 2212.04356), and distil-Whisper (Gandhi et al. 2023, arXiv 2311.00430).

Shapes: B rows, F frames of a window, S encoder positions (F / 2), T new tokens, V vocabulary.
"""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from speculative.checkpoints.config import BaseConfig, is_tied, token_id, token_ids
from speculative.checkpoints.tensors import Tensor
from speculative.common.errors import InputError
from speculative.models import bart, encoder_decoder
from speculative.models.bart import NAMES as BART
from speculative.models.contract import Model
from speculative.models.encoder_decoder import EncoderDecoder
from speculative.models.family import Family
from speculative.step.cache import CrossCache

_END = 50257  # in the multilingual vocabulary; fine-tunes may leave it out


@dataclass(frozen=True)
class Config(BaseConfig):
    """Whisper's settings under Hugging Face's names, except max_positions, which is max_target_positions there."""

    num_mel_bins: int
    d_model: int
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_layers: int
    decoder_attention_heads: int
    decoder_ffn_dim: int
    max_source_positions: int
    max_positions: int
    decoder_start_token_id: int
    activation: str = "gelu"
    tied_head: bool = True

    norm_first: ClassVar = True

    @property
    def frames(self) -> int:
        return 2 * self.max_source_positions

    @classmethod
    def from_hub(cls, raw: Mapping, weights: Collection[str] | None) -> "Config":
        return cls.read(
            raw,
            "Whisper",
            pad_token_id=token_id(raw, "pad_token_id", _END),
            eos_token_ids=token_ids(raw.get("eos_token_id"), _END),
            decoder_start_token_id=token_id(raw, "decoder_start_token_id", _END + 1),
            max_positions=raw.get("max_target_positions", 448),
            max_source_positions=raw.get("max_source_positions", 1500),
            activation=raw.get("activation_function", "gelu"),
            tied_head=is_tied(raw, weights),
        )


class SoundPrompt(list[int]):
    """A prompt: a number for a window of sound, made from its features [F, bins]; with these, and what encoders have made of
    them."""

    def __init__(self, features: np.ndarray):
        digest = blake2b(features.tobytes(), digest_size=7).digest()
        super().__init__([int.from_bytes(digest)])
        self.features = features
        self.encoded: dict[int, mx.array] = {}  # by encoder


def _equal(a: nn.Module, b: nn.Module) -> bool:
    """Whether two modules have the same weights, in the same types."""
    ours: dict[str, mx.array] = dict(tree_flatten(a.parameters()))
    theirs: dict[str, mx.array] = dict(tree_flatten(b.parameters()))
    if {name: x.dtype for name, x in ours.items()} != {name: x.dtype for name, x in theirs.items()}:
        return False
    return all(bool(mx.array_equal(x, theirs[name])) for name, x in ours.items())


class Layer(bart.Layer):
    def __init__(self, c: Any, num_heads: int, ffn_dim: int, *attentions: str):
        super().__init__(c, num_heads, ffn_dim, *attentions)
        for name in attentions:
            self[name].key = nn.Linear(c.d_model, c.d_model, bias=False)


class Encoder(encoder_decoder.Stack):
    def __init__(self, c: Config):
        super().__init__()
        sizes = c.encoder_attention_heads, c.encoder_ffn_dim
        self.conv1 = nn.Conv1d(c.num_mel_bins, c.d_model, 3, padding=1)
        self.conv2 = nn.Conv1d(c.d_model, c.d_model, 3, stride=2, padding=1)
        self.positions = nn.Embedding(c.max_source_positions, c.d_model)
        self.layers = [Layer(c, *sizes, "attention") for _ in range(c.encoder_layers)]
        self.norm = nn.LayerNorm(c.d_model)

    def __call__(self, features: mx.array) -> mx.array:  # type: ignore[override]
        """[B, S, d_model] from features [B, F, bins]. A window's padding is part of it: nothing is masked."""
        x = nn.gelu(self.conv1(features.astype(self.conv1.weight.dtype)))
        x = nn.gelu(self.conv2(x)) + self.positions.weight
        return super().__call__(x, [None] * len(self.layers))


class Whisper(EncoderDecoder):
    fixed_vocabulary = True  # tokens without a name are timestamps

    def __init__(self, config: Config):
        super().__init__()
        c = self.config = config
        self.embedding = nn.Embedding(c.vocab_size, c.d_model)
        self.encoder = Encoder(c)
        parts = c.decoder_attention_heads, c.decoder_ffn_dim, "attention", "cross_attention"
        self.decoder = encoder_decoder.Stack()
        self.decoder.positions = nn.Embedding(c.max_positions, c.d_model)
        self.decoder.layers = [Layer(c, *parts) for _ in range(c.decoder_layers)]
        self.decoder.norm = nn.LayerNorm(c.d_model)
        if not c.tied_head:
            self.head = nn.Linear(c.d_model, c.vocab_size, bias=False)

    def for_target(self, target: Model) -> Model:
        """As the contract says; with the target's encoder if it is the same, which then runs once for both."""
        if not isinstance(target, Whisper):
            return self
        configs = self.config, target.config
        ours, theirs = (f"{c.num_mel_bins} bins and {c.frames} frames" for c in configs)
        if ours != theirs:
            raise InputError(f"the draft model reads {ours}, the model {theirs}")
        if not _equal(self.encoder, target.encoder):
            return self
        draft = copy(self)
        draft.encoder = target.encoder
        return draft

    def prefix(self, prompt: Sequence[int]) -> list[int]:
        """Raise InputError: apps/speech/rules.py gives a text its first tokens."""
        raise InputError("this model transcribes audio: use transcribe.py, or a server's /v1/audio")

    def blank_prompt(self, size: int) -> SoundPrompt:
        """A window of silence."""
        config = self.config
        return SoundPrompt(np.zeros((config.frames, config.num_mel_bins), np.float32))

    def prompt_array(self, prompt: SoundPrompt) -> np.ndarray:  # type: ignore[override]
        return prompt.features.astype(np.float16)

    def array_prompt(self, array: np.ndarray) -> SoundPrompt:
        return SoundPrompt(array.astype(np.float32))

    def start(self, prompts: Sequence[SoundPrompt]) -> CrossCache:  # type: ignore[override]
        """As the contract says. The encoder runs only for windows that it has not seen."""
        key = id(self.encoder)
        missing = [window for window in prompts if key not in window.encoded]
        if missing:
            outputs = self.encoder(mx.array(np.stack([window.features for window in missing])))
            for window, output in zip(missing, outputs, strict=True):
                window.encoded[key] = output
        encoded = mx.stack([window.encoded[key] for window in prompts])  # [B, S, d_model]
        return self.attend_to(encoded, np.ones(encoded.shape[:2], bool))

    def states(self, tokens: mx.array, positions: np.ndarray, cache: CrossCache) -> mx.array:
        known = self.known_positions(positions)
        cache.reserve(positions)
        x = self.embedding(tokens) + self.decoder.positions(mx.array(known))
        masks = [cache.self_mask()] * len(self.decoder.layers)
        return self.decoder(x, masks, cache)


NAMES = replace(
    BART,
    family="Whisper",
    rules=[
        (r"decoder\.embed_tokens\.weight", "embedding.weight"),
        (r"proj_out\.weight", "head.weight"),  # of adapters that train it by itself
        (r"encoder\.(conv[12])\.(weight|bias)", "encoder.{}.{}"),
        *BART.rules,
    ],
    embedding=("decoder.embed_tokens.weight", "proj_out.weight"),
)


def rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's tensors under our names, with convolutions in MLX's layout [out, width, in]."""
    renamed = NAMES.rename(tensors)
    for name, tensor in renamed.items():
        if len(tensor.shape) == 3:
            renamed[name] = tensor.permuted(0, 2, 1)
    return renamed


FAMILY = Family(Config, Whisper, rename, dtype="float16")
