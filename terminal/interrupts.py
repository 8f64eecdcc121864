"""Clean exits on Ctrl-C, even during a command's slow imports; clear messages for an old Python or a missing package."""

import os
import signal
import sys

INTERRUPTED = 130  # the exit code


def expect() -> None:
    """Until `no_more`, let an interrupt end the process with one line.

    It raises no exception: a module that is being imported might turn that into a different one.
    """
    sys.excepthook = _excepthook
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as under nohup
        signal.signal(signal.SIGINT, _end)


def no_more() -> None:
    """Let an interrupt raise KeyboardInterrupt again; a second one ends the process at once."""

    def interrupt(*_) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, interrupt)


def _end(*_) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def _excepthook(kind, error, traceback) -> None:
    if sys.version_info < (3, 10):  # noqa: UP036 (such as macOS's own, which fails on newer syntax)
        reason = f"this is Python {sys.version_info[0]}.{sys.version_info[1]}; version 3.10 or later is needed"
    elif issubclass(kind, ModuleNotFoundError):
        reason = f"{error}; activate the environment that the README sets up"
    else:
        return sys.__excepthook__(kind, error, traceback)
    os.write(2, f"{os.path.basename(sys.argv[0])}: {reason}\n".encode())  # noqa: PTH119 (not imported)
