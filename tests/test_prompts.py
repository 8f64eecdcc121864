"""Files of prompts: every kind of line, and output in the order of the lines."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from test_main import ANSWER, PROMPT, ROOT, run

from terminal.prompt_files import InOrder, PromptFile

FRENCH = "translate number to French: 80"


def read(path: Path, content: bytes) -> tuple[list[tuple[int, str]], list[str]]:
    path.write_bytes(content)
    errors = []
    file = PromptFile(str(path), lambda line, reason: errors.append(f"{line}: {reason}"))
    prompts = [(file.line_of(i), prompt) for i, prompt in enumerate(file)]
    assert file.lines == len(prompts) + len(errors) and file.bad_lines == len(errors)
    return prompts, errors


def test_plain_lines(tmp_path):
    content = "one\r\n\n{not json\n \nzwölf".encode() + b"\n\xff\nlast"
    prompts, errors = read(tmp_path / "p.txt", content)
    assert prompts == [(0, "one"), (2, "{not json"), (4, "zwölf"), (6, "last")]
    assert errors == ["1: the prompt is empty", "3: the prompt is empty", "5: not UTF-8 text"]


@pytest.mark.parametrize("name", ["p.jsonl", "p.txt"])
def test_json_lines(tmp_path, name):
    lines = [
        '{"prompt": "one", "more": 1}',
        "plain",
        '{"text": "x"}',
        '{"prompt": ""}',
        '{"prompt": 3}',
        "[1]",
        '{"prompt": "a\\ud800b"}',
        '{"prompt": "two\\nlines"}',
    ]
    prompts, errors = read(tmp_path / name, "\n".join(lines).encode())
    assert prompts == [(0, "one"), (7, "two\nlines")]
    for error, (line, reason) in zip(
        errors,
        [
            (1, "not JSON"),
            (2, "no JSON object with a field prompt"),
            (3, "the prompt is empty"),
            (4, "the prompt is int, not text"),
            (5, "no JSON object with a field prompt"),
            (6, "the prompt is not valid Unicode text"),
        ],
        strict=True,
    ):
        assert error.startswith(f"{line}: {reason}")


def test_output_in_order_and_as_early_as_it_can_be():
    output = []
    with InOrder(output.append) as lines:
        lines.put(1, "b")
        assert output == []
        lines.put(0, "a\nA")
        assert output == ["a A", "b"]
        lines.put(4, "e")
    assert output == ["a A", "b", "", "", "e"]


@pytest.fixture
def work(demo_folders, tmp_path) -> Path:
    (tmp_path / "mlx_models").symlink_to(demo_folders / "mlx_models")
    (tmp_path / "p.txt").write_text(f"{PROMPT}\n\n{FRENCH}\n")
    return tmp_path


def test_a_prompt_file_is_answered_line_by_line(work):
    result = run("--prompt-file", "p.txt", "--batch-size", "2", cwd=work)
    assert result.stdout == f"{ANSWER}\n\nquatre-vingts\n"
    assert result.stderr.splitlines() == [
        "p.txt, line 2: the prompt is empty",
        "main.py: p.txt: 1 of 3 lines have no prompt",
    ]
    assert result.returncode == 1


def test_progress_is_shown_on_a_terminal_only(work):
    terminal, stderr = pty.openpty()
    fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, ROOT / "main.py", "--prompt-file", "p.txt"]
    result = subprocess.run(command, cwd=work, stdout=subprocess.PIPE, stderr=stderr)
    os.close(stderr)
    assert result.stdout.decode() == f"{ANSWER}\n\nquatre-vingts\n"
    shown = os.read(terminal, 65536).decode()
    os.close(terminal)
    assert "prompts: 2" in shown and "line 2: the prompt is empty" in shown


def test_prompts_from_standard_input(work):
    lines = "".join(json.dumps({"prompt": p}) + "\n" for p in (FRENCH, PROMPT))
    result = run("--prompt-file", "-", "--verbose", cwd=work, input=lines)
    assert (result.returncode, result.stdout) == (0, f"quatre-vingts\n{ANSWER}\n")
    assert result.stderr.startswith("2 texts: ") and len(result.stderr.splitlines()) == 3


def test_json_has_the_fields_of_a_response(work):
    result = run("--prompt-file", "p.txt", "--json", "--num-draft", "3", cwd=work)
    objects = {o["index"]: o for o in map(json.loads, result.stdout.splitlines())}
    assert objects.keys() == {0, 2}
    first = objects[0]
    assert first["text"] == ANSWER and first["finish_reason"] == "stop"
    per_token = ("tokens", "texts", "from_draft", "origins")
    assert {len(first[field]) for field in per_token} == {first["generation_tokens"]}
    assert "".join(first["texts"]) == ANSWER
    stats = first["stats"]
    assert sum(stats["accepted_lengths"]) == stats["target_calls"]
    assert sum(n * c for n, c in enumerate(stats["accepted_lengths"])) == stats["accepted"]
    assert stats["drafting_seconds"] is None
    alone = json.loads(
        run("-p", PROMPT, "--json", "--verbose", "--num-draft", "3", cwd=work).stdout
    )
    assert 0 < alone["stats"]["drafting_seconds"] < alone["stats"]["seconds"]
    for field in ("index", "text", "tokens", "finish_reason"):
        assert alone[field] == first[field]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--prompt-file", "none.txt"], 1, "No such file or directory: 'none.txt'"),
        (["--prompt-file", "."], 1, "Is a directory"),
        (["--prompt-file", "p.txt", "-p", "x"], 2, "give a text with --prompt, or many with"),
        (["--prompt-file", "p.txt", "--batch-size", "0"], 1, "batch_size is 0, not a whole"),
    ],
)
def test_wrong_prompt_files_are_one_line(work, arguments, code, message):
    result = run(*arguments, cwd=work)
    assert (result.returncode, result.stdout) == (code, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("main.py: ") and message in line


ENDLESS = f"""
import sys, itertools
for i in itertools.count():
    print("{PROMPT}", flush=True)
"""


@pytest.mark.parametrize("output", [[], ["--json"]])
def test_interrupted_after_some_results(work, output):
    """Ctrl-C: what was finished has been written, one line says so, the exit code is 130."""
    source = subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE)
    command = [sys.executable, ROOT / "main.py", "--prompt-file", "-", *output]
    process = subprocess.Popen(
        command, cwd=work, stdin=source.stdout, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    lines = [process.stdout.readline() for _ in range(20)]
    process.send_signal(signal.SIGINT)
    lines += process.stdout.readlines()
    errors = process.stderr.read()
    source.kill()
    source.wait()
    assert process.wait(timeout=60) == 130
    assert errors == b"interrupted\n"
    if output:
        assert all(json.loads(line)["text"] == ANSWER for line in lines)
    else:
        assert {line.decode() for line in lines} <= {f"{ANSWER}\n", "\n"}


def test_a_reader_that_goes_away_ends_the_work(work):
    command = f"yes '{PROMPT}' | {sys.executable} {ROOT / 'main.py'} --prompt-file - | head -n 1"
    began = time.perf_counter()
    result = subprocess.run(command, shell=True, cwd=work, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == (f"{ANSWER}\n", "")
    assert time.perf_counter() - began < 60
