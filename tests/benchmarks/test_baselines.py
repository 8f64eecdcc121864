"""What compares us with other libraries, and with an oracle, measures what it says."""

import json
import multiprocessing
import os
import re
import sys
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest
from helpers import programs

import benchmark
from apps.benchmarks.measuring import decoding
from demo.pair import examples
from docs.tools import baselines, oracle
from speculative.step.row import Row

PROGRAM = "docs.tools.baselines"


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
        assert oracle.min_seconds(matches, by_length) == pytest.approx(min(ways(matches.tolist())))


def test_what_an_oracle_knows_is_what_passes(demo_pair):
    """From wherever a draft begins, as many of its tokens pass as are known from there on."""
    target, _, draft = demo_pair
    for example in examples(2):
        (plain,) = decoding(target, num_draft=0)([example.prompt])
        matches, _ = oracle.draft_matches(draft, plain)
        for k in (3, 30):
            (row,) = decoding(target, draft, num_draft=k)([example.prompt])
            at, expected = 0, Counter()
            while at < len(matches):
                passing = [*matches[at : at + k].tolist(), False].index(False)
                expected[passing] += 1
                at += passing + 1
            assert row.stats.accepted_lengths == expected


def test_blocks_alternate_with_pauses(monkeypatch):
    calls = []
    monkeypatch.setattr(baselines.time, "sleep", lambda seconds: calls.append(seconds))
    rows = [Row([], tokens=[1])] * 2
    ways = {name: lambda prompts, name=name: calls.append(name) or rows for name in "ab"}
    baselines.in_blocks(ways, ["x", "y"], lambda: calls.append("beside"))
    assert calls[2:] == ["beside", 1.0, "a", 1.0, "b", "beside", 1.0, "b", 1.0, "a"]


@pytest.mark.slow
def test_baselines_write_the_same_text(demo_pair, monkeypatch):
    pytest.importorskip("torch")
    from docs.tools import torch_ways

    target, tokenizer, draft = demo_pair
    monkeypatch.setattr(torch_ways, "widened_pair", lambda sizes: (target, draft))
    generate = torch_ways.with_transformers(("t5-large", "t5-small"), 64)
    prompts = [example.prompt for example in examples(2)]
    sources = [tokenizer.encode(prompt).ids for prompt in prompts]
    ours = [row.generated for row in decoding(target, num_draft=0)(prompts)]
    assert generate(sources) == ours  # side by side, of different lengths
    for options in ({}, {"assisted": True}, {"lookup": 10}):
        assert [generate([source], **options)[0] for source in sources[::3]] == ours[::3]


@pytest.mark.slow
def test_baselines_have_the_blas_of_their_own(monkeypatch):
    pytest.importorskip("torch")
    from docs.tools import torch_ways

    monkeypatch.delenv("SPECULATIVE_BLAS", raising=False)
    with torch_ways.process() as library:
        assert library.submit(os.getenv, "SPECULATIVE_BLAS").result() == "0"
        assert not library.submit(os.getenv, "GOMP_SPINCOUNT").result()
        assert "SPECULATIVE_BLAS" not in os.environ


def test_a_blas_slower_than_that_of_the_baselines_is_named(monkeypatch, capsys):
    torch_ways = pytest.importorskip("docs.tools.torch_ways")
    monkeypatch.setattr(torch_ways.blas, "on_intel", lambda: True)
    monkeypatch.setattr(torch_ways, "process", ExitStack)
    for ours in ("MKL", "OpenBLAS", ""):
        monkeypatch.setattr(torch_ways.blas, "loaded", ours)
        torch_ways.ways(("t5-large", "t5-small"), 8, [1], ExitStack())
    assert re.findall(r"(.*) here; theirs is MKL", capsys.readouterr().out) == ["OpenBLAS"]


@pytest.mark.slow
def test_processes_of_baselines_have_ended_before_python_does(demo_pair, monkeypatch, tmp_path):
    """Python's end and that of an executor both close its pipes: an OSError about which nobody can do anything."""
    pytest.importorskip("torch")
    used = []

    def compare(*_) -> dict:
        used.extend(multiprocessing.active_children())
        return {}

    monkeypatch.setattr(benchmark, "widened_pair", lambda sizes: demo_pair[::2])
    monkeypatch.setattr(baselines, "compare", compare)
    result = programs.call(cwd=tmp_path, script=PROGRAM)
    assert result.returncode == 0 and result.stderr == ""
    assert used and not any(process.is_alive() for process in used)


def test_what_baselines_lack_is_named(demo_pair, monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "docs.tools.mlx_lm_ways", raising=False)
    monkeypatch.setitem(sys.modules, "mlx_lm.generate", None)
    monkeypatch.setattr(benchmark, "widened_pair", lambda sizes: demo_pair[::2])
    arguments = "--sizes llama-demo llama-demo".split()
    result = programs.call(*arguments, cwd=tmp_path, script=PROGRAM)
    assert result.stderr.startswith(f"{PROGRAM}: this needs mlx_lm.generate: pip install")


@pytest.mark.parametrize("arguments", [["--model", "demo-target"], ["--check"]])
def test_what_is_not_compared_is_one_line(arguments, tmp_path):
    result = programs.call(*arguments, cwd=tmp_path, script=PROGRAM)
    (line,) = result.stderr.splitlines()
    assert result.returncode == 1 and line.startswith(f"{PROGRAM}: --check, --model and --per-turn")


@pytest.mark.slow
def test_the_speed_of_an_oracle_is_told(demo_pair, monkeypatch, tmp_path):
    """Once for each table."""
    monkeypatch.setattr(baselines, "PAUSE", 0)
    monkeypatch.setattr(baselines, "their_ways", lambda *_: {})
    arguments = "--sizes demo demo --kinds repair number --examples 1 --num-draft 4 --max-tokens 8"
    result = programs.call(*arguments.split(), cwd=tmp_path, script=PROGRAM)
    data = json.loads(result.stdout.splitlines()[-1])
    for kind in ("repair", "number"):
        assert f"## {kind}" in result.stdout and data[kind]["other texts"] == {}
        assert data[kind]["oracle"]["tokens/s"] > 0
        assert data[kind]["oracle"]["model, num_draft 4"] > 0
