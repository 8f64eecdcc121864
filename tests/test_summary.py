"""--verbose: sums over texts, shares of the time, and a histogram that shows what it counts."""

from types import SimpleNamespace

import pytest

import main
from decoder import Options, batch_generate
from demo.examples import examples
from speculative.schedule import FixedSchedule
from terminal.summary import Summary, sparkline
from text.generation import Generation


@pytest.mark.parametrize(
    ("counts", "bars"),
    [
        ([8, 4, 0, 1], "█▄ ▁"),
        ([1000, 1], "█▁"),
        ([0, 0, 3], "  █"),
    ],
)
def test_a_bar_is_as_high_as_its_count(counts, bars):
    assert sparkline(counts) == bars


def summary_of(responses) -> Summary:
    summary = Summary()
    for response in responses:
        summary.add(response)
    return summary


def test_a_summary_is_the_sum_of_its_texts(demo_pair):
    target, tokenizer, draft = demo_pair
    prompts = [example.prompt for example in examples(3)]
    options = dict(draft_model=draft, num_draft=3)
    found = batch_generate(target, tokenizer, prompts, batch_size=4, **options)
    summary, parts = summary_of(found), [summary_of([response]) for response in found]
    assert summary.texts == len(prompts) and summary.cut == 0
    for name in ("prompt_tokens", "tokens", "target_calls", "drafted", "accepted"):
        of_parts = [getattr(part.stats, name) for part in parts]
        assert getattr(summary.stats, name) == sum(of_parts) > 0
    assert sum(summary.stats.accepted_lengths.values()) == summary.stats.target_calls
    for name in ("encoding_seconds", "preparing_seconds", "seconds"):
        assert getattr(summary.stats, name) > 0


def test_rows_share_the_time_of_their_steps(demo_pair, monkeypatch):
    """A batch's steps are not counted once for each of their rows."""
    target, tokenizer, draft = demo_pair
    prompts = [example.prompt for example in examples(2)]
    steps = []
    monkeypatch.setattr(FixedSchedule, "learns", True)
    monkeypatch.setattr(
        FixedSchedule,
        "observe",
        lambda self, step, *args: steps.append((args[0], step.draft.preparing_seconds)),
    )
    options = dict(draft_model=draft, num_draft=3)
    found = batch_generate(target, tokenizer, prompts, batch_size=4, **options)
    summary = summary_of(found)
    assert len(steps) < summary.stats.target_calls  # rows were decoded side by side
    assert summary.stats.seconds == pytest.approx(sum(seconds for seconds, _ in steps))
    assert summary.stats.preparing_seconds == pytest.approx(sum(reading for _, reading in steps))


def test_texts_that_max_tokens_cut_are_counted(demo_pair):
    target, tokenizer, _ = demo_pair
    prompts = [example.prompt for example in examples(1)]
    found = batch_generate(target, tokenizer, prompts, max_tokens=3)
    assert Summary().lines(1.0) == ["0 texts"]
    (first, _) = summary_of(found).lines(2.0)
    assert first.startswith("3 texts (3 cut at max_tokens): ")
    assert "9 tokens in 2.00 s, 4.5 tokens/s, 1.00 tokens per target call" in first


@pytest.mark.parametrize(
    ("longest", "told"),
    [
        (63, "the model's maximum length cut the text short\n"),
        (512, "--max-tokens 512 cut the text short; raise it for the rest\n"),
    ],
)
def test_what_cut_a_text_is_told(longest, told, capsys):
    args = SimpleNamespace(prompt_file=None, verbose=False)
    summary = Summary(texts=1, cut=1, longest_cut=longest)
    decoder = SimpleNamespace(model=SimpleNamespace(generation=Generation()))
    main.print_summary(args, decoder, Options(max_tokens=512), summary, 0.0)
    assert capsys.readouterr().err == told
