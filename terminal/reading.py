"""How far a long prompt has been read, on a terminal."""

from tqdm import tqdm


class Reading:
    """A bar on stderr while a prompt of several chunks is read; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None

    def __call__(self, done: int, tokens: int) -> None:
        """`done` of so many tokens have been read."""
        if self._bar is None:
            if done == tokens:  # in one chunk
                return
            about = dict(desc="reading the prompt", unit="tok", leave=False, disable=None)
            self._bar = tqdm(initial=done, total=tokens, **about)
        self._bar.update(done - self._bar.n)
        if done == tokens:
            self._bar.close()
            self._bar = None
