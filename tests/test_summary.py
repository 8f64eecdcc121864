"""--verbose: sums over texts, shares of the time, and a histogram that shows what it counts."""

from types import SimpleNamespace

import pytest

import main
from decoder import Options, batch_generate
from demo.examples import examples
from speculative.schedule import FixedSchedule
from terminal.summary import Summary, sparkline
from text.generation import Generation


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
