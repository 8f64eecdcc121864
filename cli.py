"""The manners of the command lines: a user's mistake is one line on stderr and an exit code."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from checkpoint import InputError

USAGE_ERROR, INPUT_ERROR, INTERRUPTED = 2, 1, 130


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        self.exit(USAGE_ERROR, f"{self.prog}: {message} (see --help)\n")


def run(main: Callable[[], None]) -> None:
    """Run a command's `main` and exit the process: errors of the user's in one line."""
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has gone; keep Python from complaining while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(INPUT_ERROR)
    except (InputError, OSError) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(INPUT_ERROR)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
