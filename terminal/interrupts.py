"""Interrupts, while a command begins and once it ends; and a Python that lacks what a command needs.

Importing what it needs takes longer than most prompts.
"""

import os
import signal
import sys

INTERRUPTED = 130  # the exit code


def expect() -> None:
    """Have an interrupt end the process with one line, from here until `no_more`.

    No exception is raised, which a module in the midst of being imported would make another of.
    """
    sys.excepthook = _excepthook
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as by nohup
        signal.signal(signal.SIGINT, _end)


def no_more() -> None:
    """Have an interrupt raise KeyboardInterrupt again; a second one ends the process at once."""

    def interrupt(*_) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, interrupt)


def _end(*_) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _excepthook(kind, error, traceback) -> None:
    if sys.version_info < (3, 10):  # noqa: UP036 (as macOS's own, which fails at what is newer)
        reason = f"this is Python {sys.version_info[0]}.{sys.version_info[1]}, not 3.10 or later"
    elif issubclass(kind, ModuleNotFoundError):
        reason = f"{error}; is this the environment of the README's first command?"
    else:
        return sys.__excepthook__(kind, error, traceback)
    os.write(2, f"{os.path.basename(sys.argv[0])}: {reason}\n".encode())  # noqa: PTH119 (not imported)
