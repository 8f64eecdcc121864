"""The transcript of live sound on the terminal, printed while somebody speaks."""

import shutil
import signal
import sys
from dataclasses import dataclass, replace
from queue import SimpleQueue

from apps.cli import cli
from apps.cli.display import Summary
from apps.cli.transcripts import Output, print_summary
from apps.speech.live.live import Heard
from apps.speech.live.sources import Piece, listen
from apps.speech.options import TranscribeOptions
from apps.speech.transcriber import Transcriber
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.step.driver import result_of
from speculative.text.cues import stamp
from speculative.text.lines import wrap

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class LiveTranscript:
    """Prints txt word by word or, on a terminal, by lines, with the words that may still change below them. Files are written
    after each utterance."""

    transcriber: Transcriber
    options: TranscribeOptions
    output: Output
    name: str  # of its files

    def __post_init__(self):
        self._live = self.transcriber.live(self.options, self._show)
        self._line = ""  # of the utterance so far
        is_apart = sys.stdout.isatty() or not self.output.streamed  # from what stdout gets
        self._is_terminal = sys.stderr.isatty() and is_apart

    def transcribe(self, source: str, device: str | None, verbose: bool) -> None:
        """Transcribe what arrives until it ends or a signal comes."""
        summary = Summary(unit="windows")
        pieces = SimpleQueue[Piece]()
        source = listen(source, pieces, device)

        def stop(number: int, _) -> None:
            pieces.put(None)
            signal.signal(number, befores[number])  # the second time, at once

        befores = cli.on_signals(stop, *_SIGNALS)
        reporter.note("listening; Ctrl-C ends it")
        tasks = [self._live.listen(pieces)]
        transcript = result_of(self.transcriber.transcribe_all(tasks, self.options, 1))
        if not self.output.save(transcript, self.name):
            raise InputError("the transcript could not be written")
        cli.write(self.output.text(transcript, None), end="")
        if verbose:
            summary.texts = len(transcript.segments)
            summary.stats = transcript.stats
            print_summary(summary, transcript.duration)

    def _show(self, heard: Heard) -> None:
        new = heard.text
        if not self._line:
            new = new.lstrip()
            if new and self.output.layout.times:
                new = f"[{stamp(heard.start, False, '.')}] {new}"
        self._line += new
        is_over = heard.end is not None
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            shown = "" if is_over else wrap(self._line + heard.rest, width)[-1]
            print(f"\r\x1b[K{shown}", end="", file=sys.stderr, flush=True)
            new = self._line if is_over else ""
        if self.output.streamed:
            cli.write(new, end="\n" if is_over and self._line else "")
        writes = is_over and self._line and self.output.folder
        # What cannot be written is printed at the end.
        if writes and not [*self.output.write(self._live.transcript(), self.name)]:
            self.output = replace(self.output, force=True)  # they are its own
        if is_over:
            self._line = ""
