"""Whisper in MLX (Radford et al. 2022, arXiv 2212.04356), and distil-Whisper (Gandhi et al. 2023, arXiv 2311.00430).

A prompt is a single number, which names a window of sound. `Window` holds its features and what encoders made of
them, so a draft model with the target's encoder never runs it again.
Shapes: B rows, F frames of a window, S encoder positions (F / 2), T new tokens, V vocabulary.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from checkpoints.config import BaseConfig, token_id, token_ids
from checkpoints.tensors import Tensor
from errors import InputError
from families import Family, bart, encoder_decoder
from families.bart_checkpoints import NAMES as BART
from families.encoder_decoder import EncoderDecoder
from speculative.cache import CrossCache, table_positions
from speculative.model import Rows

# Keys and values of the sound, [1, H, S, D] each, of every layer
Pairs = Sequence[Sequence[mx.array]]
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

    norm_first = property(lambda c: True)
    frames = property(lambda c: 2 * c.max_source_positions)  # of a window

    @classmethod
    def from_hub(cls, raw: Mapping, weights: Iterable[str] | None) -> "Config":
        return cls.read(
            raw,
            "Whisper",
            pad_token_id=token_id(raw, "pad_token_id", _END),
            eos_token_ids=token_ids(raw.get("eos_token_id"), _END),
            decoder_start_token_id=token_id(raw, "decoder_start_token_id", _END + 1),
            max_positions=raw.get("max_target_positions", 448),
            max_source_positions=raw.get("max_source_positions", 1500),
            activation=raw.get("activation_function", "gelu"),
        )


class Window(list[int]):
    """A prompt: the number of a window of sound, with its features [F, bins] and encodings."""

    def __init__(self, number: int, features: np.ndarray):
        super().__init__([number])
        self.features = features
        self.encoded: dict[int, mx.array] = {}  # by encoder
        # called once, when a model has read it
        self.then: Callable[[Whisper, Pairs], object] | None = None


class Windows:
    """Windows of sound by number, each for as long as a row has it. A target and its draft model share them."""

    def __init__(self):
        self._numbers = count(1)
        self._windows = WeakValueDictionary[int, Window]()

    def add(self, features: np.ndarray) -> Window:
        """A window of features [F, bins]; its number is never used again."""
        window = Window(next(self._numbers), features)
        self._windows[window[0]] = window
        return window

    def __getitem__(self, number: int) -> Window:
        return self._windows[number]

    def encoded(self, numbers: Sequence[int], encoder: "Encoder") -> mx.array:
        """The encodings of these windows, [B, S, d_model]; the encoder runs only for those it has not seen."""
        windows, key = {n: self[n] for n in numbers}, id(encoder)
        missing = [window for window in windows.values() if key not in window.encoded]
        if missing:
            found = encoder(mx.array(np.stack([window.features for window in missing])))
            for window, encoded in zip(missing, found, strict=True):
                window.encoded[key] = encoded
        return mx.stack([windows[n].encoded[key] for n in numbers])


class Layer(bart.Layer):
    def __init__(self, c: Any, num_heads: int, ffn_dim: int, *attentions: str):
        super().__init__(c, num_heads, ffn_dim, *attentions)
        for name in attentions:
            self[name].key = nn.Linear(c.d_model, c.d_model, bias=False)


class Encoder(encoder_decoder.Stack):
    def __init__(self, c: Config):
        super().__init__()
        heads, inner = c.encoder_attention_heads, c.encoder_ffn_dim
        self.conv1 = nn.Conv1d(c.num_mel_bins, c.d_model, 3, padding=1)
        self.conv2 = nn.Conv1d(c.d_model, c.d_model, 3, stride=2, padding=1)
        self.positions = nn.Embedding(c.max_source_positions, c.d_model)
        self.layers = [Layer(c, heads, inner, "attention") for _ in range(c.encoder_layers)]
        self.norm = nn.LayerNorm(c.d_model)

    def __call__(self, features: mx.array) -> mx.array:  # type: ignore[override]
        """[B, S, d_model] from features [B, F, bins]. A window's padding is part of it: nothing is masked."""
        x = nn.gelu(self.conv1(features.astype(self.conv1.weight.dtype)))
        x = nn.gelu(self.conv2(x)) + self.positions.weight
        return super().__call__(x, [None] * len(self.layers))


class Decoder(encoder_decoder.Stack):
    def __init__(self, c: Config):
        super().__init__()
        parts = c.decoder_attention_heads, c.decoder_ffn_dim, "attention", "cross_attention"
        self.positions = nn.Embedding(c.max_positions, c.d_model)
        self.layers = [Layer(c, *parts) for _ in range(c.decoder_layers)]
        self.norm = nn.LayerNorm(c.d_model)


class Whisper(EncoderDecoder):
    fixed_vocabulary = True  # tokens without a name are timestamps

    def __init__(self, config: Config):
        super().__init__()
        c = self.config = config
        self.embedding = nn.Embedding(c.vocab_size, c.d_model)
        self.encoder, self.decoder = Encoder(c), Decoder(c)
        self.windows = Windows()

    def share(self, target: "Whisper", encoder: bool) -> None:
        """Draft for `target`: share its windows and, if `encoder` says that they are the same, its encoder. Raises
        InputError if this model needs other features."""
        ours, theirs = self.config, target.config
        if (ours.num_mel_bins, ours.frames) != (theirs.num_mel_bins, theirs.frames):
            raise InputError(
                f"the draft model reads {ours.num_mel_bins} bins and {ours.frames} frames, "
                f"the model {theirs.num_mel_bins} and {theirs.frames}"
            )
        self.windows = target.windows
        if encoder:
            self.encoder = target.encoder

    def prefix(self, prompt: Sequence[int]) -> list[int]:
        """Raise InputError: speech/rules.py gives a text its first tokens."""
        raise InputError("this model transcribes audio: use transcribe.py, or a server's /v1/audio")

    def start(self, prompts: Rows) -> CrossCache:
        """Encode the windows whose numbers the prompts are, and project their keys and values."""
        numbers = [int(prompt[0]) for prompt in prompts]
        memory = self.windows.encoded(numbers, self.encoder)
        cross = [layer.cross_attention.project(memory) for layer in self.decoder.layers]
        for b, window in enumerate(self.windows[n] for n in numbers):
            then, window.then = window.then, None
            if then:
                then(self, [[x[b : b + 1] for x in pair] for pair in cross])
        return CrossCache(cross, np.ones(memory.shape[:2], bool))

    def attention(
        self, tokens: mx.array, cross: Pairs, heads: Sequence[tuple[int, int]], positions: int
    ) -> tuple[mx.array, mx.array]:
        """The logits [1, T, V] of tokens [1, T], and how much each attends to the first encoder positions: float32
        weights [H, T, positions] of these heads, (layer, head), of the cross-attention. In one call, without a cache."""
        x = self.embedding(tokens) + self.decoder.positions.weight[: tokens.shape[1]]
        mask, weights = mx.tril(mx.ones([tokens.shape[1]] * 2, mx.bool_)), []
        for i, (layer, (keys, values)) in enumerate(zip(self.decoder.layers, cross, strict=True)):
            x = layer.residual(x, "attention", lambda y: layer.attend(y, mask, None, i))  # noqa: B023
            queries = layer.cross_attention.queries(layer.cross_attention_norm(x))
            own = [head for at, head in heads if at == i]
            if own:
                q, k = (y[0, own].astype(mx.float32) for y in (queries, keys[:, :, :positions]))
                scores = q @ k.swapaxes(1, 2) * q.shape[-1] ** -0.5
                weights.append(mx.softmax(scores, axis=-1))
            x = layer.residual(
                x,
                "cross_attention",
                lambda y: layer.cross_attention(y, keys, values, None),  # noqa: B023
            )
            x = layer.residual(x, "feed_forward", layer.feed_forward)
        return self.logits(self.decoder.norm(x)), mx.concatenate(weights)

    def decode(self, tokens: mx.array, positions: np.ndarray, cache: CrossCache) -> mx.array:
        """As the contract says. Raises InputError for a position beyond the model's last."""
        known, most = table_positions(positions), self.config.max_positions
        if known.max() >= most:
            raise InputError(f"the text is longer than the {most} positions that the model knows")
        cache.reserve(positions)
        x = self.embedding(tokens) + self.decoder.positions(mx.array(known))
        masks = [cache.self_mask()] * self.config.decoder_layers
        return self.logits(self.decoder(x, masks, cache))


_EMBEDDING = "decoder.embed_tokens.weight"
NAMES = replace(
    BART,
    family="Whisper",
    rules=[
        (r"decoder\.embed_tokens\.weight", "embedding.weight"),
        (r"proj_out\.weight", "head.weight"),  # always tied to the embedding
        (r"encoder\.(conv[12])\.(weight|bias)", "encoder.{}.{}"),
        *BART.rules,
    ],
    embedding=(_EMBEDDING, "proj_out.weight"),
)


def rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's tensors under our names, with convolutions in MLX's layout [out, width, in]."""
    found = NAMES.rename(tensors)
    for name in ("encoder.conv1.weight", "encoder.conv2.weight"):
        if (t := found.get(name)) and len(t.shape) == 3:
            o, i, width = t.shape
            by_out, by_in, by_place = t.strides or (i * width, width, 1)
            found[name] = replace(t, shape=(o, width, i), strides=(by_out, by_place, by_in))
    return found


FAMILY = Family(Config, Whisper, rename)
