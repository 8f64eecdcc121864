"""The parts that encoder-decoder models share: attention, stacks of layers, and their part of a model's contract.

Shapes: B rows, S source tokens, T new tokens, N cache slots, H heads, D head width, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Self

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from speculative.common.errors import InputError
from speculative.models.contract import Model, TokenLists, padded
from speculative.step.cache import MASKED, CrossCache

Sublayer = Callable[[mx.array], mx.array]
Mask = mx.array | None  # boolean, or added to scores: broadcast to [B, H, T, N]; None: hide nothing

_TANH_GELUS = "gelu_new gelu_fast gelu_accurate gelu_pytorch_tanh gelu_python_tanh".split()
_SAME_NAMES = "gelu hardswish leaky_relu mish relu relu2 relu6 sigmoid silu tanh".split()
_ACTIVATIONS: dict[str, Sublayer] = {  # those of transformers' ACT2FN that have no weights
    **{name: getattr(nn, name) for name in _SAME_NAMES},
    **dict.fromkeys(_TANH_GELUS, nn.gelu_approx),
    "gelu_10": lambda x: mx.clip(nn.gelu(x), -10, 10),
    "gelu_python": nn.gelu,
    "laplace": lambda x: (1 + mx.erf((x - 0.5**0.5) / (0.282095 * 2**0.5))) / 2,
    "linear": lambda x: x,
    "quick_gelu": nn.gelu_fast_approx,
    "sqrtsoftplus": lambda x: mx.sqrt(nn.softplus(x)),
    "swish": nn.silu,
}


def activation(name: str) -> Sublayer:
    """The function that config.json calls `name`."""
    if name not in _ACTIVATIONS:
        raise InputError(f"config.json: unknown activation {name!r}")
    return _ACTIVATIONS[name]


class Attention(nn.Module):
    """Multi-head attention."""

    def __init__(
        self, dims: int, num_heads: int, head_width: int, scale: float = 1.0, bias: bool = False
    ):
        super().__init__()
        self.head_width = head_width
        self._scale = scale
        inner = num_heads * head_width
        self.query = nn.Linear(dims, inner, bias)
        self.key = nn.Linear(dims, inner, bias)
        self.value = nn.Linear(dims, inner, bias)
        self.out = nn.Linear(inner, dims, bias)

    def heads(self, name: str, x: mx.array, *positions: mx.array) -> mx.array:
        """[B, H, T, D]: the "query", "key" or "value" of x [B, T, d_model]. positions [B, T]: to rotate them."""
        B, T, _ = x.shape
        return self[name](x).reshape(B, T, -1, self.head_width).transpose(0, 2, 1, 3)

    def project(self, x: mx.array, *positions: mx.array) -> tuple[mx.array, mx.array]:
        """Keys and values, [B, H, T, D] each, from x [B, T, d_model]."""
        return self.heads("key", x, *positions), self.heads("value", x)

    def scores(self, queries: mx.array, keys: mx.array) -> mx.array:
        """Before softmax, [B, H, T, N], from queries [B, H, T, D] and keys [B, H, N, D]."""
        return (queries * self._scale) @ keys.swapaxes(2, 3)

    def attend(self, queries: mx.array, keys: mx.array, values: mx.array, mask: Mask) -> mx.array:
        attention = mx.fast.scaled_dot_product_attention
        return attention(queries, keys, values, scale=self._scale, mask=mask)

    def __call__(
        self, x: mx.array, keys: mx.array, values: mx.array, mask: Mask, *positions: mx.array
    ) -> mx.array:
        B, T, _ = x.shape
        heads = self.attend(self.heads("query", x, *positions), keys, values, mask)
        out = self.out(heads.transpose(0, 2, 1, 3).reshape(B, T, -1))
        # Some weights overflow float16 here; transformers clamps T5's as well.
        return mx.clip(out, -65504, 65504) if out.dtype == mx.float16 else out


def wide(x: mx.array) -> mx.array:
    """x, of float16 in float32: what outgrows float16, such as T5's residual stream."""
    return x.astype(mx.float32) if x.dtype == mx.float16 else x


class FeedForward(nn.Module):
    def __init__(self, dims: int, inner: int, activation_name: str, gated: bool):
        super().__init__()
        self._activation = activation(activation_name)
        if gated:
            self.gate = nn.Linear(dims, inner, bias=False)
        self.up = nn.Linear(dims, inner, bias=False)
        self.down = nn.Linear(inner, dims, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        if "gate" not in self:
            return self.down(self._activation(self.up(x)))
        # Their product outgrows float16; conversion keeps `down` in float32.
        return self.down(self._activation(wide(self.gate(x))) * wide(self.up(x)))


class Layer(nn.Module):
    """`attention`, `cross_attention` (in decoders) and `feed_forward`, each with a norm."""

    def residual(self, x: mx.array, name: str, sublayer: Sublayer) -> mx.array:
        """The residual stream x after the sub-layer `name`."""
        return x + sublayer(self[f"{name}_norm"](x))

    def attend(
        self, x: mx.array, mask: Mask, cache: CrossCache | None, index: int, *positions: mx.array
    ) -> mx.array:
        keys, values = self.attention.project(x, *positions)
        if cache is not None:
            keys, values = cache.append(index, keys, values)
        return self.attention(x, keys, values, mask, *positions)

    def __call__(
        self, x: mx.array, mask: Mask, cache: Any, index: int, *positions: mx.array
    ) -> mx.array:
        """cache: the decoder's, where this layer is number `index`; None in the encoder."""
        x = self.residual(x, "attention", lambda y: self.attend(y, mask, cache, index, *positions))
        if cache is not None and "cross_attention" in self:
            source = (*cache.cross[index], cache.cross_mask)
            x = self.residual(x, "cross_attention", lambda y: self.cross_attention(y, *source))
        return self.residual(x, "feed_forward", self.feed_forward)


class Stack(nn.Module):
    """The encoder or the decoder: `layers` and, in most families, a last `norm`. A draft model's may have a module `mix`,
    which makes what is added to its first layer's input from `previous` in its cache."""

    def only(self, indices: Sequence[int]) -> Self:
        part = copy(self)
        part.layers = [self.layers[i] for i in indices]
        return part

    def __call__(
        self, x: mx.array, masks: Sequence[Mask], cache: Any = None, *positions: mx.array
    ) -> mx.array:
        """masks: one per layer. cache: the decoder's."""
        if "mix" in self and cache and cache.previous is not None:
            x = x + self.mix(cache.previous)
        outputs = []
        for i, (layer, mask) in enumerate(zip(self.layers, masks, strict=True)):
            x = layer(x, mask, cache, i, *positions)
            outputs.append(x)
        out = self.norm(x) if "norm" in self else x
        if cache and cache.states_of:
            cache.add_states(cache.states_of(outputs, out))
        return out


class NarrowedEmbedding(nn.Module):
    """An embedding that keeps only some of its rows when used as the head."""

    def __init__(self, whole: nn.Module, rows: nn.Module):
        super().__init__()
        self.whole = whole
        self.rows = rows

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.whole(tokens)

    def as_linear(self, x: mx.array) -> mx.array:
        return self.rows.as_linear(x)


class LanguageModel(Model, nn.Module):
    """A model with an `embedding` and, unless that is the head as well, a `head`."""

    def known_positions(self, positions: np.ndarray) -> np.ndarray:
        """Positions to look up in a table, a filler's too. InputError for one beyond the model's last."""
        known = np.where(positions == MASKED, 0, positions)  # MLX reads beyond a table's end
        limit = self.config.max_positions
        if limit and known.max() >= limit:
            raise InputError(f"the text is longer than the {limit} positions that the model knows")
        return known

    def logits(self, states: mx.array) -> mx.array:
        return self.head(states) if "head" in self else self.embedding.as_linear(states)

    def narrowed(self, ids: mx.array) -> Any:
        """As the contract says; nothing but the head is copied. It is the linear layer with as many rows as the vocabulary
        or, if there is none, the embedding."""

        def replaced(module: nn.Module, *kinds: type) -> nn.Module:
            if isinstance(module, kinds) and len(module.weight) == self.config.vocab_size:
                rows = copy(module)
                for name in ("weight", "scales", "biases", "bias"):  # quantized within a row
                    if name in rows:
                        rows[name] = rows[name][ids]
                # What is lazy can only be computed by the thread that made it.
                mx.eval(rows.parameters())
                return NarrowedEmbedding(module, rows) if hasattr(module, "as_linear") else rows
            parts = {name: part for name, part in module.items() if isinstance(part, nn.Module)}
            new = {name: replaced(part, *kinds) for name, part in parts.items()}
            if all(new[name] is part for name, part in parts.items()):
                return module
            module = copy(module)
            module.update_modules(new)
            return module

        draft = replaced(self, nn.Linear, nn.QuantizedLinear)
        return draft if draft is not self else replaced(self, nn.Embedding, nn.QuantizedEmbedding)


class EncoderDecoder(LanguageModel):
    """The part of the contract (speculative/models/contract.py) that these models share.

    A family has `encoder` and `decoder`, and adds `states` and `encode`, from tokens [B, S] with mask [B, S] to
    [B, S, d_model], finite on padding too.
    """

    def prefix(self, prompt: Sequence[int]) -> list[int]:
        return [self.config.decoder_start_token_id]

    def start(self, prompts: TokenLists) -> CrossCache:
        """As the contract says. Tokens that the model lacks (another model's) become padding."""
        tokens, mask = padded(prompts, self.config.pad_token_id)
        S = tokens.shape[1]
        limit = self.config.max_prompt_tokens
        if limit is not None and limit < S:
            raise InputError(f"a source of {S} tokens; the model reads {limit} at most")
        if not mask.any(axis=1).all():
            raise InputError("a source without a token cannot be encoded")
        tokens = np.where(tokens < self.source_vocab_size, tokens, self.config.pad_token_id)
        return self.attend_to(self.encode(mx.array(tokens), mask), mask)

    def attend_to(self, encoded: mx.array, mask: np.ndarray, kind: type = CrossCache) -> CrossCache:
        """A cache, of a class, for sources that are encoded, [B, S, d_model], with their mask [B, S]."""
        readers = [each.get("cross_attention", each.attention) for each in self.decoder.layers]
        return kind([reader.project(encoded) for reader in readers], mask, encoded)

    def blank_prompt(self, size: int) -> Sequence[int]:
        """A prompt of so many tokens, or of as many as the model reads."""
        return [self.config.pad_token_id] * min(size, self.config.max_prompt_tokens or size)

    def prompt_array(self, prompt: Sequence[int]) -> np.ndarray:
        """A prompt as an array to be stored, of which `array_prompt` makes one again."""
        return np.array(prompt, np.int32)

    def array_prompt(self, array: np.ndarray) -> Sequence[int]:
        return array.tolist()

    def attention(
        self, prompts: TokenLists, tokens: mx.array, heads: Mapping[int, Sequence[int] | None]
    ) -> tuple[mx.array, dict[int, mx.array]]:
        """The logits [B, T, V] of tokens [B, T], a row's prefix and text; and for each decoder layer in `heads` the float32
        scores [B, H, T, S] of these heads (None: all) for the source alone, before softmax, -inf on padding."""
        cache = self.start(prompts)
        S = cache.mask.shape[1]
        scores = dict[int, mx.array]()

        def keep(layer: int, attention: Attention, queries: mx.array, keys: mx.array, *rest: Any):
            own = heads[layer]
            own = range(queries.shape[1]) if own is None else own
            shared = queries.shape[1] // keys.shape[1]  # query heads to a key head
            q = queries[:, list(own)].astype(mx.float32)
            k = keys[:, [head // shared for head in own], -S:].astype(mx.float32)
            x = attention.scores(q, k)
            mask = cache.cross_mask
            scores[layer] = x if mask is None else mx.where(mask, x, -mx.inf)
            return type(attention).attend(attention, queries, keys, *rest)

        model = copy(self)
        model.decoder = copy(self.decoder)
        model.decoder.layers = [copy(layer) for layer in self.decoder.layers]
        for i in heads:
            layer = model.decoder.layers[i]
            name = "cross_attention" if "cross_attention" in layer else "attention"
            layer[name] = copy(layer[name])
            layer[name].attend = partial(keep, i, layer[name])
        positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
        return model.decode(tokens, positions, cache), scores
