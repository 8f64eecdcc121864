"""`python benchmark.py --check`: is all well on this machine? Results get a verdict; times are only shown."""

import io
import json
import timeit
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from functools import cache, cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from apps.benchmarks.machine import describe
from apps.benchmarks.measuring import decoding
from apps.benchmarks.widening import widened
from apps.speech import audio
from apps.speech.transcriber import Transcriber
from decoder import load
from demo.pair import DEMO, KINDS, default_dtype, demo_model, examples
from speculative.checkpoints.weights import Quantization
from speculative.models.contract import Model
from speculative.models.conversion import convert
from speculative.step.row import Row
from speculative.step.timing import CallTimes

OK, WRONG, SKIPPED, NO_VERDICT = "ok", "WRONG", "skipped", ""
Verdict = tuple[str, str]  # one of these, and what was measured

# The largest difference of a logit from rounding alone, in eps of the type (seen: 5 in float32, 2 in 16 bits)
ROUNDINGS = {"float32": 32, "float16": 8, "bfloat16": 8}
TYPES = (*ROUNDINGS, "4 bits")  # 4 bits: computed in the device's usual type
FAMILIES = {"T5": "", "Llama": "causal-"}  # what the names of their folders begin with
PER_KIND = 2  # of the demo's prompts
MAX_TOKENS = 32
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16)  # tokens in a timed call
SIZE = "t5-base"  # of the model that is timed


class CheckedPair:
    """An embedded pair in one type. Its checks return an error for each text: 0, or a difference of logits over the largest."""

    def __init__(self, family: str, name: str, folder: Path):
        """family: of FAMILIES; name: of TYPES; folder: for converted models."""
        bits = Quantization(bits=4, group_size=32) if name == "4 bits" else None
        dtype = default_dtype() if bits else name
        self.tolerance = ROUNDINGS[dtype] * float(mx.finfo(getattr(mx, dtype)).eps)

        def load_role(role: str) -> Any:
            source = DEMO / f"{FAMILIES[family]}{role}"
            path = folder / name / source.name
            return load(convert(str(source), path, dtype, exist_ok=True, quantization=bits))[0]

        self.target = load_role("target")
        self.draft = load_role("draft")
        self.exact = load_role("target")
        self.exact.set_dtype(mx.float32)

    @cached_property
    def plain(self) -> list[Row]:
        return texts(self.target)

    def errors(self, rows: Sequence[Row]) -> list[float]:
        """The distance of each of these texts from plain decoding's."""
        return [margin(self.target, *pair) for pair in zip(self.plain, rows, strict=True)]

    def in_a_thread(self) -> list[float]:
        """As in a server. First of all, because what has been computed once belongs to no thread."""
        with ThreadPoolExecutor(1) as thread:
            return self.errors(thread.submit(texts, self.target, self.draft).result())

    def side_by_side(self) -> list[float]:
        drafted = self.errors(texts(self.target, self.draft, 8))
        return self.errors(texts(self.target, None, 8)) + drafted

    def logits(self) -> list[float]:
        """Of the texts, against the same weights in float32 on the processor."""
        ours = [text_logits(self.target, row) for row in self.plain]
        mx.eval(ours)
        with mx.stream(mx.cpu):
            exact = [text_logits(self.exact, row) for row in self.plain]
            pairs = zip(ours, exact, strict=True)
            return [float(mx.abs(a - b).max() / mx.abs(b).max()) for a, b in pairs]

    def on_processor(self) -> list[float]:
        with mx.stream(mx.cpu):
            return self.errors(texts(self.exact, batch_size=8))


CHECKS: dict[str, Callable[[CheckedPair], list[float]]] = {
    "loaded here, decoded in a thread": CheckedPair.in_a_thread,
    "drafted, alone": lambda pair: pair.errors(texts(pair.target, pair.draft)),
    "8 together, plain and drafted": CheckedPair.side_by_side,
    "logits, GPU and processor": CheckedPair.logits,
    "texts, GPU and processor": CheckedPair.on_processor,
}


def texts(target: Any, draft: Any | None = None, batch_size: int = 1) -> list[Row]:
    """Greedy texts for some of the demo's prompts."""
    prompts = [example.prompt for example in examples(PER_KIND, KINDS)]
    num_draft = 4 if draft else 0
    return decoding(target, draft, batch_size, num_draft=num_draft, max_tokens=MAX_TOKENS)(prompts)


def text_logits(model: Model, row: Row) -> mx.array:
    """Logits [T, V] of the T tokens of a row's text, in one call."""
    cache = model.start([row.prompt])
    first = int(cache.lengths[0])
    inputs = np.minimum([row.tokens[first:-1]], model.config.vocab_size - 1).astype(np.int32)
    positions = np.arange(first, len(row.tokens) - 1, dtype=np.int32)[None]
    return model.decode(mx.array(inputs), positions, cache)[0, -len(row.generated) :]


def margin(model: Any, expected: Row, actual: Row) -> float:
    """The distance of two texts' logits where they part, relative to the largest logit there; 0 if they do not."""
    if actual.generated == expected.generated:
        return 0.0
    for i, (a, b) in enumerate(zip(expected.generated, actual.generated, strict=False)):
        if a != b:
            logits = text_logits(model, expected)[i]
            distance = float(mx.abs(logits[a] - logits[b]) / mx.abs(logits).max())
            return max(distance, 1e-30)  # a tie: the texts differ all the same
    return float("inf")  # one goes on where the other ends


def has_gpu() -> bool:
    return mx.default_device() == mx.gpu


def judge(
    name: str, check: Callable[[CheckedPair], list[float]], pairs: Callable[[], list[CheckedPair]]
) -> Verdict:
    """The verdict of one of CHECKS on pairs of one type."""
    if "GPU" in name and not has_gpu():
        return SKIPPED, "no GPU"
    errors = np.array([error for pair in pairs() for error in check(pair)])
    largest = errors.max()  # not a number, if one is not
    tolerance = pairs()[0].tolerance
    if not largest:
        return OK, f"{len(errors)} texts, all equal"
    measured = f"{np.count_nonzero(errors)} of {len(errors)} differ, by up to {largest:.1e}"
    return OK if largest <= tolerance else WRONG, f"{measured} (rounding: {tolerance:.1e})"


def clip() -> Verdict:
    """Whether the speech pair transcribes a clip correctly."""
    clips = json.loads((DEMO / "speech" / "clips.json").read_text("utf-8"))
    transcriber = Transcriber(demo_model("speech/target"), demo_model("speech/draft"))
    began = perf_counter()
    transcript = transcriber.transcribe(audio.read(str(DEMO / "speech" / "numbers.wav")))
    seconds = perf_counter() - began
    text = transcript.text.strip()
    if text != clips["numbers.wav"]["text"]:
        return WRONG, f"heard {text!r}"
    return OK, f"{transcript.duration:.1f} s of sound in {seconds:.1f} s"


def wait() -> Verdict:
    """The seconds that the host waits for the smallest computation."""
    seconds = min(timeit.repeat(lambda: mx.eval(mx.zeros(1) + 1), repeat=10, number=10)) / 10
    return NO_VERDICT, f"{1e6 * seconds:.0f} µs"


def call_costs(quantization: Quantization | None = None) -> Verdict:
    """The cost of a call by the tokens in it. A chain: calls that need no other's result look dearer (MLX's issue 4265)."""
    target = widened(SIZE)
    if quantization:
        nn.quantize(target, class_predicate=quantization.covers)  # 4 bits, in groups of 64
    times = CallTimes(target, None, [5] * 20, WIDTHS, chained=4)
    times.measure()
    others = ", ".join(f"{n}: {times[n] / times[1]:.2f}" for n in WIDTHS[1:])
    return NO_VERDICT, f"{1e3 * times[1]:.1f} ms for 1 token; times that for {others}"


def all_checks(folder: str) -> Iterator[tuple[str, Callable[[], Verdict]]]:
    """Names of checks, and functions that do them. folder: for converted models."""
    families = [family for family in FAMILIES if family != "Llama" or find_spec("mlx_lm")]
    for name in TYPES:
        pairs = cache(lambda name=name: [CheckedPair(f, name, Path(folder)) for f in families])
        for check_name, check in CHECKS.items():
            yield f"{name}: {check_name}", partial(judge, check_name, check, pairs)
    yield "a clip, transcribed", clip
    yield "time of a wait", wait
    yield f"time of a call, {default_dtype()}", call_costs
    yield "time of a call, 4 bits", partial(call_costs, Quantization(bits=4))


def all_is_well() -> bool:
    """Print the machine, and a line for each check as it is done: a block for an issue. Return whether nothing is wrong."""
    print("\n".join(f"{key}: {value}" for key, value in describe().items()))
    print(f"size timed: {SIZE}\n\n| check | verdict | measured |\n| --- | --- | --- |")
    verdicts = []
    with TemporaryDirectory() as folder:
        for name, check in all_checks(folder):
            try:
                with redirect_stderr(io.StringIO()):  # no notes of conversions between the lines
                    verdict, measured = check()
            except Exception as error:
                verdict = WRONG
                measured = f"{type(error).__name__}: {error}".splitlines()[0]
            verdicts.append(verdict)
            print(f"| {name:<42} | {verdict:<7} | {measured} |", flush=True)
    wrong, skipped = verdicts.count(WRONG), verdicts.count(SKIPPED)
    print(f"\n{f'{wrong} WRONG' if wrong else 'All is well'}; {skipped} skipped.")
    return not wrong
