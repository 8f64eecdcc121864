"""Command-line helpers: a user's mistake becomes one line on stderr and an exit code."""

import argparse
import math
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TextIO

from apps.cli import interrupted
from speculative.common.errors import InputError
from speculative.common.reporting import Advance, reporter
from speculative.step.options import DECLARED, SIZE

at_end = ExitStack()  # is closed when the command ends
USAGE_ERROR, INPUT_ERROR = 2, 1
MODEL = (  # what --model takes
    "a converted folder, its name under mlx_models/, or a checkpoint, which is converted on first use: a folder, or a name "
    "on the Hugging Face hub, such as google/flan-t5-base"
)


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        hint = "see --help"
        words = message.partition("unrecognized arguments: ")[2].split()
        flags = [word.partition("=")[0] for word in words if word.startswith("--")]
        known = self._option_string_actions
        near = [each for flag in flags for each in get_close_matches(flag, known, 1, 0.75)]
        if near:
            hint = f"did you mean {' '.join(near)}?"
        elif words and not flags and "--prompt" in known:
            hint = "put the prompt after --prompt"
        self.exit(USAGE_ERROR, one_line(f"{self.prog}: {message} ({hint})") + "\n")

    def parse_with_files(self, args: Sequence[str] | None = None) -> argparse.Namespace:
        """As `parse_intermixed_args`. What follows -- is a file, whatever its name (Python 3.11 forgets that)."""
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if "--" in words else len(words)
        files = [f"./{word}" if word[:1] == "-" != word else word for word in words[end + 1 :]]
        return self.parse_intermixed_args([*words[:end], *files])


class Once(argparse.Action):
    """The action of a flag whose first value would otherwise be forgotten for a second."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        if getattr(namespace, self.dest) is not None:
            raise argparse.ArgumentError(self, "given twice; there can be one")
        setattr(namespace, self.dest, values)


def one_line(text: str) -> str:
    """The text on one line: a file name in it, for example, may have line breaks."""
    return " ".join(text.splitlines())


def write(text: str, end: str = "\n", file: TextIO | None = None) -> None:
    """Print, to stdout by default, where there may be a progress bar."""
    from tqdm import tqdm

    with tqdm.external_write_mode(file or sys.stdout):
        print(text, end=end, file=file, flush=True)


class InOrder:
    """Writes texts in the order of their numbers, the first unfinished one as it grows. `reached`: how many are written."""

    def __init__(self, write: Callable[[str], object]):
        self._write = write
        self.reached = 0
        self._waiting: dict[int, tuple[str, bool]] = {}

    def put(self, number: int, text: str, finished: bool = True) -> None:
        before, _ = self._waiting.get(number, ("", False))
        self._waiting[number] = before + text, finished
        while self.reached in self._waiting:
            text, finished = self._waiting.pop(self.reached)
            self._write(text)
            if not finished:
                return
            self.reached += 1


def note(line: str) -> None:
    """Print a line on stderr: a command's `reporter.note`."""
    write(one_line(line), file=sys.stderr)


def name(text: str) -> str:
    """The type of an argument that names a file or a model. As for the next ones, ValueError for others."""
    if not text:
        raise ValueError
    return text


def path(text: str) -> Path:
    return Path(name(text))


def folder(text: str) -> Path:
    """The type of a flag that takes a folder, which need not exist."""
    if Path(name(text)).is_file():
        problem = f"{text} is a file, not a folder (name files before this flag)"
        raise argparse.ArgumentTypeError(problem)
    return Path(text)


def positive(text: str) -> int:
    if not SIZE.accepts(int(text)):
        raise ValueError
    return int(text)


def number(text: str) -> float:
    if not 0 <= float(text) < math.inf:
        raise ValueError
    return float(text)


def gigabytes(text: str) -> float:
    """The type of a flag that takes GB; in bytes."""
    return number(text) * 1e9


def meter(title: str, total: int | None, unit: str, delay: float = 0) -> Any:
    """A bar of tqdm's on stderr, where that is a terminal; one that appears late vanishes at its end."""
    from tqdm import tqdm

    shown = dict(unit=unit, unit_scale=unit == "B", delay=delay, leave=not delay)
    return tqdm(desc=title, total=total, disable=None, **shown)


@contextmanager
def bar(title: str, total: int | None, unit: str, delay: float) -> Iterator[Advance]:
    with meter(title, total, unit, delay) as progress:
        yield progress.update


def confirm(question: str) -> bool:
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    with suppress(EOFError):  # Ctrl-D
        return input().strip().lower() in ("y", "yes")
    print(file=sys.stderr)
    return False


def on_signals(stop: Callable[[int, Any], object], *numbers: signal.Signals) -> dict[Any, Any]:
    """Call `stop` at these signals, but at none that is ignored, as under nohup. Return what they did before, by number."""
    befores = {number: signal.getsignal(number) for number in numbers}
    for number, before in befores.items():
        if before is not signal.SIG_IGN:
            signal.signal(number, stop)
    return befores


def run(main: Callable[[], None]) -> None:
    """Run a command's `main`, with notes, warnings and bars of all parts on stderr and questions on a terminal; report a
    user's error in one line, and exit with its code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as by 0<&-
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    reporter.note = note
    reporter.bar = bar
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    reporter.confirm = confirm if is_terminal else None
    warnings.showwarning = lambda message, *_: note(str(message))
    try:
        with at_end:
            main()
        print(end="", flush=True)
    except BrokenPipeError:  # nobody reads our output any more; Python would try again at exit
        sys.stdout = None
        sys.exit(INPUT_ERROR)
    except KeyboardInterrupt:
        interrupted()
    except Exception as error:
        message = line_of(error)
        if message is None:
            raise
        note(f"{Path(sys.argv[0]).name}: {message}")
        sys.exit(INPUT_ERROR)


def out_of_memory(error: Exception) -> bool:
    """Whether Python or MLX, which raises RuntimeError, ran out of memory, or the GPU gave up."""
    if isinstance(error, RuntimeError):
        return re.search(r"allocate|\[METAL\] Command buffer", str(error)) is not None
    return isinstance(error, MemoryError)


def line_of(error: Exception) -> str | None:
    """The message for the user; None for a bug of ours, which shows its traceback."""
    if isinstance(error, UnicodeEncodeError):
        return f"the output's encoding: {error}; set PYTHONIOENCODING=utf-8"
    if out_of_memory(error):
        return f"out of memory, or the GPU failed; try shorter texts or a smaller batch: {error}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if not isinstance(error, (InputError, OSError)):
        return None
    # About an option whose flag has another name: --to for target_lang
    option, colon, rest = str(error).partition(": ")
    flags = DECLARED[option].flags if option in DECLARED else ()
    named = [flag for flag in flags or () if flag.startswith("--")]
    return f"{named[0]}{colon}{rest}" if named else str(error)
