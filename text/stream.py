"""Text from tokens as they arrive, and what a model thinks in it apart from its answer."""

from collections.abc import Container, Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class TextStream:
    """Turns tokens into text as they arrive, without decoding earlier ones again.

    `hidden` tokens (padding, end of sequence) have no text; sentinels (`<extra_id_0>`) do. The text ends before the
    first complete stop text; an ending that may be the beginning of a stop text is held back until that is known.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        hidden: Container[int],
        stops: Sequence[str] = (),
        begun: Sequence[int] = (),
    ):
        """begun: tokens whose text goes on here. It is not part of what `push` returns, and no stop text begins in it."""
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._stops: Sequence[str] = ()
        self._stream = DecodeStream(skip_special_tokens=False)
        self._tokens: list[int] = []
        self.text = ""  # of all tokens
        self._waiting = ""  # the end of `text`, held back
        self.stopped = False
        self.push(begun)
        self._stops = stops

    def push(self, tokens: Sequence[int]) -> str:
        """The text that `tokens` add. A character is held back until all its bytes are there."""
        before = len(self.text)
        for token in tokens:
            if token not in self._hidden:
                self._tokens.append(token)
                try:
                    self.text += self._stream.step(self._tokenizer, token) or ""
                except Exception:  # a bare one: invalid bytes changed characters decoded before
                    self._stream = DecodeStream(skip_special_tokens=False)
                    self._stream.step(self._tokenizer, token)
                    self.text += self._rest()
        return self._shown(self.text[before:])

    def finish(self) -> str:
        """The text still held back, after the last token."""
        rest = self._rest()
        self.text += rest
        shown = self._shown(rest)
        return shown + self._waiting

    def _rest(self) -> str:
        """The text of all tokens beyond `text`."""
        return self._tokenizer.decode(self._tokens, skip_special_tokens=False)[len(self.text) :]

    def _shown(self, text: str) -> str:
        """The text to show after the whole has grown by `text`."""
        if self.stopped:
            return ""
        text = self._waiting + text
        complete = [(i + len(stop), i) for stop in self._stops if (i := text.find(stop)) >= 0]
        if complete:
            self.stopped = True
            self._waiting = ""
            return text[: min(complete)[1]]
        longest = max(map(len, self._stops), default=1)
        tail = range(max(0, len(text) - longest + 1), len(text))
        begun = (i for i in tail if any(stop.startswith(text[i:]) for stop in self._stops))
        end = next(begun, len(text))
        self._waiting = text[end:]
        return text[:end]


class Thinking:
    """Splits a text into what the model thinks, between two marks at the text's beginning, and its answer, as pieces
    of the text arrive. White space around the marks belongs to neither."""

    def __init__(self, marks: tuple[str, str] | None, begun: bool = False):
        """marks: None: all is answer. begun: the prompt ends with the first mark, or behind it."""
        self.marks = marks
        self._text = marks[0] if marks and begun else ""
        self._sent = (0, 0)  # characters of the parts

    def push(self, text: str, is_last: bool) -> tuple[str, str]:
        """The parts that the text's next piece adds to the thoughts and to the answer."""
        self._text += text
        thought, answer = self._parts(is_last)
        new = thought[self._sent[0] :], answer[self._sent[1] :]
        self._sent = len(thought), len(answer)
        return new

    def _parts(self, is_whole: bool) -> tuple[str, str]:
        """The text's thoughts and answer, without an ending that may be the beginning of a mark."""
        if self.marks is None:
            return "", self._text
        start, end = self.marks
        text = self._text.lstrip()
        if not text.startswith(start):
            is_open = start.startswith(text) and not is_whole
            return "", "" if is_open else self._text
        thought, mark, answer = text[len(start) :].partition(end)
        if not (mark or is_whole):
            begun = max(n for n in range(len(end)) if thought.endswith(end[:n]))
            thought = thought[: len(thought) - begun]
        return thought.strip(), answer.lstrip()
