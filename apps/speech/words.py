"""Word times: what the alignment heads attend to while the target reads the finished text, and dynamic
time warping (Sakoe and Chiba 1978). All of it as in OpenAI's whisper/timing.py, whose constants these are."""

import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, product

import mlx.core as mx
import numpy as np

from apps.speech.features import FRAMES
from apps.speech.rules import SECONDS_PER_TIMESTAMP, TASKS, Special
from apps.speech.segments import Segment, Window, Word
from speculative.models.whisper import Whisper
from speculative.text import languages
from speculative.text.lines import UNIT
from speculative.text.scripts import SENTENCE_ENDED, SPOKEN

Decode = Callable[[list[int]], str]
IsText = Callable[[int], bool]
_FILTER = 7  # encoder positions
_HEADS = 64  # of all windows of a call: their weights stay in memory


def attended(
    model: Whisper, special: Special, steering: Sequence[int], windows: Sequence[Window]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each window, how much each token of its text and the end attend to each position with sound, [T + 1, S], and
    the probability of each token, [T]."""
    layers = range(model.config.decoder_layers)[model.config.decoder_layers // 2 :]
    heads = range(model.config.decoder_attention_heads)
    of_layers: dict[int, list[int]] = {}
    for layer, head in special.alignment_heads or product(layers, heads):
        of_layers.setdefault(layer, []).append(head)
    together = max(1, _HEADS // sum(map(len, of_layers.values())))
    prefix = [*steering, special.no_timestamps]
    results = []
    for i in range(0, len(windows), together):
        batch = windows[i : i + together]
        texts = [window.text(special) for window in batch]
        longest = max(map(len, texts))
        tokens = [[*prefix, *text, *[special.end] * (longest + 1 - len(text))] for text in texts]
        prompts = [window.prompt for window in batch]
        logits, by_layer = model.attention(prompts, mx.array(tokens), of_layers)  # [B, N, V]
        scores = mx.concatenate(list(by_layer.values()), axis=1)  # [B, H, N, S]
        for b, (window, text) in enumerate(zip(batch, texts, strict=True)):
            span = slice(len(prefix) - 1, len(prefix) + len(text))  # of the text and the end
            heard = max(1, min(window.advance, window.size) // 2)  # positions with its sound
            weights = mx.softmax(scores[b, :, : span.stop + 1, :heard], axis=-1)
            mean = weights.mean(-2, keepdims=True)
            weights = (weights - mean) / mx.std(weights, -2, keepdims=True)
            matrix = _median_filtered(weights[:, span]).mean(0)
            of_text = logits[b, span][:-1].astype(mx.float32)
            of_text = mx.where(special.text_mask(of_text.shape[-1]), of_text, -mx.inf)
            chances = mx.softmax(of_text, axis=-1)
            chances = mx.take_along_axis(chances, mx.array(text)[:, None], axis=1)[:, 0]
            mx.eval(matrix, chances)
            results.append((np.array(matrix), np.array(chances)))
    return results


def _median_filtered(x: mx.array) -> mx.array:
    """Each number's median with its neighbours in the last axis, mirrored at both ends."""
    half = _FILTER // 2
    size = x.shape[-1]
    if size <= half:
        return x
    padded = x[..., mx.array(np.pad(np.arange(size), half, "reflect"))]
    return mx.sort(mx.stack([padded[..., i : i + size] for i in range(_FILTER)]), axis=0)[half]


def first_columns(gain: np.ndarray) -> np.ndarray:
    """The column at which each row of a matrix [N, M] begins on the path from its first to its last corner, down, right or both in
    each step, along which the sum is greatest: [N]. Between equal sums, OpenAI's path, which goes right."""
    N, M = gain.shape
    cost = np.full((N + M + 1, N + 1), np.inf)  # of the path to (i, j), at [i + j, i]
    moves = np.full(cost.shape, 2)  # 0: both, 1: down, 2: right
    cost[0, 0] = 0
    for d in range(2, N + M + 1):
        i = np.arange(max(1, d - M), min(N, d - 1) + 1)
        both, down, right = cost[d - 2, i - 1], cost[d - 1, i - 1], cost[d - 1, i]
        by_both = (both < down) & (both < right)
        by_down = (down < both) & (down < right)
        moves[d, i] = np.where(by_both, 0, np.where(by_down, 1, 2))
        cost[d, i] = np.choose(moves[d, i], (both, down, right)) - gain[i - 1, d - i - 1]
    columns = np.zeros(N, int)
    i, j = N, M
    while i and j:
        columns[i - 1] = j - 1
        move = moves[i + j, i]
        i -= move < 2
        j -= move != 1
    return columns


def has_spaces(language: str, task: str | None) -> bool:
    """Whether words are what spaces separate in the text."""
    return task == TASKS[1] or languages.has_spaces(language)


def split(tokens: Sequence[int], decode: Decode, spaces: bool) -> Iterator[tuple[str, int]]:
    """The pieces of a text's words, with their numbers of tokens: characters, or with `spaces` what a space or a mark
    begins."""
    characters = _characters(tokens, decode)
    word, size = next(characters, ("", 0))
    for text, count in characters:
        if not spaces or text.startswith(" ") or text.strip() in string.punctuation:
            yield word, size
            word, size = "", 0
        word += text
        size += count
    if size:
        yield word, size


def _characters(tokens: Sequence[int], decode: Decode) -> Iterator[tuple[str, int]]:
    """The tokens in the smallest groups that are whole characters; bytes that are none are a group too."""
    whole = decode(list(tokens))
    position = 0  # of the group in the whole text
    group = list[int]()
    for token in tokens:
        group.append(token)
        text = decode(group)
        broken = text.find("\ufffd")
        if broken < 0 or whole[position + broken : position + broken + 1] == "\ufffd":
            yield text, len(group)
            position += len(text)
            group = []
    if group:
        yield decode(group), len(group)


def timed_words(
    pieces: Iterable[tuple[str, int]], weights: np.ndarray, chances: np.ndarray
) -> list[Word]:
    """Pieces, from `split`, with their times in the window. weights, chances: see `attended`."""
    begins = first_columns(weights) * SECONDS_PER_TIMESTAMP
    words = []
    first = 0
    for text, count in pieces:
        after = first + count
        chance = float(chances[first:after].mean())
        words.append(Word(text, float(begins[first]), float(begins[after]), chance, count))
        first = after
    return words


def place_words(
    segments: Sequence[Segment], pieces: Sequence[Word], is_text: IsText, last: float
) -> list[Segment]:
    """A window's segments with their words, and each segment's start and end moved to its words'.

    pieces: of all segments, with times in the window; last: when speech before the window ended, in seconds
    """
    durations = [piece.end - piece.start for piece in pieces if piece.end != piece.start]
    usual = min(0.7, float(np.median(durations or [0.0])))
    pieces = [*_without_pauses(pieces, 2 * usual)]
    number = max((i for i, piece in enumerate(pieces) if SPOKEN.search(piece.word)), default=-1)
    final = pieces[number]
    offset = segments[-1].seek / FRAMES
    if final.start == final.end:  # the end of the text took its sound
        end = max(final.end, min(final.start + usual, segments[-1].end - offset))
        pieces[number] = replace(final, end=end)
    rest = iter(pieces)
    timed = []
    for segment in segments:
        missing = sum(map(is_text, segment.tokens))
        own = list[Word]()
        while missing > 0 and (piece := next(rest, None)):
            missing -= piece.tokens
            start = round(offset + piece.start, 2)
            own.append(replace(piece, start=start, end=round(offset + piece.end, 2)))
        if own:
            segment = _moved(segment, [*_whole_words(own)], usual, last)
            last = segment.end
        timed.append(replace(segment, words=segment.words or ()))
    return timed


def _without_pauses(pieces: Sequence[Word], longest: float) -> Iterator[Word]:
    """The pieces. A longer one behind a sentence's end holds a pause, and is made as short."""
    yield pieces[0]
    for before, piece in pairwise(pieces):
        if piece.end - piece.start > longest > 0 and SENTENCE_ENDED.search(before.word):
            piece = replace(piece, start=piece.end - longest)
        yield piece


def _whole_words(pieces: Sequence[Word]) -> Iterator[Word]:
    """The words of a segment's pieces, each with the marks around it but without their time. None but the first begins
    without a space, except in scripts that have none."""
    whole = "".join(piece.word for piece in pieces)
    ends = {unit.start() + len(unit[0].rstrip()) for unit in UNIT.finditer(whole)}
    own = list[Word]()
    position = 0
    for piece in pieces:
        own.append(piece)
        position += len(piece.word)
        if position in ends or piece is pieces[-1]:
            spoken = [each for each in own if SPOKEN.search(each.word)] or own  # not the marks
            sizes = [each.tokens for each in spoken]
            chance = float(np.average([each.probability for each in spoken], weights=sizes))
            text = "".join(each.word for each in own)
            count = sum(each.tokens for each in own)
            yield Word(text, spoken[0].start, spoken[-1].end, chance, count)
            own = []


def _moved(segment: Segment, words: Sequence[Word], usual: float, last: float) -> Segment:
    """The segment with its words, and its ends at theirs; words that hold a pause are made shorter."""
    longest = 2 * usual
    starts = [word.start for word in words]
    ends = [word.end for word in words]
    long = ends[0] - starts[0] > longest
    long = long or (len(words) > 1 and ends[1] - starts[0] > 2 * longest)
    if ends[0] - last > 4 * usual and long:
        if len(words) > 1 and ends[1] - starts[1] > longest:
            ends[0] = starts[1] = max(ends[1] / 2, ends[1] - longest)
        starts[0] = max(0, ends[0] - longest)
    start = segment.start
    end = segment.end
    if starts[0] + 0.5 < start < ends[0]:
        starts[0] = max(0, min(ends[0] - usual, start))
    else:
        start = starts[0]
    if starts[-1] < end < ends[-1] - 0.5:
        ends[-1] = max(starts[-1] + usual, end)
    else:
        end = ends[-1]
    spans = zip(words, starts, ends, strict=True)
    segment = replace(segment, words=tuple(replace(w, start=a, end=b) for w, a, b in spans))
    if start < end and segment.start < segment.end:  # otherwise it is left out, timed or not
        segment = replace(segment, start=start, end=end)
    return segment


def cut_segment(
    segment: Segment, groups: Sequence[Sequence[Word]], is_text: IsText, decode: Decode
) -> Iterator[Segment]:
    """The segments that a segment becomes if it is cut between groups of its words."""
    end = len(segment.tokens)
    texts = [*(i for i, token in enumerate(segment.tokens) if is_text(token)), end]
    counts = accumulate(sum(word.tokens for word in words) for words in groups[:-1])
    bounds = [0, *(texts[min(count, len(texts) - 1)] for count in counts), end]
    for words, (first, last) in zip(groups, pairwise(bounds), strict=True):
        tokens = segment.tokens[first:last]
        part = replace(segment, tokens=tokens, text=decode(tokens), words=tuple(words))
        yield replace(part, origins=segment.origins[first:last])
