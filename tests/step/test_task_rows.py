"""Tasks whose rows one batch decodes: speculative/step/driver.py."""

from speculative.common.errors import InputError
from speculative.step.driver import Tasks
from speculative.step.row import Row


def decode(tasks, at_once: int = 8, batch_size: int = 2) -> tuple[list, list]:
    """Finish the rows of tasks in batches: the prompts of each batch, and the results."""
    source = Tasks(tasks, at_once)
    batches = []
    while rows := source.take(batch_size, wait=True):
        batches.append([row.prompt[0] for row in rows])
        for row in rows:
            row.finish_reason = "stop"
            source.finish(row)
    return batches, [*source.results]


def task(*lists: list[Row]):
    for rows in lists:
        yield iter(rows)
        assert all(row.finish_reason for row in rows)
    number = yield lambda: len(lists)
    return number


def rows(*prompts: int) -> list[Row]:
    return [Row([prompt]) for prompt in prompts]


def test_a_batch_is_filled_from_several_tasks_and_each_goes_on_in_order():
    tasks = [task(rows(1), rows(2)), task(rows(3, 4, 5)), task()]
    batches, results = decode(tasks)
    assert batches == [[1, 3], [2, 4], [5]]
    assert sorted(results) == [(0, 2), (1, 1), (2, 0)]
    assert decode([task(rows(1)), task(rows(2))], at_once=1)[0] == [[1], [2]]


def test_a_task_ends_with_its_last_row_whatever_else_waits():
    source = Tasks([task(rows(1)), task(rows(2, 3))], at_once=2)
    (first,) = source.take(1, wait=True)
    (second,) = source.take(1, wait=True)
    for row in (second, first):
        row.finish_reason = "stop"
        source.finish(row)
    assert [*source.results] == [(0, 1)] and source.take(1, wait=True)


def test_a_row_that_two_tasks_wait_for_is_decoded_once():
    shared = rows(7)
    assert decode([task(shared, rows(8)), task([*rows(9), *shared])]) == (
        [[7, 9], [8]],
        [(1, 1), (0, 2)],
    )


def test_what_fails_ends_one_task():
    def failing():
        yield iter(rows(1))
        raise InputError("no")

    def rows_that_fail():
        yield rows(2)[0]
        raise InputError("too long")

    def long():
        yield rows_that_fail()

    def unreadable():
        raise InputError("unreadable")
        yield

    tasks = [unreadable(), failing(), long(), task(rows(3, 4))]
    batches, results = decode(tasks, batch_size=4)
    assert batches == [[1, 2, 3, 4]]
    assert sorted((i, str(result)) for i, result in results) == [
        (0, "unreadable"),
        (1, "no"),
        (2, "too long"),
        (3, "1"),
    ]
