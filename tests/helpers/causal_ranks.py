"""What test_causal.py has the ranks do: decode with a model that they share."""

import json
import sys
from pathlib import Path


def main() -> None:
    sys.path[:0] = [str(Path(__file__).parents[i]) for i in (1, 2)]
    from distributed.ranks import session
    from families.causal_loading import load
    from helpers.causal_models import prompts
    from helpers.decoding import decode_with
    from speculative.drafting import PromptLookup

    folder = Path(sys.argv[1])
    with session() as ranks:
        model, _ = load(folder, ranks.group)
        rows = decode_with(model, PromptLookup(), prompts(3, 9), 2, num_draft=3, max_tokens=5)
        heads = model.model.model.layers[0].self_attn.n_heads
        found = dict(texts=[row.generated for row in rows], heads=heads)
        (folder / f"{ranks.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
