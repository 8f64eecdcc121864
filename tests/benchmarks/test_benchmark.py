"""The benchmark runs, and its instruments measure what they say. What they find is not asserted."""

import json
import re
from pathlib import Path

import mlx.core as mx
import pytest
from helpers import programs
from helpers.bart_tokenizers import checkpoint
from mlx.utils import tree_flatten

from apps.benchmarks import measuring
from apps.benchmarks.tables import costs
from apps.benchmarks.widening import widened_pair
from decoder import load
from demo.pair import demo_model
from docs.tools import picture
from speculative.models.conversion import convert
from speculative.step.row import Row
from speculative.step.timing import CallTimes


def reported(folder: Path, *arguments) -> tuple[str, dict]:
    """What the benchmark prints, and its last line, which is JSON."""
    result = programs.call(*arguments, cwd=folder, script="benchmark.py")
    assert result.returncode == 0, result.stderr
    return result.stdout, json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow
def test_speed_of_the_users_models_as_tables_and_json(demo_folders):
    models = "--model demo-target --draft-model demo-draft --drafter model lookup both"
    options = (
        "--kinds repair number --examples 1 --num-draft 4 auto --batch-size 1 2 --max-tokens 12"
    )
    printed, data = reported(demo_folders, *models.split(), *options.split())
    assert list(data["kinds"]) == ["repair", "number"]
    for kind, report in data["kinds"].items():
        assert f"## {kind}" in printed and report["prompts"].startswith("1 of")
        names = [run["decoding"] for run in report["runs"]]
        assert len(names) == 2 * (1 + 3 * 2)
        assert all(f"| {name} " in printed for name in names)
        assert report["step_ms"] > 0
        assert report["other texts"] == {}
        assert all(run["tokens/s"] > 0 for run in report["runs"])


@pytest.mark.slow
def test_models_of_other_families_are_measured(bart_folders, tmp_path):
    """With their languages."""
    checkpoint(tmp_path / "hub", bart_folders["nllb"], "nllb")
    target = convert(str(tmp_path / "hub"), tmp_path / "out", dtype="float32")
    models = ["--model", target, "--draft-model", target, "--target-lang", "fra_Latn"]
    _, report = reported(tmp_path, *models, *"--num-draft 3 --examples 1 --max-tokens 8".split())
    assert report["other texts"] == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draft-model", "x"], "--draft-model needs --model"),
        (["--model", "x", "--sizes", "t5-large", "t5-small"], "--sizes is for the demo models"),
        (["--sizes", "t5-large", "llama-60m"], "--sizes must be two T5 sizes or two Llama"),
        (["--check", "--examples", "1"], "--check goes with no other flag"),
        (["--examples", "145"], "has only 144 examples of each kind, not 145"),
        (["--model", "demo-target", "--prompt-file", "/dev/null"], "/dev/null: no prompts"),
    ],
)
def test_mistakes_are_one_line(demo_folders, arguments, message):
    result = programs.call(*arguments, cwd=demo_folders, script="benchmark.py")
    assert result.returncode in (1, 2)
    (line,) = result.stderr.splitlines()
    assert line.startswith("benchmark.py: ") and message in line


LARGER = pytest.param(("llama-demo", "llama-60m"), marks=pytest.mark.slow)


@pytest.mark.parametrize("sizes", [("demo", "t5-small"), LARGER])
def test_pairs_have_the_type_that_people_decode_in(tmp_path, monkeypatch, sizes):
    monkeypatch.chdir(tmp_path)
    for device, dtype in {mx.gpu: mx.bfloat16, mx.cpu: mx.float32}.items():
        monkeypatch.setattr(mx, "default_device", lambda device=device: device)
        for model in widened_pair(sizes):
            assert {weight.dtype for _, weight in tree_flatten(model.parameters())} == {dtype}


@pytest.mark.parametrize(("device", "dtype"), [(mx.gpu, mx.bfloat16), (mx.cpu, mx.float32)])
def test_the_embedded_pair_is_converted_to_that_type(tmp_path, monkeypatch, device, dtype):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mx, "default_device", lambda: device)
    assert load(demo_model("draft"))[0].embedding.weight.dtype == dtype


def test_every_way_takes_its_turn_at_every_source():
    calls = []

    def way(name):
        return lambda sources: (
            calls.append((name, sources)) or [Row([], tokens=[1, 2]) for _ in sources]
        )

    ways = {name: way(name) for name in "ab"}
    runs = measuring.take_turns(ways, [[1], [2], [3]], 2, lambda: None)
    assert calls[:2] == [("a", [[1]]), ("b", [[1]])]  # warming up
    first, second = [[1], [2]], [[3]]
    assert calls[2:] == [("a", first), ("b", first), ("b", second), ("a", second)]
    assert runs["a"].tokens == [4, 2] and len(runs["b"].rows) == 3


def test_the_costs_of_calls_are_medians(demo_pair):
    times = CallTimes(demo_pair[0], demo_pair[2], [5, 6], [1, 5])
    times._seconds |= {1: [3.0, 1.0, 2.0], 5: [4.0], "draft": [0.5]}
    assert [times.step(drafted) for drafted in (0, 2, 4)] == [2, 4, 6]
    assert costs(times) == {"step_ms": 2000, "verify_cost": {1: 1, 5: 2}, "draft_cost": 0.25}


def test_the_picture_shows_every_token_in_its_place(demo_pair):
    target, _, draft = demo_pair
    models = measuring.decoder(target, draft)
    runs = {name: picture.record(models, **options) for name, options in picture.WAYS.items()}
    shown = picture.svg(runs)
    texts = {"".join(token.text for token in tokens) for tokens in runs.values()}
    assert texts == {models.generate(picture.PROMPT)}
    lines = [re.sub("<.*?>", "", line).strip() for line in shown.splitlines() if "<animate" in line]
    assert " ".join(lines) == " ".join(list(texts) * len(runs))
    assert max(map(len, lines)) <= picture.COLUMNS
