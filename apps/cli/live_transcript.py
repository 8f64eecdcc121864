"""The transcript of live sound on the terminal, printed while somebody speaks."""

import shutil
import signal
import sys
from dataclasses import replace
from queue import SimpleQueue

from apps.cli import cli
from apps.cli.display import Summary
from apps.cli.transcripts import Output, print_summary, write_files
from apps.speech.live.live import Heard
from apps.speech.live.sources import Piece, listen
from apps.speech.options import TranscribeOptions
from apps.speech.transcriber import Transcriber
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.step.driver import result_of
from speculative.text import cues

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def transcribe_live(
    transcriber: Transcriber,
    source: str,
    name: str,
    device: str | None,
    options: TranscribeOptions,
    output: Output,
    verbose: bool,
) -> None:
    """Transcribe what arrives until it ends or a signal comes: txt to stdout word by word, or on a terminal by lines, with
    the words that may still change below them. Files are written after each utterance."""
    line = ""
    is_terminal = sys.stderr.isatty() and (sys.stdout.isatty() or not output.streamed)

    def show(heard: Heard) -> None:
        nonlocal line, output
        new = heard.text if line else heard.text.lstrip()
        if output.layout.times and new and not line:
            new = f"[{cues.stamp(heard.start, False, '.')}] {new}"
        line += new
        ended = heard.end is not None
        if is_terminal:
            width = shutil.get_terminal_size().columns - 1
            shown = "" if ended else (line + heard.rest).strip()[-width:]
            print(f"\r\x1b[K{shown}", end="", file=sys.stderr, flush=True)
            new = line if ended else ""
        if output.streamed:
            cli.write(new, end="\n" if ended and line else "")
        writes = ended and line and output.folder  # what cannot be written is printed at the end
        if writes and not list(output.write(live.transcript(), name)):
            output = replace(output, force=True)  # they are its own
        if ended:
            line = ""

    def stop(number: int, _) -> None:
        pieces.put(None)
        signal.signal(number, befores[signal.Signals(number)])  # the second time, at once

    summary = Summary(unit="windows")
    pieces = SimpleQueue[Piece]()
    source = listen(source, pieces, device)
    befores = {number: signal.signal(number, stop) for number in _SIGNALS}
    reporter.note("listening; Ctrl-C ends it")
    live = transcriber.live(options, show)
    transcript = result_of(transcriber.transcribe_all([live.listen(pieces)], options, 1))
    if not write_files(output, transcript, name):
        raise InputError("the transcript could not be written")
    cli.write(output.text(transcript, None), end="")
    if verbose:
        summary.texts = len(transcript.segments)
        summary.stats = transcript.stats
        print_summary(summary, transcript.duration)
