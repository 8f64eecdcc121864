"""--verbose: sums over texts, shares of the time, and a histogram that shows what it counts."""

import pytest

from apps.cli.display import Summary, sparkline
from decoder import Batch, batch_generate
from demo.pair import examples


def test_a_bar_is_as_high_as_its_count():
    assert (sparkline([8, 4, 0, 1]), sparkline([1000, 1])) == ("█▄ ▁", "█▁")


def summary_of(responses) -> Summary:
    summary = Summary()
    for response in responses:
        summary.add(response)
    return summary


def test_rows_share_the_time_of_their_steps(demo_pair, monkeypatch):
    """A batch's steps are not counted once for each of their rows."""
    target, tokenizer, draft = demo_pair
    prompts = [example.prompt for example in examples(2)]
    steps = []
    monkeypatch.setattr(Batch, "observe", lambda self, step, finished: steps.append(step))
    options = dict(draft_model=draft, num_draft=3)
    responses = batch_generate(target, tokenizer, prompts, batch_size=4, **options)
    summary = summary_of(responses)
    assert len(steps) < summary.stats.target_calls  # rows were decoded side by side
    assert summary.stats.seconds == pytest.approx(sum(step.seconds for step in steps))
    assert summary.stats.preparing_seconds == pytest.approx(
        sum(step.draft.prefill_seconds for step in steps)
    )
