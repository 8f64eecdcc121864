"""The engine: rows that come and go and want different things have the texts that they have alone; one that is
not wanted any more leaves at once; what fails takes what is beside it along, and nobody else."""

import json

import pytest
from helpers.programs import ANSWER, PROMPT
from helpers.serving import alone, mixed

from decoder import Options, SpeculativeDecoder
from serving.engine import CANCELLED, FAILED, REFUSED, Engine, Job, Refused
from serving.requests import Completion, parse
from speculative.row import Row
from speculative.sampling import RowSeeds


@pytest.fixture(scope="module")
def decoder(demo_pair):
    target, tokenizer, draft = demo_pair
    return SpeculativeDecoder(target, tokenizer, draft)


def rows_for(decoder, fields) -> list[Row]:
    asked = parse(json.dumps(fields).encode(), Completion)
    options = asked.options(Options())
    seed, count = RowSeeds(options.seed), options.num_samples
    return [decoder.row(text, options, seed) for text in asked.prompt for _ in range(count)]


def row_for(decoder, prompt=PROMPT, **options) -> Row:
    return decoder.row(prompt, Options(**options), RowSeeds(0))


class Running:
    """An engine that is closed when all that was submitted has ended. `at`: what to do when a job has told of
    its progress."""

    def __init__(self, decoder, batch_size=4, queue_size=99, **options):
        self.engine = Engine(decoder, Options(**options), batch_size, queue_size)
        self.jobs: list[Job] = []
        self.at = lambda: None

    def submit(self, *rows: Row) -> list[Job]:
        jobs = self.engine.submit(rows, self.progress)
        self.jobs += jobs
        return jobs

    def progress(self) -> None:
        self.at()
        if all(job.progress.finish_reason for job in self.jobs) and not self.engine.closed:
            self.engine.close()

    def run(self) -> None:
        self.engine.run()


def ended(jobs) -> list[tuple[str, str]]:
    return [("".join(job.row.texts), job.progress.finish_reason) for job in jobs]


@pytest.mark.parametrize(
    "lookup, count", [(False, 12), pytest.param(True, 48, marks=pytest.mark.slow)]
)
def test_rows_of_all_settings_have_the_texts_they_have_alone(decoder, lookup, count):
    requests = mixed(count, seed=lookup)
    running = Running(decoder, batch_size=7, lookup=lookup)
    jobs = [running.submit(*rows_for(decoder, fields)) for fields in requests]
    running.run()
    for fields, of_request in zip(requests, jobs, strict=True):
        assert ended(of_request) == alone(decoder, fields), fields
    plainly, by_three = jobs[1][0].progress.stats, jobs[2][0].progress.stats
    assert plainly.drafted == 0 < by_three.drafted <= 3 * by_three.target_calls


def test_a_row_tells_of_each_step(decoder):
    running, told = Running(decoder), []
    (job,) = running.submit(row_for(decoder, num_draft=2))
    running.at = lambda: told.append((job.progress.tokens, job.progress.finish_reason))
    running.run()
    assert told == sorted(told, key=lambda progress: progress[0])
    assert len(told) == job.progress.stats.target_calls > 2
    assert [reason for _, reason in told] == [None] * (len(told) - 1) + ["stop"]
    assert ended([job]) == [(ANSWER, "stop")]


def test_a_row_that_is_not_wanted_any_more_leaves_at_once(decoder):
    running = Running(decoder, batch_size=2)
    length = dict(num_draft=0, min_tokens=30, max_tokens=30)
    beside, unwanted, waiting, later = running.submit(
        *(row_for(decoder, **length) for _ in range(4))
    )
    running.jobs.remove(waiting)  # it never ends
    side_by_side = []

    def cancel():
        if unwanted.progress.tokens == 5:
            running.engine.cancel([unwanted, waiting])
        side_by_side.append(later.progress.tokens > 0 and not beside.progress.finish_reason)

    running.at = cancel
    running.run()
    assert unwanted.progress.finish_reason == CANCELLED and unwanted.progress.tokens <= 6
    assert not waiting.row.started
    assert beside.progress.tokens == later.progress.tokens == 30
    assert any(side_by_side)  # its place was taken at once


def test_all_rows_may_leave_at_once(decoder):
    running = Running(decoder)
    first, later = running.submit(*(row_for(decoder) for _ in range(3))), []

    def leave():
        if not later:
            running.engine.cancel(first)
            later.extend(running.submit(row_for(decoder)))

    running.at = leave
    running.run()
    assert [reason for _, reason in ended(first)].count(
        CANCELLED
    ) >= 2  # one may have been told of already
    assert ended(later) == [(ANSWER, "stop")]


def test_a_full_queue_takes_all_rows_of_a_request_or_none(decoder):
    running = Running(decoder, queue_size=3)
    running.submit(row_for(decoder), row_for(decoder))
    with pytest.raises(Refused, match="too many"):
        running.engine.submit([row_for(decoder), row_for(decoder)], print)
    running.submit(row_for(decoder))
    running.run()
    assert ended(running.jobs) == [(ANSWER, "stop")] * 3


def test_closing_finishes_what_runs_and_refuses_what_waits(decoder):
    running = Running(decoder, batch_size=2)
    jobs = running.submit(*(row_for(decoder) for _ in range(3)))
    running.at = lambda: running.engine.closed or running.engine.close()
    running.run()
    assert ended(jobs) == [(ANSWER, "stop")] * 2 + [("", REFUSED)]
    with pytest.raises(Refused, match="shutting down"):
        running.submit(row_for(decoder))


def test_aborting_finishes_nothing(decoder):
    running = Running(decoder, batch_size=2)
    jobs = running.submit(*(row_for(decoder) for _ in range(3)))
    running.at = lambda: running.engine.closed or running.engine.abort()
    running.run()
    reasons = [job.progress.finish_reason for job in jobs]
    assert reasons == [CANCELLED, CANCELLED, REFUSED] or reasons == [None, CANCELLED, REFUSED]


def test_what_fails_takes_its_batch_along_and_nobody_else(decoder, monkeypatch, capsys):
    running = Running(decoder, batch_size=2)
    bad, beside, later = running.submit(*(row_for(decoder) for _ in range(3)))

    def fail(*_):
        raise RuntimeError("[malloc] Unable to allocate")

    bad.row.commit = fail
    running.run()
    assert [j.progress.finish_reason for j in (bad, beside, later)] == [FAILED, FAILED, "stop"]
    assert ended([later]) == [(ANSWER, "stop")]
    assert "Unable to allocate" in capsys.readouterr().err


def test_metrics_add_up(decoder):
    running = Running(decoder)
    jobs = running.submit(*(row_for(decoder, num_draft=2) for _ in range(3)))
    running.run()
    lines = running.engine.metrics.text().splitlines()
    found = {
        name.removeprefix("speculative_"): float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if "#" not in line)
    }
    stats = [job.progress.stats for job in jobs]
    assert found['texts_total{finish_reason="stop"}'] == 3
    assert found["generated_tokens_total"] == sum(s.tokens for s in stats)
    assert found["accepted_tokens_total"] == sum(s.accepted for s in stats) > 0
    assert found["time_to_first_token_seconds_count"] == 3
    assert found['time_to_first_token_seconds_bucket{le="+Inf"}'] == 3
    assert found["texts_running"] == found["texts_waiting"] == 0
