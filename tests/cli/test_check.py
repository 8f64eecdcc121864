"""Each line of `benchmark.py --check` says ok on this processor, and WRONG once what it measures is wrong."""

import math
import re
import sys
import threading
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

import benchmark
from apps.cli import check
from apps.speech import audio
from speculative.step.row import Row

slow = pytest.mark.slow


@pytest.fixture(autouse=True)
def less_work(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check, "PER_KIND", 1)
    monkeypatch.setattr(check, "MAX_TOKENS", 12)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Pairs of each type, by name, made once."""
    made: dict[str, check.CheckedPair] = {}

    def pair(name: str) -> list[check.CheckedPair]:
        if name not in made:
            made[name] = check.CheckedPair("T5", name, tmp_path_factory.mktemp("check"))
        return [made[name]]

    return pair


# Check -> the texts to spoil, by (pair, target, draft model, batch size).
FAULTS = {
    check.CheckedPair.in_a_thread: lambda *_: (
        threading.current_thread() is not threading.main_thread()
    ),
    check.CHECKS["drafted, alone"]: lambda pair, target, draft, size: (
        draft is not None and size == 1
    ),
    check.CheckedPair.side_by_side: lambda pair, target, draft, size: (
        draft is not None and size == 8
    ),
    check.CheckedPair.on_processor: lambda pair, target, draft, size: target is pair.exact,
}


# Each check in float32 and in one of the other types, in turn.
CASES = [(name, "float32") for name in check.CHECKS]
CASES += [pytest.param(*case, marks=slow) for case in zip(check.CHECKS, cycle(check.TYPES[1:]))]


@pytest.mark.parametrize(("check_name", "name"), CASES)
def test_a_wrong_text_or_logit_turns_its_verdict(pairs, monkeypatch, check_name, name):
    (pair,), method = pairs(name), check.CHECKS[check_name]
    monkeypatch.setattr(check, "has_gpu", lambda: True)  # both sides are this processor
    verdict, measured = check.judge(check_name, method, lambda: [pair])
    assert verdict == check.OK, measured
    texts, logits = check.texts, check.text_logits

    def spoilt_texts(target, draft=None, batch_size=1):
        rows = texts(target, draft, batch_size)
        if method in FAULTS and FAULTS[method](pair, target, draft, batch_size):
            rows[-1].tokens[-2] += 1
        return rows

    def spoilt_logits(model, row):
        return logits(model, row) * (1.1 if model is pair.exact and method not in FAULTS else 1)

    monkeypatch.setattr(check, "texts", spoilt_texts)
    monkeypatch.setattr(check, "text_logits", spoilt_logits)
    verdict, measured = check.judge(check_name, method, lambda: [pair])
    assert verdict == check.WRONG and "differ" in measured


def judged(check_name: str, errors: list[float], tolerance: float = 0.1) -> check.Verdict:
    pair: Any = SimpleNamespace(tolerance=tolerance)
    return check.judge(check_name, lambda _: errors, lambda: [pair])


def test_a_near_tie_is_told_and_is_not_wrong():
    assert judged("", [0.0, 0.05]) == ("ok", "1 of 2 differ, by up to 5.0e-02 (rounding: 1.0e-01)")
    for error in (0.2, math.inf, math.nan):
        assert judged("", [0.0, error, 0.0])[0] == check.WRONG


def test_without_a_gpu_nothing_is_compared_with_it(monkeypatch):
    monkeypatch.setattr(check, "has_gpu", lambda: False)
    skipped = [
        check_name for check_name in check.CHECKS if judged(check_name, [0.0])[0] == check.SKIPPED
    ]
    assert skipped == ["logits, GPU and processor", "texts, GPU and processor"]


def test_texts_are_as_far_apart_as_the_logits_where_they_part(monkeypatch):
    logits = mx.array([[0.0, 9, 0, 0], [0, 3, -4, 1]])
    monkeypatch.setattr(check, "text_logits", lambda model, row: logits)

    def row(*tokens: int) -> Row:
        return Row([], tokens=list(tokens))

    assert check.margin(None, row(1, 2), row(1, 2)) == 0
    assert check.margin(None, row(1, 1), row(1, 3, 2)) == pytest.approx(0.5)
    assert check.margin(None, row(0, 1), row(2, 1)) > 0  # tied, but not equal
    assert check.margin(None, row(1, 1), row(1)) == math.inf


def test_another_clip_is_not_the_text_that_is_known(monkeypatch):
    assert check.clip()[0] == check.OK
    read_audio = audio.read
    monkeypatch.setattr(
        audio, "read", lambda file: read_audio(str(Path(file).parent / "german.wav"))
    )
    verdict, measured = check.clip()
    assert verdict == check.WRONG and measured.startswith("heard 'Der")


def test_a_check_that_raises_is_wrong_and_the_others_go_on(monkeypatch, capsys):
    def raises():
        print("a note", file=sys.stderr)
        raise RuntimeError("no stream\nin this thread")

    checks = {"first": raises, "second": lambda: (check.OK, "x"), "third": lambda: ("skipped", "y")}
    monkeypatch.setattr(check, "all_checks", lambda folder: checks.items())
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--check"])
    for status in (1, 0):
        with pytest.raises(SystemExit) as left:
            benchmark.main()
        printed, noted = capsys.readouterr()
        assert left.value.code == status and not noted
        if status:
            (line,) = [line for line in printed.splitlines() if "first" in line]
            assert line.split("|")[2:4] == [" WRONG   ", " RuntimeError: no stream "]
        assert printed.endswith(f"{'1 WRONG' if status else 'All is well'}; 1 skipped.\n")
        checks.pop("first", None)


@pytest.mark.slow
def test_all_of_it_on_one_screen(monkeypatch, capsys):
    less = dict(SIZE="demo", TYPES=("4 bits",), WIDTHS=(1, 2))
    for name, value in less.items():
        monkeypatch.setattr(check, name, value)
    assert check.all_is_well()
    printed = capsys.readouterr().out
    for check_name in (
        *check.CHECKS,
        *check.TYPES,
        "clip",
        "wait",
        "call, float32",
        "call, 4 bits",
    ):
        assert re.search(rf"(?m)^\| .*{check_name}", printed), check_name
    lines = printed.splitlines()
    assert len(lines) < 50 and max(map(len, lines)) < 160
