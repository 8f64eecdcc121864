"""Functions that decode many rows, stopped each time, so that one batch decodes those of many functions."""

from collections.abc import Callable, Generator
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from speculative.row import Row

T = TypeVar("T")
# Yields rows to decode, or a function to call where models may be used and whose result to send back
Steps = Generator[list[Row] | Callable[[], Any], Any, T]


Decode = Callable[[list[Row]], Any]  # returns when the rows are finished
Call = Callable[
    [Callable[[], Any]], Any
]  # the result of a function, called where models may be used


class _Stopped(BaseException):
    """Nobody waits for the function's result."""


def steps(function: Callable[[Decode, Call], T]) -> Steps[T]:
    """Run function(decode, call) in a thread of its own; yield what it hands to `decode` and `call` and wait there for
    the result, sent back. So only one of both threads runs at a time. Returns and raises as the function."""
    works = SimpleQueue[tuple[bool, Any]]()  # whether it is the end, and the work, result or error
    results = SimpleQueue[Any]()

    def hand_over(work: Any) -> Any:
        works.put((False, work))
        result = results.get()
        if result is _Stopped:
            raise _Stopped
        return result

    def run() -> None:
        try:
            works.put((True, function(hand_over, hand_over)))
        except BaseException as error:
            works.put((True, error))

    Thread(target=run, daemon=True).start()
    try:
        while True:
            ended, work = works.get()
            if isinstance(work, BaseException):
                raise work
            if ended:
                return work
            results.put((yield work))
    finally:
        results.put(_Stopped)
