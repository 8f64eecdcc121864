"""Progress while a long prompt is read, on a terminal."""

from typing import Any


class Reading:
    """A progress bar on stderr while a prompt of several chunks is read; nothing if stderr is not a terminal."""

    _bar: Any = None

    def __call__(self, done: int, tokens: int) -> None:
        """Report that `done` of `tokens` tokens have been read."""
        if self._bar is None and done < tokens:
            from tqdm import tqdm

            about: Any = dict(desc="reading the prompt", unit="tok", leave=False, disable=None)
            self._bar = tqdm(initial=done, total=tokens, **about)
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
            if done == tokens:
                self._bar.close()
                self._bar = None
