"""Small models of random weights, and the logits of ours and of transformers' for the same inputs."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import torch

from helpers import checkpoints
from helpers.oracle import flat_weights, until
from model import T5
from speculative.checkpoints.folder import open_checkpoint
from speculative.checkpoints.tensors import to_mlx
from speculative.models.registry import build, family_of
from speculative.models.t5 import Config

B, S, T = 3, 40, 30  # rows, source tokens and decoder tokens of `padded_inputs`


# Standard deviations, of matrices by the root of their inputs. With MLX's own the embedding outweighs all
# else, a text is one token over and over, and a test of texts sees little of the cache.
_SPREAD = {"norm": 0.2, "relative_bias": 2.0, "embedding": 0.02, "query": 1.5, "key": 1.5}


def random_model(variant: str = "t5", **changes) -> T5:
    """A model of one of checkpoints.VARIANTS whose texts hang on the prompt and on every position."""
    model = T5(Config.from_hub(checkpoints.VARIANTS[variant] | changes, []))
    rng = np.random.default_rng(0)

    def draw(name: str, shape: tuple[int, ...]) -> mx.array:
        spread = next((s for part, s in _SPREAD.items() if part in name), None)
        mean = 1.0 if "norm" in name else 0.0
        inputs = 1 if spread and "attention." not in name else shape[-1]
        weight = rng.normal(mean, (spread or 1.0) * inputs**-0.5, shape)
        return mx.array(weight.astype(np.float32))

    model.load_weights([(name, draw(name, weight.shape)) for name, weight in flat_weights(model)])
    return model


def mlx_model(folder: Path, raw: dict):
    """Ours of any family with a checkpoint's weights, without a conversion."""
    family = family_of(raw)
    tensors = family.rename(open_checkpoint(folder))
    config = family.config.from_hub(raw, tensors)
    model = build(family.model(config), tensors)
    arrays = {name: np.concatenate(list(tensor.blocks())) for name, tensor in tensors.items()}
    model.load_weights([(name, to_mlx(array)) for name, array in arrays.items()])
    return model


def padded_inputs(vocab_size: int):
    """Source tokens, their mask (row 0 whole, rows 1 and 2 padded), decoder tokens."""
    rng = np.random.default_rng(0)
    source = rng.integers(3, vocab_size, (B, S))
    target = rng.integers(3, vocab_size, (B, T))
    mask = np.ones((B, S), bool)
    mask[1, 25:] = mask[2, 7:] = False
    return source, mask, target


def reference_logits(reference, source, mask, target) -> np.ndarray:
    with torch.no_grad():
        output = reference(
            input_ids=torch.tensor(source),
            attention_mask=torch.tensor(mask).long(),
            decoder_input_ids=torch.tensor(target),
        )
    return output.logits.float().numpy()


def rows_of(tokens: np.ndarray, mask: np.ndarray) -> list[list[int]]:
    """The rows of a padded array [B, S]; mask [B, S], true on tokens."""
    return [row[:n].tolist() for row, n in zip(tokens, mask.sum(axis=1), strict=True)]


def cached_logits(model, source, mask, target, blocks: int | list[int]) -> np.ndarray:
    """Through the cache, in blocks of a size or of several."""
    rows, count = target.shape
    if isinstance(blocks, int):
        blocks = [blocks] * -(-count // blocks)
    cache, parts, start = model.start(rows_of(source, mask)), [], 0
    for width in blocks:
        tokens = target[:, start : start + width]
        positions = np.tile(np.arange(start, start + tokens.shape[1], dtype=np.int32), (rows, 1))
        logits = model.decode(mx.array(tokens), positions, cache)
        parts.append(np.array(logits.astype(mx.float32)))
        start += width
    return np.concatenate(parts, axis=1)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def reference_texts(
    reference, prompts: list[list[int]], max_tokens: int | None, eos: list[int], **settings
) -> list:
    """What transformers' generate writes for each prompt, greedily, the end of sequence included."""
    width = max(map(len, prompts))
    padded = torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in prompts])
    mask = torch.tensor([[1] * len(p) + [0] * (width - len(p)) for p in prompts])
    rows = reference.generate(
        input_ids=padded,
        attention_mask=mask,
        max_new_tokens=max_tokens,
        eos_token_id=eos,
        do_sample=False,
        **settings,
    )
    return [until(eos, row[1:]) for row in rows.tolist()]
