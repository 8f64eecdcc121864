"""Finished rows on disk: a run that was interrupted goes on where it stopped, and decodes nothing twice.

A row's key is its tokens and whatever else its text depends on. So rows may come in another order, beside others, or
drafted in another way; what an earlier run decoded with another model or other options does not fit.
"""

from hashlib import blake2b
from pathlib import Path

from speculative.common.files import Journal
from speculative.common.reporting import reporter
from speculative.step.driver import Task
from speculative.step.row import Row

# Options that change no text, or only the row's tokens, limit and seed
_NOT_TEXT = {"num_draft", "lookup", "reference", "max_tokens", "seed"}
_NOT_TEXT |= {"source_lang", "target_lang", "prompt_template"}
_SAMPLING = {"top_k", "top_p", "min_p", "acceptance"}


class RowJournal(Journal):
    """Keeps the finished rows of an output."""

    def __init__(self, output: Path, model: str, seeded: bool):
        """model: stamp of the model that writes the texts; seeded: whether the user chose the seed, so that no other sample
        will do. InputError if another run is writing the output."""
        super().__init__(output)
        self._model, self._seeded = model, seeded
        self._keeps = True
        self._goes_on = False

    def attach(self, row: Row) -> Row:
        """The row, which is kept here unless another journal keeps it."""
        row.journal = row.journal or self
        return row

    def replay(self, row: Row) -> bool:
        """Finish a row that has not begun as an earlier run has finished it; return whether one has."""
        entry = self.take(self._key(row))
        if entry is None:
            return False
        if not self._goes_on:
            self._goes_on = True
            reporter.note(f"{self.output}: going on where it was interrupted")
        for each, record in zip([row, *row.others], entry, strict=True):
            each.replay(record)
        return True

    def keep(self, row: Row) -> None:
        """Add a finished row. A full disk, for example, ends this: what is not kept would be decoded again."""
        if not self._keeps:
            return
        try:
            self.append(self._key(row), [each.record() for each in [row, *row.others]])
        except OSError as error:
            self._keeps = False
            problem = f"{error.filename}: {error.strerror}"
            reporter.note(f"{problem}; from here on an interruption loses work")

    def _key(self, row: Row) -> str:
        unused = _NOT_TEXT if row.options.temp else _NOT_TEXT | _SAMPLING
        options = {name: x for name, x in vars(row.options).items() if name not in unused}
        seed = row.seed if self._seeded else b""
        begin = row.tokens[: row.prefix_size]
        text = repr((self._model, row.prompt, begin, row.max_tokens, options, seed))
        return blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()

    def close(self) -> None:
        self._keeps = False  # a row may be decoded later that another document wants as well
        super().close()


def kept(task: Task, journal: RowJournal) -> Task:
    """A task whose rows are kept in a journal, or come from there."""
    result = None
    try:
        while True:
            work = task.send(result)
            if not callable(work):
                work = map(journal.attach, work)
            result = yield work
    except StopIteration as end:
        return end.value
