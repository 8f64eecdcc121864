"""The benchmark runs, and its instruments measure what they say. What they find is not asserted."""

import json
import multiprocessing
import os
import re
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from helpers import programs
from helpers.bart_tokenizers import checkpoint
from mlx.utils import tree_flatten

import benchmark
from apps.benchmarks import measure
from apps.benchmarks.measure import costs
from decoder import load
from demo.pair import demo_model, examples
from docs.tools import picture
from speculative.models.conversion import convert
from speculative.step.timing import CallTimes


def reported(folder: Path, *arguments) -> tuple[str, dict]:
    """What the benchmark prints, and its last line, which is JSON."""
    result = programs.call(*arguments, cwd=folder, script="benchmark.py")
    assert result.returncode == 0, result.stderr
    return result.stdout, json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow
def test_speed_of_the_users_models_as_tables_and_json(demo_folders):
    models = "--model demo-target --draft-model demo-draft --drafter model lookup both"
    options = "--kinds repair number --examples 1 --num-draft 4 auto --batch-size 1 2"
    printed, data = reported(demo_folders, *models.split(), *options.split())
    assert list(data["kinds"]) == ["repair", "number"]
    for kind, report in data["kinds"].items():
        assert f"## {kind}" in printed and report["prompts"].startswith("1 of")
        names = [run["decoding"] for run in report["runs"]]
        assert len(names) == 2 * (1 + 3 * 2)
        assert all(f"| {name} " in printed for name in names)
        assert report["oracle"] > 0 and report["step_ms"] > 0
        assert report["other texts"] == {}
        assert all(run["tokens/s"] > 0 for run in report["runs"])


@pytest.mark.slow
def test_models_of_other_families_are_measured(bart_folders, tmp_path):
    """With their languages."""
    checkpoint(tmp_path / "hub", bart_folders["nllb"], "nllb")
    target = convert(str(tmp_path / "hub"), tmp_path / "out", dtype="float32")
    models = ["--model", target, "--draft-model", target, "--target-lang", "fra_Latn"]
    _, report = reported(tmp_path, *models, *"--num-draft 3 --examples 1 --max-tokens 8".split())
    assert report["other texts"] == {} and report["oracle"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draft-model", "x"], "--draft-model needs --model"),
        (["--model", "demo-target", "--baselines"], "--baselines are for the demo models"),
        (
            ["--model", "x", "--sizes", "t5-large", "t5-small"],
            "--sizes and --baselines are for the demo models",
        ),
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
        for model in measure.widened_pair(sizes):
            assert {weight.dtype for _, weight in tree_flatten(model.parameters())} == {dtype}


@pytest.mark.parametrize(("device", "dtype"), [(mx.gpu, mx.bfloat16), (mx.cpu, mx.float32)])
def test_the_embedded_pair_is_converted_to_that_type(tmp_path, monkeypatch, device, dtype):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mx, "default_device", lambda: device)
    assert load(demo_model("draft"))[0].embedding.weight.dtype == dtype


def test_an_oracle_takes_the_best_way():
    """Against all ways through short texts, and never beyond the end or what is known."""
    rng, by_length = np.random.default_rng(0), [1.0, 1.4, 1.5, 3.0]

    def ways(matches: list[bool]) -> list[float]:
        seconds = [] if matches else [0.0]
        for k in range(min(len(by_length), len(matches))):
            if all(matches[:k]):
                seconds += [by_length[k] + rest for rest in ways(matches[k + 1 :])]
        return seconds

    for length in range(9):
        matches = rng.random(length) < 0.7
        assert measure.min_seconds(matches, by_length) == pytest.approx(min(ways(matches.tolist())))


def test_what_an_oracle_knows_is_what_passes(demo_pair):
    """From wherever a draft begins, as many of its tokens pass as are known from there on."""
    target, _, draft = demo_pair
    for example in examples(2):
        (plain,) = measure.decoding(target, num_draft=0)([example.prompt])
        matches, _ = measure.draft_matches(draft, plain)
        for k in (3, 30):
            (row,) = measure.decoding(target, draft, num_draft=k)([example.prompt])
            at, expected = 0, Counter()
            while at < len(matches):
                passing = [*matches[at : at + k].tolist(), False].index(False)
                expected[passing] += 1
                at += passing + 1
            assert row.stats.accepted_lengths == expected


def test_every_way_takes_its_turn_at_every_source():
    calls = []

    def way(name):
        return lambda sources: calls.append((name, sources)) or [[1, 2] for _ in sources]

    ways = {name: way(name) for name in "ab"}
    runs = measure.take_turns(ways, [[1], [2], [3]], 2, lambda: None)
    assert calls[:2] == [("a", [[1]]), ("b", [[1]])]  # warming up
    first, second = [[1], [2]], [[3]]
    assert calls[2:] == [("a", first), ("b", first), ("b", second), ("a", second)]
    assert runs["a"].tokens == [4, 2] and len(runs["b"].texts) == 3


def test_blocks_alternate_with_pauses(monkeypatch):
    calls = []
    monkeypatch.setattr(measure.time, "sleep", lambda seconds: calls.append(seconds))
    ways = {name: lambda prompts, name=name: calls.append(name) or [[1]] * 2 for name in "ab"}
    measure.take_turns(ways, ["x", "y"], 2, lambda: calls.append("beside"), rounds=2, pause=1.0)
    assert calls[2:] == ["beside", 1.0, "a", 1.0, "b", "beside", 1.0, "b", 1.0, "a"]


def test_the_costs_of_calls_are_medians(demo_pair):
    times = CallTimes(demo_pair[0], demo_pair[2], [5, 6], [1, 5])
    times._seconds |= {1: [3.0, 1.0, 2.0], 5: [4.0], "draft": [0.5]}
    assert [times.step(drafted) for drafted in (0, 2, 4)] == [2, 4, 6]
    assert costs(times) == {"step_ms": 2000, "verify_cost": {1: 1, 5: 2}, "draft_cost": 0.25}


@pytest.mark.slow
def test_baselines_write_the_same_text(demo_pair, monkeypatch):
    pytest.importorskip("torch")
    from apps.benchmarks import baselines

    target, tokenizer, draft = demo_pair
    monkeypatch.setattr(baselines, "widened_pair", lambda sizes: (target, draft))
    generate = baselines.with_transformers(("t5-large", "t5-small"), 64)
    prompts = [example.prompt for example in examples(2)]
    sources = [tokenizer.encode(prompt).ids for prompt in prompts]
    ours = [row.generated for row in measure.decoding(target, num_draft=0)(prompts)]
    assert generate(sources) == ours  # side by side, of different lengths
    for options in ({}, {"assisted": True}, {"lookup": 10}):
        assert [generate([source], **options)[0] for source in sources[::3]] == ours[::3]


@pytest.mark.slow
def test_baselines_have_the_blas_of_their_own(monkeypatch):
    pytest.importorskip("torch")
    from apps.benchmarks import baselines

    monkeypatch.delenv("SPECULATIVE_BLAS", raising=False)
    with baselines.process() as library:
        assert library.submit(os.getenv, "SPECULATIVE_BLAS").result() == "0"
        assert not library.submit(os.getenv, "GOMP_SPINCOUNT").result()
        assert "SPECULATIVE_BLAS" not in os.environ


def test_a_blas_slower_than_that_of_the_baselines_is_named(monkeypatch, capsys):
    baselines = pytest.importorskip("benchmarks.baselines")
    monkeypatch.setattr(baselines.blas, "on_intel", lambda: True)
    monkeypatch.setattr(baselines, "process", ExitStack)
    for ours in ("MKL", "OpenBLAS", ""):
        monkeypatch.setattr(baselines.blas, "loaded", ours)
        baselines.ways(("t5-large", "t5-small"), 8, [1], ExitStack())
    assert re.findall(r"(.*) here; theirs is MKL", capsys.readouterr().out) == ["OpenBLAS"]


@pytest.mark.slow
def test_processes_of_baselines_have_ended_before_python_does(demo_pair, monkeypatch, tmp_path):
    """Python's end and that of an executor both close its pipes: an OSError about which nobody can do anything."""
    pytest.importorskip("torch")
    used = []

    def compare(*_) -> dict:
        used.extend(multiprocessing.active_children())
        return {}

    monkeypatch.setattr(measure, "widened_pair", lambda sizes: demo_pair[::2])
    monkeypatch.setattr(benchmark, "compare", compare)
    result = programs.call("--baselines", cwd=tmp_path, script="benchmark.py")
    assert result.returncode == 0 and result.stderr == ""
    assert used and not any(process.is_alive() for process in used)


def test_what_baselines_lack_is_named(demo_pair, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mlx_lm.generate", None)
    monkeypatch.setattr(measure, "widened_pair", lambda sizes: demo_pair[::2])
    arguments = "--baselines --sizes llama-demo llama-demo".split()
    result = programs.call(*arguments, cwd=tmp_path, script="benchmark.py")
    assert result.stderr.startswith("benchmark.py: --baselines needs mlx_lm.generate: pip install")


def test_the_picture_shows_every_token_in_its_place(demo_pair):
    target, _, draft = demo_pair
    models = measure.decoder(target, draft)
    runs = {name: picture.record(models, **options) for name, options in picture.WAYS.items()}
    shown = picture.svg(runs)
    texts = {"".join(token.text for token in tokens) for tokens in runs.values()}
    assert texts == {models.generate(picture.PROMPT)}
    lines = [re.sub("<.*?>", "", line).strip() for line in shown.splitlines() if "<animate" in line]
    assert " ".join(lines) == " ".join(list(texts) * len(runs))
    assert max(map(len, lines)) <= picture.COLUMNS
