"""What small random models of mlx-lm's write here, in every way, against mlx-lm's own greedy text alone.

    python -m tests.helpers.compare_texts [architecture ...]

Batches, drafters and draft lengths; prompts of 1 to 60 tokens, more of them than a batch has rows; where
there are sliding windows, most texts are longer than these. The test suite runs the same over fewer.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[i]) for i in (1, 2)]

from families.causal import CausalModel
from speculative.drafting import CombinedDrafter, Drafter, ModelDrafter, PromptLookup

from .causal_models import alone, build, prompts
from .decoding import decode_with, partial_steps

ARCHITECTURES = """llama qwen2 qwen3 gemma gemma2 gemma3_text gemma3n gemma4_text phi3 mixtral olmo2 olmo3
gpt2 gpt_oss deepseek_v3 qwen3_moe cohere2 starcoder2""".split()
BATCHES = (1, 3, 5)


def ways(name: str, model: CausalModel) -> Iterator[tuple[str, Drafter, int]]:
    """Nothing drafts; the model itself, one that is often right, another, the prompt, the prompt or a
    model."""
    noised = CausalModel(build(name, noise=0.1))
    yield "plain", Drafter(), 0
    yield "itself", ModelDrafter(model), 3
    yield from (("noised", ModelDrafter(noised), k) for k in (1, 3, 5))
    yield "another", ModelDrafter(CausalModel(build("llama", seed=5))), 3
    yield "lookup", PromptLookup(), 5
    yield "both", CombinedDrafter(PromptLookup(), ModelDrafter(noised)), 3


def compare(name: str, count: int = 8, max_tokens: int = 20) -> Counter:
    """Texts that are equal and different, and steps that kept a part of their draft."""
    lm = build(name)
    model, found = CausalModel(lm), Counter()
    prompted = prompts(count, 60)
    expected = [alone(lm, prompt, max_tokens) for prompt in prompted]
    for way, drafter, k in ways(name, model):
        for batch_size in BATCHES:
            options = dict(num_draft=k, max_tokens=max_tokens)
            rows = decode_with(model, drafter, prompted, batch_size, **options)
            for row, text in zip(rows, expected, strict=True):
                equal = row.generated == text
                found["equal" if equal else f"different: {way} {k} {batch_size}"] += 1
            found["partial"] += partial_steps(rows, k)
    return found


def main() -> None:
    total: Counter = Counter()
    for name in sys.argv[1:] or ARCHITECTURES:
        began = time.perf_counter()
        found = compare(name)
        total += found
        print(f"{name:14} {dict(found)}, {time.perf_counter() - began:.0f} s", flush=True)
    print(dict(total))


if __name__ == "__main__":
    main()
