"""What tests have the ranks do, and do alone to compare: decode in every way,
and write down all that came of it."""

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[2]))
from speculative.common import blas  # noqa: F401 (before MLX)

# isort: split
import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

PROMPTS = ["the cat sat on the mat, the cat sat on", "a bb a bb a bb", "ccc"]
WAYS = {
    "plain": dict(num_draft=0, batch_size=2, max_tokens=4),
    "draft": dict(num_draft=3, batch_size=2),
    "short": dict(num_draft=2, batch_size=3, max_tokens=3),
    "auto": dict(num_draft="auto", lookup=True, max_tokens=12),
    "coupled": dict(num_draft=2, temp=0.8, seed=3),
    "fresh": dict(num_draft=2, temp=3.0),
    "beams": dict(num_beams=3, num_samples=2, length_penalty=0.5, batch_size=2),
    "block": dict(num_draft=2, temp=0.8, seed=3, acceptance="block"),
}


def logits(model) -> list:
    """Of a batch with padding, in two steps, the second of which follows a rejection."""
    cache = model.start([[3, 9, 12, 5, 1], [7, 4, 1]])
    tokens = mx.array([[0, 8, 5], [0, 6, 11]])
    first = model.decode(tokens, np.array([[0, 1, 2]] * 2, np.int32), cache)
    cache.keep(np.array([3, 2]))
    second = model.decode(tokens[:, 1:], np.array([[3, 4], [2, 3]], np.int32), cache)
    return np.array(mx.concatenate([first, second], axis=1).astype(mx.float32)).tolist()


def decode(folder: str, ways: list[str], group=None, tampered: bool = False) -> dict:
    """Everything that the target and the draft model in `folder` write, by way."""
    from decoder import batch_generate, load

    target, tokenizer = load(f"{folder}/target", group)
    draft, _ = load(f"{folder}/draft", group, split=False)
    size = sum(weight.nbytes for _, weight in tree_flatten(target.parameters()))
    results = {"logits": logits(target), "bytes": size}
    if tampered:
        tamper(target, draft)
    for way in ways:
        options = dict(max_tokens=10) | WAYS[way]
        drafts = None if way == "lookup" else draft
        done = batch_generate(target, tokenizer, PROMPTS, drafts, **options)
        results[way] = [[r.tokens, r.stats.draft_tokens, r.stats.histogram(), r.seed] for r in done]
    return results


def tamper(target, draft) -> None:
    """What another kind of machine might do on this rank, exaggerated: other drafts, other logits from
    the same hidden states, and a clock without sense."""
    import decoder
    from speculative.step import driver

    rng = random.Random(0)
    decoder.time = driver.time = SimpleNamespace(perf_counter=lambda: rng.random() * 100)
    draft.decoder.norm.weight = -draft.decoder.norm.weight
    target.decoder.norm.weight = -target.decoder.norm.weight


def main() -> None:
    from speculative.models.ranks import session

    sys.modules["torch"] = None  # transformers would import it, for seconds; users need not have it
    jobs, output = json.loads(sys.argv[1]), sys.argv[2]
    with session() as ranks:
        results = []
        for job in jobs:
            strange = job.pop("tampered", False) and ranks.rank > 0
            results.append(decode(**job, group=ranks.group, tampered=strange))
        Path(f"{output}.{ranks.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
