"""--show-draft: every token's origin is the true one, and the marks change nothing of the text."""

import os
import pty
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from helpers.decoding import decode_with, ragged_prompts
from helpers.programs import ROOT
from helpers.scripted import EOS, START, agreeing
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.cli.display import coloured, painted
from speculative.drafters.draft_model import ModelDrafter
from speculative.drafters.prompt_lookup import PromptLookup
from speculative.step.options import Options
from speculative.step.row import ORIGINS, Row, respond
from speculative.text.rows import TextStream
from speculative.text.tokenizer import byte_tokenizer

REPAIR = "repair: The kign sees the the house."
ESCAPES = re.compile(r"\033\[[0-9;]*m")


def expected_origins(target, draft, source, num_draft: int, max_tokens: int) -> list[str]:
    """The origins by the definition of a greedy round, one token at a time."""
    tokens, origins = [START], []
    while len(origins) < max_tokens and tokens[-1] != EOS:
        k = min(num_draft, max_tokens - len(origins) - 1)
        proposed = list(tokens)
        for _ in range(k):
            proposed.append(draft.next_token(tuple(source), tuple(proposed)))
        for token in [*proposed[len(tokens) :], None]:
            right = target.next_token(tuple(source), tuple(tokens))
            tokens.append(right)
            origins.append("target" if token is None else "draft_model")
            if token not in (None, right):
                origins[-1] = "corrected"
            if origins[-1] != "draft_model" or right == EOS:
                break
    return origins


@pytest.mark.parametrize("num_draft", [0, 1, 4])
def test_origins_are_those_of_the_definition(num_draft):
    target, draft = agreeing(0.6, ends=0.04)
    sources = ragged_prompts(6, 50)
    rows = decode_with(target, ModelDrafter(draft), sources, num_draft=num_draft, max_tokens=30)
    origins = {origin for row in rows for origin in row.origins}
    assert origins == ({"draft_model", "corrected", "target"} if num_draft else {"target"})
    for row in rows:
        assert row.origins == expected_origins(target, draft, row.prompt, num_draft, 30)


def test_copied_tokens_are_told_from_the_draft_models():
    """A text that repeats its source and then leaves it: copied first, drafted by the model after."""

    def next_token(source, prefix):
        n = len(prefix)
        return source[n - 1] if n <= len(source) else EOS if n == 15 else 40 - n

    target, draft = (agreeing(1)[0] for _ in range(2))
    target.next_token = draft.next_token = next_token
    drafter = ModelDrafter(draft, lookup=PromptLookup())
    (row,) = decode_with(target, drafter, [[5, 6, 7, 8, 9]], num_draft=2, max_tokens=30)
    copied, drafted = ["lookup"] * 2 + ["target"], ["draft_model"] * 2 + ["target"]
    assert row.origins == copied * 2 + drafted * 3


def response_of(tokenizer, tokens: list[int], origins: list[str]):
    config = SimpleNamespace(eos_token_ids=(), max_positions=None, vocab_size=1 << 30)
    stream = TextStream(tokenizer, {0, 1})
    row = Row.begin([5], Options(max_tokens=len(tokens)), [0], config, text=stream)
    for token, origin in zip(tokens, origins, strict=True):
        row.commit([token], [origin], ())
    row.stats.encoding_seconds = 1.0
    return respond(row)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_marks_change_nothing_of_the_text(demo_pair, data):
    tokenizer = data.draw(st.sampled_from([byte_tokenizer(), demo_pair[1]]))
    ids = st.integers(0, tokenizer.get_vocab_size() - 1)
    bytes_of_text = st.text().map(lambda text: [byte + 3 for byte in text.encode()])
    tokens = data.draw(st.one_of(st.lists(ids, min_size=1), bytes_of_text.filter(bool)))
    same_length = st.lists(st.sampled_from(ORIGINS), min_size=len(tokens), max_size=len(tokens))
    response = response_of(tokenizer, tokens, data.draw(same_length))
    shown = [token for token in tokens if token not in (0, 1)]
    assert response.text == tokenizer.decode(shown, skip_special_tokens=False)
    assert ESCAPES.sub("", painted(response)) == ESCAPES.sub("", response.text)


def test_a_character_of_several_tokens_has_the_last_ones_colour():
    tokens = [byte + 3 for byte in "aé🙂".encode()]
    origins = ["draft_model", "target", "draft_model", *["target"] * 3, "corrected"]
    shown = painted(response_of(byte_tokenizer(), tokens, origins))
    assert shown == "\033[32maé\033[0m\033[4;91m🙂\033[0m"


# ---------------------------------------------------------------------------------------------
# On a terminal


@pytest.mark.parametrize(
    ("environment", "yes"),
    [
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_colour_only_where_it_is_wanted(monkeypatch, environment, yes):
    monkeypatch.setattr(os, "environ", environment)
    terminal, pipe = (SimpleNamespace(isatty=lambda yes=yes: yes) for yes in (True, False))
    assert coloured(terminal) == yes and not coloured(pipe)


@pytest.mark.parametrize("given", [["-p", REPAIR], ["--prompt-file", "p.txt"]])
def test_colour_on_a_terminal(work, given):
    (work / "p.txt").write_text(f"{REPAIR}\n{REPAIR}\n")
    terminal, stdout = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"}
    arguments = ["--show-draft", *given, "--num-draft", "4", "--lookup"]
    command = [sys.executable, ROOT / "main.py", *arguments]
    result = subprocess.run(command, cwd=work, stdout=stdout, stderr=subprocess.PIPE, env=env)
    os.close(stdout)
    first, *others = os.read(terminal, 65536).decode().splitlines()
    os.close(terminal)
    assert first == (
        "\033[35mThe\033[0m \033[4;91mking\033[0m \033[35msees the\033[0m "
        "\033[4;91mhouse\033[0m\033[35m.\033[0m"
    )
    assert [ESCAPES.sub("", line) for line in others] == ["The king sees the house."] * (
        given[0] != "-p"
    )
    assert result.stderr.count(b"\n") == 1 and b"magenta: prompt lookup" in result.stderr
