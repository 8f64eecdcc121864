"""Those of mlx-lm's models that work here, tried one by one on small random weights: docs/mlx_lm_models.md.

    python -m docs.tools.compatibility > docs/mlx_lm_models.md

Some minutes. Progress goes to stderr.
"""

import sys
from importlib.metadata import version
from pathlib import Path
from textwrap import fill

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import mlx.core as mx
from helpers.causal_configs import WINDOW
from helpers.causal_models import alone, build, prompts
from helpers.decoding import decode_with

from speculative.common.errors import InputError
from speculative.drafters.draft_model import ModelDrafter
from speculative.drafters.drafter import Drafter
from speculative.models.causal import CausalModel

TEXTS = prompts(5, 30)
MAX_TOKENS = 10
SEEDS = 20
INTRO = """# mlx-lm's models

We tried every file of mlx-lm {mlx_lm} that defines a model, with small random weights in float32 on MLX {mlx}. This
page is what `python -m docs.tools.compatibility` prints.

A model works if its greedy text equals mlx-lm's own: {texts} prompts, three rows in a batch, without drafts and with
three tokens drafted by a disturbed copy. Sliding windows have {window} tokens, so texts outgrow them. Other models are
refused when they are loaded, with the reason. Models of text and images decode text only. For layers with a state, loading
checks that filler tokens of shorter rows do not change it; we tried {seeds} sets of weights in each type.

Rotary positions and sliding windows are read from config.json as transformers reads them. With the rope types dynamic
and longrope, texts end with the positions of the original training: a longrope model (Phi-3 128k, Phi-3.5, Phi-4-mini)
takes 4,096 tokens and refuses longer prompts.

The names are those of the files; config.json's `model_type` is the same or one of these: {aliases}.
"""

WORKING = {
    "": "",
    "windows": "\nWith sliding windows:\n",
    "states": "\nWith states, in batches as well:\n",
    "alone": "\nWith states, one text at a time because fillers change them:\n",
}


def attempt(name: str) -> tuple[str, str]:
    """("works", remark), ("refused", why), ("differs", how many) or ("not tried", why)."""
    try:
        lm = build(name)
    except (Exception, SystemExit) as error:
        return "not tried", str(error).splitlines()[0]
    try:
        model = CausalModel(lm)
    except InputError as error:
        return "refused", str(error).partition(" cannot be decoded here: ")[2]
    rows = model.max_rows or 3
    expected = [alone(lm, prompt, MAX_TOKENS) for prompt in TEXTS]
    different = 0
    for drafter, k in ((Drafter(), 0), (ModelDrafter(CausalModel(build(name, noise=0.1))), 3)):
        found = decode_with(model, drafter, TEXTS, rows, num_draft=k, max_tokens=MAX_TOKENS)
        different += sum(r.generated != e for r, e in zip(found, expected, strict=True))
    if different:
        return "differs", f"{different} of {2 * len(TEXTS)} texts"
    cache = model.new_cache(1)
    if cache.states:
        alike = together(name)
        if len(set(alike)) > 1:
            return "differs", f"in batches: {sum(alike)} of {len(alike)} sets of weights"
        return "works", "states" if alike[0] else "alone"
    return "works", "windows" if WINDOW in cache.windows else ""


def together(name: str) -> list[bool]:
    """Whether rows are decoded side by side, for each set of weights in each type that runs here."""
    found = []
    for dtype in (mx.float32, mx.bfloat16):
        for seed in range(SEEDS):
            lm = build(name, seed=seed)
            lm.set_dtype(dtype)
            try:
                found.append(CausalModel(lm).max_rows is None)
            except InputError as error:
                assert "CPU backend" in str(error)
                break
    return found


def main() -> None:
    import mlx_lm.models
    from mlx_lm.utils import MODEL_REMAPPING

    found: dict[str, dict[str, str]] = {}
    files = sorted(Path(mlx_lm.models.__path__[0]).glob("*.py"))
    for name in [file.stem for file in files if "class ModelArgs" in file.read_text()]:
        outcome, remark = attempt(name)
        found.setdefault(outcome, {})[name] = remark
        print(f"{name}: {outcome} {remark}", file=sys.stderr, flush=True)
    aliases = ", ".join(f"`{a}` ({file})" for a, file in sorted(MODEL_REMAPPING.items()))
    values = dict(mlx=version("mlx"), mlx_lm=version("mlx-lm"), texts=len(TEXTS))
    values |= dict(window=WINDOW, seeds=SEEDS)
    print(_filled(INTRO.format(aliases=aliases, **values)))
    print(f"## {len(found['works'])} work")
    for remark, heading in WORKING.items():
        names = [name for name, found_remark in found["works"].items() if found_remark == remark]
        print(f"{heading}\n{_listed(names)}")
    titles = {"refused": "are refused", "differs": "differ", "not tried": "untried"}
    for outcome, title in titles.items():
        if rows := found.get(outcome):
            print(f"\n## {len(rows)} {title}\n")
            print(_listed(list(rows)))


def _filled(text: str) -> str:
    parts = text.split("\n\n")
    return "\n\n".join(p if p.startswith("#") else fill(p, 130) for p in parts) + "\n"


def _listed(names: list[str]) -> str:
    return fill(", ".join(names), 130, break_on_hyphens=False)


if __name__ == "__main__":
    main()
