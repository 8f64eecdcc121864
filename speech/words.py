"""When each word is spoken: what the alignment heads attend to while the target reads the finished text, and dynamic
time warping (Sakoe and Chiba 1978). All of it as in OpenAI's whisper/timing.py, whose constants these are."""

import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import mlx.core as mx
import numpy as np

from families.whisper import Pairs, Whisper
from speech.features import FRAMES
from speech.formats import Segment, Word

WITHOUT_SPACES = ("zh", "ja", "th", "lo", "my", "yue")  # languages whose words are characters
_BEFORE = "\"'“¿([{-"  # marks that join the next word
_AFTER = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001 (marks that join the word before)
_SENTENCE_ENDS = ".。!！?？"  # noqa: RUF001
_FILTER = 7  # encoder positions


def attended(
    model: Whisper,
    cross: Pairs,
    prefix: Sequence[int],
    text: Sequence[int],
    end: int,
    heads: Sequence[tuple[int, int]],
    positions: int,
) -> tuple[np.ndarray, np.ndarray]:
    """How much each token of a text and its end attend to each encoder position, [T + 1, S], and the probability
    of each token, [T]. heads: (layer, head); positions: those of them with sound."""
    tokens = mx.array([[*prefix, *text, end]])
    logits, weights = model.attention(tokens, cross, heads, positions)  # [1, N, V], [H, N, S]
    weights = (weights - weights.mean(-2, keepdims=True)) / mx.std(weights, -2, keepdims=True)
    begin, last = len(prefix) - 1, len(prefix) - 1 + len(text)
    matrix = _median_filtered(weights[:, begin : last + 1]).mean(0)
    chances = mx.softmax(logits[0, begin:last, :end].astype(mx.float32), axis=-1)
    found = mx.take_along_axis(chances, mx.array(list(text))[:, None], axis=1)[:, 0]
    mx.eval(matrix, found)
    return np.array(matrix), np.array(found)


def _median_filtered(x: mx.array) -> mx.array:
    """Each number's median with its neighbours in the last axis, mirrored at both ends."""
    half, size = _FILTER // 2, x.shape[-1]
    if size <= half:
        return x
    mirrored = np.abs(np.arange(-half, size + half))
    mirrored = mx.array(np.minimum(mirrored, 2 * (size - 1) - mirrored))
    padded = x[..., mirrored]
    return mx.sort(mx.stack([padded[..., i : i + size] for i in range(_FILTER)]), axis=0)[half]


def first_columns(gain: np.ndarray) -> np.ndarray:
    """Where each row of a matrix [N, M] begins on the path from its first to its last corner, down, right or both in
    each step, along which the sum is greatest: [N]. Between equal sums, OpenAI's path, which goes right."""
    N, M = gain.shape
    cost = np.full((N + M + 1, N + 1), np.inf)  # of the path to (i, j), at [i + j, i]
    moves = np.full(cost.shape, 2)  # 0: both, 1: down, 2: right
    cost[0, 0] = 0
    for d in range(2, N + M + 1):
        i = np.arange(max(1, d - M), min(N, d - 1) + 1)
        both, down, right = cost[d - 2, i - 1], cost[d - 1, i - 1], cost[d - 1, i]
        by_both, by_down = (both < down) & (both < right), (down < both) & (down < right)
        moves[d, i] = np.where(by_both, 0, np.where(by_down, 1, 2))
        cost[d, i] = np.choose(moves[d, i], (both, down, right)) - gain[i - 1, d - i - 1]
    found, i, j = np.zeros(N, int), N, M
    while i and j:
        found[i - 1] = j - 1
        move = moves[i + j, i]
        i, j = i - (move < 2), j - (move != 1)
    return found


def split(
    tokens: Sequence[int], decode: Callable[[list[int]], str], spaces: bool
) -> Iterator[tuple[str, int]]:
    """The words of a text, each with the number of its tokens: characters, or with `spaces` what a space or a
    punctuation mark begins."""
    characters = _characters(tokens, decode)
    word, size = next(characters, ("", 0))
    for text, count in characters:
        if not spaces or text.startswith(" ") or text.strip() in string.punctuation:
            yield word, size
            word, size = "", 0
        word, size = word + text, size + count
    if size:
        yield word, size


def _characters(
    tokens: Sequence[int], decode: Callable[[list[int]], str]
) -> Iterator[tuple[str, int]]:
    """The tokens in the smallest groups that are whole characters; bytes that are none are a group too."""
    whole, known, group = decode(list(tokens)), 0, list[int]()
    for token in tokens:
        group.append(token)
        text = decode(group)
        broken = text.find("\ufffd")
        if broken < 0 or whole[known + broken : known + broken + 1] == "\ufffd":
            yield text, len(group)
            known, group = known + len(text), []
    if group:
        yield decode(group), len(group)


def spoken(
    pieces: Iterable[tuple[str, int]], begins: np.ndarray, chances: np.ndarray
) -> list[Word]:
    """Words with their times in the window, from `split`, and the seconds when each token and the end begin."""
    words, at = [], 0
    for text, count in pieces:
        after = at + count
        chance = float(chances[at:after].mean())
        words.append(Word(text, float(begins[at]), float(begins[after]), chance, count))
        at = after
    return words


def _lengths(words: Sequence[Word]) -> tuple[float, float]:
    """The median duration of a word, and how long one may be beside a pause."""
    durations = [word.end - word.start for word in words if word.end != word.start]
    usual = min(0.7, float(np.median(durations))) if durations else 0.0
    return usual, 2 * usual


def placed(segments: Sequence[Segment], words: list[Word], end: int, last: float) -> list[Segment]:
    """A window's segments with their words, and their ends at those of the words.

    words: of all of them, with times in the window; end: the id after the last of text; last: when speech before
    the window ended, in seconds
    """
    usual, longest = _lengths(words)
    for before, word in pairwise(words):  # a long word beside a sentence's end holds a pause
        if word.end - word.start > longest > 0:
            if word.word in _SENTENCE_ENDS:
                word.end = word.start + longest
            elif before.word in _SENTENCE_ENDS:
                word.start = word.end - longest
    rest = iter(_with_marks(words))
    found = []
    for segment in segments:
        missing, own = sum(token < end for token in segment.tokens), []
        while missing > 0 and (word := next(rest, None)):
            missing -= word.tokens
            word.start, word.end = (
                round(segment.seek / FRAMES + t, 2) for t in (word.start, word.end)
            )
            own.append(word)
        if own:
            segment = _moved(segment, own, usual, longest, last)
            last = segment.end
        found.append(replace(segment, words=tuple(own)))
    return found


def _with_marks(words: Iterable[Word]) -> list[Word]:
    """The words, each with the punctuation around it, without the punctuation's time."""
    joined: list[Word] = []
    for word in reversed(list(words)):
        if joined and word.word.startswith(" ") and word.word.strip() in _BEFORE:
            joined[-1].word = word.word + joined[-1].word
            joined[-1].tokens += word.tokens
        else:
            joined.append(word)
    found: list[Word] = []
    for word in reversed(joined):
        if found and not found[-1].word.endswith(" ") and word.word in _AFTER:
            found[-1].word += word.word
            found[-1].tokens += word.tokens
        else:
            found.append(word)
    return found


def _moved(
    segment: Segment, words: list[Word], usual: float, longest: float, last: float
) -> Segment:
    """The segment with its ends at those of its words; words that hold a pause are made shorter."""
    first, final = words[0], words[-1]
    second = words[1] if len(words) > 1 else None
    long = first.end - first.start > longest
    long = long or (second is not None and second.end - first.start > 2 * longest)
    if first.end - last > 4 * usual and long:
        if second and second.end - second.start > longest:
            first.end = second.start = max(second.end / 2, second.end - longest)
        first.start = max(0, first.end - longest)
    start, end = segment.start, segment.end
    if first.start + 0.5 < start < first.end:
        first.start = max(0, min(first.end - usual, start))
    else:
        start = first.start
    if final.start < end < final.end - 0.5:
        final.end = max(final.start + usual, end)
    else:
        end = final.end
    return replace(segment, start=start, end=end)


def last_end(segments: Sequence[Segment]) -> float:
    """When the last word ends; without words, the last segment."""
    ends = (word.end for segment in reversed(segments) for word in reversed(segment.words or ()))
    return next(ends, segments[-1].end)


def without_inventions(
    segments: list[Segment],
    window: tuple[float, float, float, float],
    last: float,
    threshold: float,
) -> tuple[list[Segment], float | None]:
    """A window's segments up to the first that stands in silence and whose words are improbable, very short or very
    long; and where to go on for that, in seconds (None: where the window would).

    window: its beginning, the end of its sound, its own end and the end of the whole sound; last: when speech before
    the window ended; threshold: from what duration on silence counts, all in seconds
    """
    begin, end, whole_end, sound_end = window
    with_words = [i for i, segment in enumerate(segments) if segment.words]
    for i, after in zip(with_words, [*with_words[1:], None], strict=True):
        segment, following = segments[i], None if after is None else segments[after]
        invented, gap = _invented(segment), segment.start - begin
        if i == with_words[0] and invented and gap > threshold:
            return [], segment.start
        next_start = following.words[0].start if following and following.words else end
        before = segment.start - last > threshold or segment.start < threshold or gap < 2
        behind = next_start - segment.end > threshold or whole_end - segment.end < 2
        behind = behind or (following is not None and _invented(following))
        if invented and before and behind:
            ends = sound_end - segment.end < threshold
            return segments[:i], sound_end if ends else max(begin + 1, segment.start)
        last = segment.end
    return segments, None


def _invented(segment: Segment) -> bool:
    """Whether the words of a segment (the first eight) are not like speech."""
    words = [word for word in segment.words or () if word.word not in _BEFORE + _AFTER][:8]
    score = 0.0
    for word in words:
        duration = word.end - word.start
        score += (word.probability < 0.15) + 15 * max(0, 0.133 - duration) + max(0, duration - 2)
    return score >= 3 or score + 0.01 >= len(words)
