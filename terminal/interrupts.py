"""Interrupts before a command runs: importing what it needs takes longer than most prompts."""

import os
import sys

INTERRUPTED = 130  # the exit code


def expect() -> None:
    """Have an interrupt end the process with one line, from here until `no_more`.

    No exception is raised, which a module in the midst of being imported would make another of.
    """
    sys.excepthook = _excepthook  # at once: importing signal takes a while itself
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as by nohup
        signal.signal(signal.SIGINT, _end)


def no_more() -> None:
    """Have an interrupt raise KeyboardInterrupt again."""
    import signal

    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _excepthook(kind, error, traceback) -> None:
    if issubclass(kind, KeyboardInterrupt):
        _end()
    sys.__excepthook__(kind, error, traceback)
