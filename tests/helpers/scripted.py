"""A stand-in for a model whose next token is a function of the source and all tokens before.

It reads those tokens back from the cache's slots, and insists that a query sees every position
before it exactly once: a token kept twice, lost or not forgotten is an error, not a lower score.
"""

import random
import zlib
from types import SimpleNamespace

import mlx.core as mx
import numpy as np

from speculative.drafters import draft_model
from speculative.models.contract import Model, padded
from speculative.step import driver
from speculative.step.cache import MASKED, CrossCache

PAD, EOS, START = 0, 1, 2


def scripted_next(source: tuple[int, ...], prefix: tuple[int, ...], vocab_size: int) -> int:
    return 3 + zlib.crc32(bytes(source) + b"|" + bytes(prefix)) % (vocab_size - 3)


class ScriptedModel(Model):
    """`next_token(source, prefix)`: the argmax after `prefix`, the start token first."""

    def __init__(self, next_token, vocab_size: int = 50):
        self.config = SimpleNamespace(
            vocab_size=vocab_size,
            pad_token_id=PAD,
            eos_token_ids=(EOS,),
            max_positions=None,
            max_prompt_tokens=None,
        )
        self.next_token = next_token
        self.calls = 0
        self.reads: list[int] = []  # how many tokens each call had, prompts included

    def prefix(self, prompt) -> list[int]:
        return [START]

    def start(self, prompts) -> CrossCache:
        """A cache of one layer whose cross-attention holds the prompt's tokens themselves."""
        tokens, mask = padded(prompts, PAD)
        self.reads.append(tokens.shape[1])
        return CrossCache([(mx.array(tokens)[:, None, :, None],) * 2], mask)

    def decode(self, tokens: mx.array, positions: np.ndarray, cache: CrossCache) -> mx.array:
        self.calls += 1
        self.reads.append(tokens.shape[1])
        B, T = tokens.shape
        visible = cache.reserve(positions)  # [B, N]
        slots, _ = cache.append(0, *(tokens[:, None, :, None].astype(mx.int32),) * 2)
        slots = np.array(slots)[:, 0, :, 0]
        memory = np.array(cache.cross[0][0])[:, 0, :, 0]
        logits = np.zeros((B, T, self.config.vocab_size), np.float32)
        for b, t in np.argwhere(positions != MASKED):
            seen = np.flatnonzero(visible[b] <= positions[b, t])
            seen = seen[np.argsort(visible[b, seen], kind="stable")]
            assert visible[b, seen].tolist() == list(range(positions[b, t] + 1))
            source = tuple(memory[b, cache.mask[b]].tolist())
            logits[b, t, self.next_token(source, tuple(slots[b, seen].tolist()))] = 1
        return mx.array(logits)


def plain(model: ScriptedModel, source: list[int], max_tokens: int) -> list[int]:
    prefix = [START]
    while len(prefix) <= max_tokens and prefix[-1] != EOS:
        prefix.append(model.next_token(tuple(source), tuple(prefix)))
    return prefix[1:]


SHARES = (0.0, 0.5, 0.8, 1.0)


def agreeing(share: float | None = None, ends: float = 0.0, copies: float = 0.0):
    """A target whose next token depends on everything before, and a draft that agrees with it on about
    `share` of the prefixes (None: on one of SHARES, by the prompt). Each token is the end of sequence with
    probability `ends`, else with probability `copies` what follows the last token in the prompt."""

    def target(source, prefix):
        rng = random.Random(scripted_next(prefix, source, 2**31))
        if rng.random() < ends:
            return EOS
        if rng.random() < copies and prefix[-1] in source[:-1]:
            return source[source.index(prefix[-1]) + 1]
        return scripted_next(source, prefix, 50)

    def draft(source, prefix):
        token = target(source, prefix)
        likely = SHARES[scripted_next(source, (), 99) % 4] if share is None else share
        agrees = random.Random(scripted_next(source, prefix, 2**30)).random() < likely
        return token if agrees else 3 + (token + 1) % 47

    return ScriptedModel(target), ScriptedModel(draft)


class Clock:
    """Time that passes only where a model works."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        for module in (driver, draft_model):
            monkeypatch.setattr(module, "time", self)

    def perf_counter(self) -> float:
        return self.now

    def charge(self, model, call: float, token: float) -> None:
        """From now on a call of the model takes so many seconds, and each of its tokens."""
        decode = model.decode

        def timed(tokens, positions, cache):
            self.now += call + token * tokens.shape[1]
            return decode(tokens, positions, cache)

        model.decode = timed
