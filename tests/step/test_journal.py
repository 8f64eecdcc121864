"""Rows that an interrupted run has finished are not decoded again, and no other row gets their texts."""

from contextlib import closing
from dataclasses import fields, replace

import pytest

from decoder import Options
from speculative.common.files import Journal
from speculative.step.beams import BeamRow
from speculative.step.journal import RowJournal, kept
from speculative.step.processors import MinTokens
from speculative.step.row import Row, Stats

OTHER = {  # values for the options, other than the default
    str: "x{text}", int: 2, float: 0.5, bool: True, list: [3], dict: {3: 1.0},
}  # fmt: skip
VALUES = {"bad_words_ids": [[3]], "processors": [MinTokens(1, (2,))], "stop": ["x"]}
VALUES |= {"temp": 0.5, "acceptance": "token", "early_stopping": True, "num_samples": 2}
NO_TEXT = {"num_draft", "lookup", "reference"}  # say how it is drafted
IN_ROW = {"source_lang", "target_lang", "prompt_template", "seed", "max_tokens"}


def row(options=None, prompt=(5, 6), prefix=(0,), limit=9, seed=b"", **values) -> Row:
    options = options or Options(**values)
    kind = BeamRow if options.num_beams > 1 else Row
    return kind([*prompt], options, seed, [*prefix], prefix_size=len(prefix), max_tokens=limit)


def journal(path, model="model", seeded=True):
    return closing(RowJournal(path / "out", model, seeded))


def finish(row: Row, *tokens: int) -> Row:
    row.tokens += tokens
    row.origins = ["lookup"] * len(tokens)
    row.texts = [f"{token}\ud83d" for token in tokens]
    row.logprobs = [-0.1] * len(tokens)
    row.finish_reason = "length"
    row.stats = Stats(3, tokens=len(tokens), target_calls=1, seconds=0.5)
    row.stats.accepted_lengths.update([0, 2, 2])
    return row


@pytest.mark.parametrize("temp", [0, 1])
@pytest.mark.parametrize("name", [field.name for field in fields(Options)])
def test_every_option_that_changes_a_text_is_in_its_key_and_no_other(tmp_path, name, temp):
    """The languages, the limit and the seed are the row's own."""
    declared = {f.name: f.metadata["declared"].values.kind for f in fields(Options)}
    plain = Options(temp=temp, num_beams=1, num_samples=1)
    changed = replace(plain, **{"num_draft": 7} if name == "num_draft" else {})
    object.__setattr__(changed, name, VALUES.get(name, OTHER[declared[name]]))
    sampling = {"top_k", "top_p", "min_p", "acceptance"}
    same = NO_TEXT | IN_ROW | (set() if temp else sampling)
    with journal(tmp_path) as first:
        first.keep(finish(row(plain, seed=b"s"), 1))
    with journal(tmp_path) as second:
        assert second.replay(row(changed, seed=b"s")) == (name in same)


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": [5, 7]},
        {"prefix": [0, 1]},
        {"prefix": [1]},
        {"limit": 10},
        {"seed": b"other"},
    ],
)
def test_another_row_or_model_takes_nothing(tmp_path, change):
    with journal(tmp_path) as first:
        first.keep(finish(row(), 1))
    with journal(tmp_path, "another model") as second:
        assert second.has_entries and not second.replay(row())
    with journal(tmp_path) as second:
        assert not second.replay(row(**change)) and second.replay(row())


def test_a_replayed_row_is_the_row_with_its_counts_and_equal_rows_take_turns(tmp_path):
    ended = [finish(row(seed=bytes([i])), i, 9) for i in range(2)]
    ended.append(finish(row(num_beams=2), 2, 9))
    ended[2].others = [finish(row(num_beams=2), 7)]
    ended[2].text_score = -0.5
    with journal(tmp_path, seeded=False) as first:
        for each in ended:
            first.keep(each)
    with journal(tmp_path, seeded=False) as second:
        again = [*(row(seed=b"a fresh one") for _ in range(2)), row(num_beams=2)]
        again[2].others = [row(num_beams=2)]
        assert all(map(second.replay, again))
        assert not second.replay(row())
    ended += ended[2].others
    again += again[2].others
    for old, new in zip(ended, again, strict=True):
        assert new.record() == old.record() and new.stats.accepted == 4
        assert (new.generated, new.finish_reason) == (old.generated, "length")


def test_a_task_takes_its_rows_from_the_journal_and_a_full_disk_only_ends_the_keeping(
    tmp_path, monkeypatch
):
    def task():
        rows = [row(prompt=[n]) for n in range(3)]
        yield rows
        called = yield lambda: "called"
        return called, [each.generated for each in rows]

    with journal(tmp_path) as first:
        for n, each in enumerate(next(kept(task(), first))):
            if n:
                with monkeypatch.context() as patch:
                    patch.setattr(Journal, "append", full)
                    each.journal.keep(finish(each, n))
            else:
                each.journal.keep(finish(each, n))
    with journal(tmp_path) as second:
        steps = kept(task(), second)
        rows = [*next(steps)]
        assert [each.journal.replay(each) for each in rows] == [True, False, False]
        assert next(steps)() == "called"
        with pytest.raises(StopIteration) as end:
            steps.send("called")
        assert end.value.value == ("called", [[0], [], []])


def test_a_journal_that_is_closed_takes_no_more(tmp_path):
    """Its document has failed, and another one wants the row."""
    with journal(tmp_path) as first:
        first.keep(finish(row(), 1))
        late = first.attach(row(prompt=[9]))
    with journal(tmp_path) as second:
        waiting = second.attach(row())
    assert not waiting.journal.replay(waiting)
    late.journal.keep(finish(late, 1))


def full(*_):
    raise OSError(28, "No space left on device", "out")
