"""What test_causal.py has the ranks do: decode with a model that they share."""

import json
import sys
from pathlib import Path


def main() -> None:
    sys.path[:0] = [str(Path(__file__).parents[i]) for i in (1, 2)]
    from distributed.ranks import session
    from errors import InputError
    from families.causal_loading import load
    from helpers.causal_loop import decode, lookup
    from helpers.causal_models import prompts

    folder = Path(sys.argv[1])
    with session() as ranks:
        model, _ = load(folder / "m", ranks.group)
        rows = decode(model, lookup, prompts(4, 20), 3, 3, 8)
        attention = model.model.model.layers[0].self_attn
        refused = ""
        try:
            load(folder / "gpt2", ranks.group)
        except InputError as error:
            refused = str(error)
        found = dict(
            texts=[row.written for row in rows],
            heads=attention.n_heads,
            weights=attention.q_proj.weight.shape,
            refused=refused,
        )
        (folder / f"{ranks.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
