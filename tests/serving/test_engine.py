"""The engine: rows that come and go and want different things have the texts that they have alone; one that is
not wanted any more leaves at once; what fails takes what is beside it along, and nobody else."""

import json
from contextlib import contextmanager

import mlx.core as mx
import pytest
from helpers.programs import ANSWER, PROMPT
from helpers.serving import alone, mixed

from apps.serving.bodies import parse
from apps.serving.engine import CANCELLED, LOST, Engine, Job, Refused
from apps.serving.requests import Completion
from decoder import Batch, Options
from speculative.step.row import Row
from speculative.step.sampling import RowSeeds


def rows_for(decoder, fields) -> list[Row]:
    request = parse(json.dumps(fields).encode(), Completion)
    options = request.options(Options())
    seed, count = RowSeeds(options.seed), options.num_samples
    return [decoder.maker.row(text, options, seed) for text in request.prompt for _ in range(count)]


def rows(decoder, count=1, **options) -> list[Row]:
    return [decoder.maker.row(PROMPT, Options(**options), RowSeeds(0)) for _ in range(count)]


class Running(Engine):
    """An engine that is closed when all that was submitted has ended. `at`: what to do at a row's progress."""

    def __init__(self, decoder, batch_size=4, queue_size=99, **options):
        super().__init__(decoder, Options(**options), batch_size, queue_size)
        self.jobs: list[Job] = []
        self.at = lambda: None

    def put(self, *rows: Row) -> list[Job]:
        jobs = self.submit(rows, self.progress)
        self.jobs += jobs
        return jobs

    def progress(self) -> None:
        self.at()
        if all(job.progress.finish_reason for job in self.jobs) and not self.closed:
            self.close()


def ended(jobs) -> list[tuple[str, str]]:
    return [("".join(job.row.texts), job.progress.finish_reason) for job in jobs]


@pytest.mark.parametrize("lookup", [False, True])
def test_rows_of_all_settings_have_the_texts_they_have_alone(decoder, lookup):
    requests = mixed(12, seed=lookup)
    running = Running(decoder, batch_size=7, lookup=lookup)
    jobs = [running.put(*rows_for(decoder, fields)) for fields in requests]
    running.run()
    for fields, of_request in zip(requests, jobs, strict=True):
        assert ended(of_request) == alone(decoder, fields), fields
    plainly, by_three = jobs[1][0].progress.stats, jobs[2][0].progress.stats
    assert plainly.draft_tokens == 0 < by_three.draft_tokens <= 3 * by_three.target_calls


def test_a_row_tells_of_each_step(decoder):
    running, reports = Running(decoder), []
    (job,) = running.put(*rows(decoder, num_draft=2))
    running.at = lambda: reports.append((job.progress.tokens, job.progress.finish_reason))
    running.run()
    assert reports == sorted(reports, key=lambda progress: progress[0])
    assert len(reports) == job.progress.stats.target_calls > 2
    assert [reason for _, reason in reports] == [None] * (len(reports) - 1) + ["stop"]
    assert ended([job]) == [(ANSWER, "stop")]


def test_a_row_that_is_not_wanted_any_more_leaves_at_once(decoder):
    running = Running(decoder, batch_size=2)
    length = dict(num_draft=0, min_tokens=30, max_tokens=30)
    beside, unwanted, waiting, later = running.put(*rows(decoder, 4, **length))
    side_by_side = []

    def cancel():
        if unwanted.progress.tokens == 5:
            running.cancel([unwanted, waiting])
        side_by_side.append(later.progress.tokens > 0 and not beside.progress.finish_reason)

    running.at = cancel
    running.run()
    assert unwanted.progress.finish_reason == waiting.progress.finish_reason == CANCELLED
    assert unwanted.progress.tokens <= 6 and not waiting.row.started
    assert beside.progress.tokens == later.progress.tokens == 30
    assert any(side_by_side)  # its place was taken at once


def test_a_full_queue_takes_all_rows_of_a_request_or_none(decoder):
    running = Running(decoder, queue_size=3)
    running.put(*rows(decoder, 2))
    with pytest.raises(Refused, match="too many"):
        running.put(*rows(decoder, 2))
    running.put(*rows(decoder))
    running.run()
    assert ended(running.jobs) == [(ANSWER, "stop")] * 3


@pytest.mark.parametrize("end, of_what_runs", [("close", "stop"), ("abort", CANCELLED)])
def test_the_end_refuses_what_waits_and_finishes_what_runs_or_not(decoder, end, of_what_runs):
    running = Running(decoder, batch_size=2)
    jobs = running.put(*rows(decoder, 3))
    running.at = lambda: running.closed or getattr(running, end)()
    running.run()
    first, second, waiting = ended(jobs)
    assert second[1] == of_what_runs and waiting == ("", CANCELLED)
    assert end == "abort" or first == second == (ANSWER, "stop")
    with pytest.raises(Refused, match="shutting down"):
        running.put(*rows(decoder))


@pytest.mark.parametrize("error", [RuntimeError("[METAL] Command buffer"), AssertionError()])
@pytest.mark.parametrize("where", ["step", "end", "set-up"])
@pytest.mark.parametrize("lasts", [True, False])
def test_what_fails_takes_nobody_along(decoder, capsys, monkeypatch, where, error, lasts):
    """What was decoded beside it goes on alone, from where it was, and so does what fails only once."""
    options = dict(num_draft=2, temp=1.0, seed=3, max_tokens=20)
    expected = [(r.text, r.finish_reason) for r in decoder.batch_generate([PROMPT] * 4, **options)]
    running = Running(decoder, batch_size=3)
    seeds = RowSeeds(3)
    jobs = running.put(*[decoder.maker.row(PROMPT, Options(**options), seeds) for _ in range(4)])
    bad = jobs[1]

    holder, name, fails, lost = {
        "step": (bad.row, "commit", lambda: bad.progress.tokens > 2, {1}),
        "end": (Batch, "observe", lambda: bad.row.finish_reason != bad.progress.finish_reason, {}),
        "set-up": (decoder, "running", lambda: True, {0, 1, 2, 3}),
    }[where]
    function = getattr(holder, name)

    def failing(*arguments):
        if not fails():
            return function(*arguments)
        if not lasts:
            monkeypatch.undo()
        raise error

    monkeypatch.setattr(holder, name, failing)
    running.run()
    for i, (job, end) in enumerate(zip(jobs, expected, strict=True)):
        (text, reason), is_lost = ended([job])[0], lasts and i in lost
        assert reason == LOST if is_lost else (text, reason) == end
    assert type(error).__name__ in capsys.readouterr().err


def test_memory_is_wired_while_rows_are_decoded_and_given_back_while_none_is(decoder, monkeypatch):
    events, run = [], decoder.running

    @contextmanager
    def running(options):
        events.append("begin")
        with run(options) as batch:
            yield batch
        events.append("end")

    monkeypatch.setattr(decoder, "running", running)
    monkeypatch.setattr(mx, "clear_cache", lambda: events.append("clear"))
    engine, wait = Running(decoder), Engine._wait
    monkeypatch.setattr(Engine, "_wait", lambda self: events.append("wait") or wait(self))
    engine.put(*rows(decoder, 2))
    engine.run()
    assert events == ["wait", "begin", "clear", "end", "wait", "clear"]


def test_metrics_add_up(decoder):
    running = Running(decoder)
    jobs = running.put(*rows(decoder, 3, num_draft=2))
    running.run()
    lines = [line for line in running.metrics.text().splitlines() if "#" not in line]
    metrics = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
    stats = [job.progress.stats for job in jobs]
    assert metrics['speculative_texts_total{finish_reason="stop"}'] == 3
    assert metrics["speculative_generated_tokens_total"] == sum(s.tokens for s in stats)
    assert metrics["speculative_accepted_tokens_total"] == sum(s.accepted for s in stats) > 0
    assert metrics["speculative_time_to_first_token_seconds_count"] == 3
    assert metrics["speculative_texts_running"] == metrics["speculative_texts_waiting"] == 0
