"""The embedded decoder-only pair, trained: its texts are mlx-lm's own, and the programs run on it."""

import fcntl
import os
import pty
import struct
import termios

import mlx.core as mx
import pytest

pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: requirements-apps.txt")

import tqdm
from helpers import programs
from helpers.programs import ANSWER, DEMO, PROMPT
from helpers.texts import chat_tokens

from apps.benchmarks.measuring import decoder
from apps.benchmarks.widening import widened_pair
from demo.pair import examples
from docs.tools.mlx_lm_ways import mlx_lm_ways

pytestmark = pytest.mark.slow

PAIR = ["--model", DEMO / "causal-target", "--draft-model", DEMO / "causal-draft"]


def in_float32(size: str):
    """Target and draft model."""
    models = widened_pair((size, size))
    for model in models:
        model.set_dtype(mx.float32)
    return models


@pytest.fixture(scope="module")
def pair():
    return in_float32("llama-demo")


@pytest.fixture(scope="module")
def prompts(pair):
    return [chat_tokens(pair[0], example.prompt) for example in examples(4)]


@pytest.fixture(scope="module")
def expected(pair, prompts):
    """mlx-lm's own greedy tokens."""
    return mlx_lm_ways(*pair, 64, [], [])["mlx-lm, generate_step"](prompts)


def test_texts_are_those_of_mlx_lms_ways_and_the_right_answers(pair, prompts, expected):
    from mlx_lm import generate
    from mlx_lm.utils import load_tokenizer

    target, draft = pair
    for way in mlx_lm_ways(
        *pair, 64, [1, 8], [3]
    ).values():  # what docs/tools/baselines.py compares with
        assert way(prompts) == expected
    responses = decoder(target, draft).batch_generate(prompts, batch_size=4, num_draft=3)
    tokenizer = load_tokenizer(programs.DEMO / "causal-target")
    texts = [generate(target.model, tokenizer, prompt, max_tokens=64) for prompt in prompts]
    assert [response.text for response in responses] == texts
    right = sum(example.answer == text for example, text in zip(examples(4), texts, strict=True))
    assert right >= len(texts) - 1


def test_a_widened_model_is_the_same_function(pair):
    wide = in_float32("llama-60m")
    tokens = mx.array([[1024, 36, 40, 80, 1025, 7, 9]])
    for small, large in zip(pair, wide, strict=True):
        assert large.model.args.hidden_size == 512 and len(large.model.layers) == 20
        a, b = small.model(tokens), large.model(tokens)
        assert mx.abs(a - b).max() < 2e-5 * mx.abs(a).max()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prompt", PROMPT],
        ["--system-prompt", "translate number to German:", "--prompt", "1284"],
        ["--ignore-chat-template", "--prompt", f"<|user|>{PROMPT}<|assistant|>"],
    ],
)
def test_main_answers_in_the_template(tmp_path, arguments):
    result = programs.call(*PAIR, *arguments, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, f"{ANSWER}\n"), result.stderr
    assert all("half-precision" in line for line in result.stderr.splitlines())  # without a GPU


def test_a_long_prompt_shows_how_far_it_is_read(tmp_path, monkeypatch):
    """On a terminal, once it takes long: the demo's are read at once."""
    terminal, stderr = pty.openpty()
    fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    shown = []
    arguments = [*PAIR, "-m", "2", "-p", "repair: " + "The king sees the house. " * 100]

    class Bar(tqdm.tqdm):
        seconds = 0

        def __init__(self, *args, **settings):
            super().__init__(*args, **settings | {"delay": self.seconds})

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    for seconds in (600, 0):
        Bar.seconds = seconds
        assert programs.call(*arguments, cwd=tmp_path, terminal=stderr).returncode == 0
        shown.append(os.read(terminal, 65536).decode())
    os.close(stderr), os.close(terminal)
    assert "reading" not in shown[0]
    assert "reading the prompt" in shown[1] and "512/" in shown[1]
    assert "reading" not in programs.call(*arguments, cwd=tmp_path).stderr


def test_the_table_beside_mlx_lm_is_printed(tmp_path, monkeypatch):
    """Of a few prompts and tokens, without the pauses."""
    monkeypatch.setattr("docs.tools.baselines.PAUSE", 0)
    sizes = ["--sizes", "llama-demo", "llama-demo", "--examples", "1", "--max-tokens", "6"]
    ways = ["--num-draft", "2", "auto", "--drafter", "model", "--batch-size", "1", "2"]
    result = programs.call(*ways, *sizes, cwd=tmp_path, script="docs.tools.baselines")
    assert result.returncode == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if line.startswith("|")]
    assert rows[-1].split("|")[1].strip() == "mlx-lm, batch_generate, batch 2", result.stdout
    assert "Texts other than those of plain: none." in result.stdout
