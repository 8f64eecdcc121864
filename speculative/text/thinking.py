"""What a model thinks, told from its answer."""


def before_mark(text: str, mark: str) -> str:
    """The text without an ending that may be the beginning of a mark."""
    begun = max(n for n in range(len(mark)) if text.endswith(mark[:n]))
    return text[: len(text) - begun]


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
            thought = before_mark(thought, end)
        return thought.strip(), answer.lstrip()
