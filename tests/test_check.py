"""Each line of `benchmark.py --check` says ok on this processor, and WRONG once what it measures is wrong."""

import threading

import pytest

from benchmarks import check

slow = pytest.mark.slow


@pytest.fixture(autouse=True)
def less_work(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check, "PER_KIND", 1)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Pairs of each type, by name, made once."""
    made: dict[str, check.Pair] = {}

    def pair(name: str) -> list[check.Pair]:
        if name not in made:
            made[name] = check.Pair("T5", name, tmp_path_factory.mktemp("check"))
        return [made[name]]

    return pair


# Check -> the texts to spoil, by (pair, target, draft model, batch size).
FAULTS = {
    check.Pair.in_a_thread: lambda *_: threading.current_thread() is not threading.main_thread(),
    check.Pair.drafted: lambda pair, target, draft, size: draft is not None and size == 1,
    check.Pair.side_by_side: lambda pair, target, draft, size: draft is not None and size == 8,
    check.Pair.on_processor: lambda pair, target, draft, size: target is pair.exact,
}


@pytest.mark.parametrize(
    "name", ["float32", *(pytest.param(n, marks=slow) for n in check.TYPES[1:])]
)
@pytest.mark.parametrize("what", check.CHECKS)
def test_a_wrong_text_or_logit_turns_its_verdict(pairs, monkeypatch, what, name):
    (pair,), method = pairs(name), check.CHECKS[what]
    monkeypatch.setattr(check, "has_gpu", lambda: True)  # both sides are this processor
    verdict, measured = check.judge(what, method, lambda: [pair])
    assert verdict == check.OK and "texts" in measured
    texts, logits = check.texts, check.text_logits

    def spoilt_texts(target, draft=None, batch_size=1, most=None):
        rows = texts(target, draft, batch_size, most)
        if method in FAULTS and FAULTS[method](pair, target, draft, batch_size):
            rows[-1].tokens[-2] += 1
        return rows

    def spoilt_logits(model, row):
        return logits(model, row) * (1.1 if model is pair.exact and method not in FAULTS else 1)

    monkeypatch.setattr(check, "texts", spoilt_texts)
    monkeypatch.setattr(check, "text_logits", spoilt_logits)
    verdict, measured = check.judge(what, method, lambda: [pair])
    assert verdict == check.WRONG and "differ" in measured


def test_without_a_gpu_nothing_is_compared_with_it(monkeypatch):
    monkeypatch.setattr(check, "has_gpu", lambda: False)
    skipped = [what for what in check.CHECKS if check.judge(what, None, None)[0] == check.SKIPPED]
    assert skipped == ["logits, GPU and processor", "texts, GPU and processor"]
