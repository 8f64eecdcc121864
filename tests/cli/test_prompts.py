"""Files of prompts: every kind of line, and output in the order of the lines."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest
from helpers.programs import ANSWER, PROMPT, ROOT, call

from apps.cli import cli, prompt_files
from apps.cli.display import Display
from apps.cli.prompt_files import FileTask, PromptFile, decode_file
from apps.cli.session import Session
from decoder import Options, SpeculativeDecoder, stream_generate
from model import T5
from speculative.common.files import Journal, hidden
from speculative.text.text_side import Prompt, PromptFormat

FRENCH = "translate number to French: 80"


def read(path: Path, content: bytes) -> tuple[list[tuple[int, str]], list[str]]:
    path.write_bytes(content)
    errors = []
    file = PromptFile(str(path), lambda line, reason: errors.append(f"{line}: {reason}"))
    prompts = [(file.line_numbers[i], prompt.content) for i, prompt in enumerate(file)]
    assert file.lines == len(prompts) + len(errors) and file.bad_lines == len(errors)
    return prompts, errors


def test_plain_lines(tmp_path):
    content = "{one}\r\n\n{not json\n \nzwölf".encode() + b"\n\xff\nlast"
    prompts, errors = read(tmp_path / "p.txt", content)
    assert prompts == [(0, "{one}"), (2, "{not json"), (4, "zwölf"), (6, "last")]
    assert errors == ["2: the prompt is empty", "4: the prompt is empty", "6: not UTF-8 text"]


@pytest.mark.parametrize("name", ["p.jsonl", "p.json", "p.txt"])
def test_json_lines(tmp_path, name):
    bad = {
        "plain": "not JSON: ",
        '{"text": "x"}': "not a JSON object with a field prompt",
        '{"prompt": ""}': "the prompt is empty",
        '{"prompt": 3}': "the prompt is int, not text, messages or token ids",
        "[1]": "not a JSON object with a field prompt",
        '{"prompt": "a\\ud800b"}': "the prompt is not valid Unicode text",
        "[" * 200_000: "not JSON: ",
        '{"prompt": "x", "id": ' + "9" * 6000 + "}": "not JSON: ",
    }
    lines = ['{"prompt": "one", "more": 1}', *bad, '{"prompt": "two\\nlines"}']
    prompts, errors = read(tmp_path / name, "\n".join(lines).encode())
    assert prompts == [(0, "one"), (len(bad) + 1, "two\nlines")]
    for line, (error, reason) in enumerate(zip(errors, bad.values(), strict=True), 2):
        assert error.startswith(f"{line}: {reason}")


def test_a_json_array_is_its_prompts(tmp_path):
    array = ["{one", {"prompt": [5, 6]}, {"text": "x"}]
    for content in (json.dumps(array), "\ufeff" + json.dumps(array, indent=1)):
        prompts, errors = read(tmp_path / "p.txt", content.encode())
        assert prompts == [(0, "{one"), (1, [5, 6])]
        assert errors == ["3: not a JSON object with a field prompt"]
    text = [(0, '["one"] is'), (1, '["two"]')]
    assert read(tmp_path / "p.txt", b'["one"] is\n["two"]') == (text, [])
    assert read(tmp_path / "p.txt", b'\n{"prompt": "one"}\n{"prompt":')[0] == [(1, "one")]


@pytest.mark.parametrize(
    ("name", "content"),
    [("p.txt", "one"), ("p.txt", '{"prompt": "one"}'), ("p.jsonl", ' {"prompt": "one"}')],
)
def test_a_byte_order_mark_is_no_text(tmp_path, name, content):
    # Windows writes one at the start of a file, and files may be put together.
    prompts_and_faults = read(tmp_path / name, f"{content}\r\n".encode("utf-8-sig") * 2)
    assert prompts_and_faults == ([(0, "one"), (1, "one")], [])


# ---------------------------------------------------------------------------------------------
# Lines that come


@pytest.fixture
def pipe(monkeypatch):
    """What writes to a pipe that is standard input."""
    output, source = os.pipe()
    with os.fdopen(output) as stdin, os.fdopen(source, "wb", buffering=0) as writer:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield writer


def test_a_pipe_is_ready_when_a_prompt_or_the_end_is_there(pipe):
    errors = []
    file = PromptFile("-", lambda line, reason: errors.append((line, reason)))
    assert not file.ready()
    pipe.write(b"one\ntw")
    assert file.ready() and file.ready() and next(file) == Prompt("one")
    assert not file.ready()  # half a line
    pipe.write(b"o\n")
    assert file.ready() and next(file) == Prompt("two")
    pipe.write(b" \n")
    assert not file.ready() and errors == [(3, "the prompt is empty")]
    pipe.write(b"\xff\nfour")
    pipe.close()
    assert file.ready() and list(file) == [Prompt("four")]
    assert file.ready() and list(file) == []
    assert file.lines == 5 and [file.line_numbers[i] for i in range(3)] == [0, 1, 4]


def test_a_regular_file_is_always_ready(tmp_path, monkeypatch):
    (tmp_path / "p.txt").write_text("\n" * 5000 + "one\n")
    errors = []
    file = PromptFile(str(tmp_path / "p.txt"), lambda *error: errors.append(error))
    assert file.ready() and not errors  # it looks only when it has to
    assert next(file) == Prompt("one") and file.ready() and list(file) == []
    with (tmp_path / "p.txt").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert PromptFile("-", lambda *error: None).ready()


# ---------------------------------------------------------------------------------------------
# The command


@pytest.fixture
def work(work) -> Path:
    (work / "p.txt").write_text(f"{PROMPT}\n\n{FRENCH}\n")
    return work


def test_a_prompt_file_is_answered_line_by_line(work):
    """A line break in the file's name breaks none of stderr's."""
    (work / "p.txt").rename(work / "a\np.txt")
    result = call("--prompt-file", "a\np.txt", "--batch-size", "2", cwd=work)
    assert result.stdout == f"{ANSWER}\n\nquatre-vingts\n"
    assert result.stderr.splitlines() == [
        "a p.txt, line 2: the prompt is empty",
        "main.py: a p.txt: 1 of 3 lines have no answer",
    ]
    assert result.returncode == 1


def test_a_line_that_no_model_can_read_stops_no_other(work):
    prompts = ([{"role": "system", "content": "x"}], [999_999], PROMPT)
    (work / "p.jsonl").write_text("".join(f"{json.dumps({'prompt': p})}\n" for p in prompts))
    result = call("--prompt-file", "p.jsonl", cwd=work)
    assert result.stdout == f"\n\n{ANSWER}\n" and "Traceback" not in result.stderr
    assert [line[: len("p.jsonl, line N")] for line in result.stderr.splitlines()[:2]] == [
        "p.jsonl, line 1",
        "p.jsonl, line 2",
    ]


def test_progress_is_shown_on_a_terminal_only(work):
    terminal, stderr = pty.openpty()
    fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, ROOT / "main.py", "--prompt-file", "p.txt"]
    result = subprocess.run(command, cwd=work, stdout=subprocess.PIPE, stderr=stderr)
    os.close(stderr)
    assert result.stdout.decode() == f"{ANSWER}\n\nquatre-vingts\n"
    shown = os.read(terminal, 65536).decode()
    os.close(terminal)
    assert "2/3" in shown and "line 2: the prompt is empty" in shown


def test_without_a_terminal_verbose_says_how_far_it_is(work, monkeypatch):
    for seconds, notes in ((10, []), (0, ["1/3", "2/3"])):
        monkeypatch.setattr(prompt_files, "NOTE_SECONDS", seconds)
        result = call("--prompt-file", "p.txt", "--verbose", cwd=work)
        assert [line for line in result.stderr.splitlines() if line[1:2] == "/"] == notes


def test_json_has_the_fields_of_a_response(work):
    result = call("--prompt-file", "p.txt", "--json", "--num-draft", "3", cwd=work)
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
    assert stats["preparing_seconds"] > 0
    alone = json.loads(
        call("-p", PROMPT, "--json", "--verbose", "--num-draft", "3", cwd=work).stdout
    )
    assert alone["stats"]["seconds"] > 0
    for field in ("index", "text", "tokens", "finish_reason"):
        assert alone[field] == first[field]


@pytest.mark.parametrize(
    ("output", "error", "told"),
    [
        ("text", KeyboardInterrupt(), ["interrupted"]),
        ("json", KeyboardInterrupt(), ["interrupted"]),
        ("text", BrokenPipeError(), []),
    ],
)
def test_after_an_error_texts_behind_the_first_gap_are_not_printed(
    demo_pair, tmp_path, capsys, error, told, output
):
    """Nor empty lines for what never came."""
    path = tmp_path / "p.txt"
    path.write_text("\n".join(["one", "", "three", "four", "five"]))
    response = next(stream_generate(*demo_pair[:2], PROMPT, max_tokens=1))

    decoder = SpeculativeDecoder(*demo_pair[:2])

    def stream(prompts, batch_size, **options):
        list(prompts)
        for index in (3, 1, 0):  # of lines 5, 3 and 1
            yield index, replace(response, text=f"text\n{index}")
        raise error

    decoder.stream_batch = stream
    task = FileTask(str(path))
    display = Display(as_json=output == "json")
    remembered = []
    session = Session(decoder, Options(), PromptFormat(), display, remembered.append)
    with pytest.raises(SystemExit):
        cli.run(lambda: decode_file(session, task))
    printed, errors = capsys.readouterr()
    assert [response.text for response in remembered] == ["text\n3", "text\n1", "text\n0"]
    if output == "json":
        assert [json.loads(line)["index"] for line in printed.splitlines()] == [0, 2]
    else:
        assert printed == "text 0\n\ntext 1\n"
    bad, *rest = errors.splitlines()
    assert bad == f"{path}, line 2: the prompt is empty" and rest == told


def test_a_prompt_too_large_for_the_memory_fails_alone(work, monkeypatch):
    """Those beside it are decoded again, one by one, and then those after it side by side."""
    begun, start = [], T5.start

    def limited(model, prompts):
        begun.append(len(prompts))
        if len(prompts) * max(map(len, prompts)) > 60:
            raise RuntimeError("[malloc] Unable to allocate 9 bytes")
        return start(model, prompts)

    monkeypatch.setattr(T5, "start", limited)
    lines = [PROMPT, PROMPT * 9, *[FRENCH] * 62, PROMPT, FRENCH]
    (work / "p.txt").write_text("\n".join(lines))
    result = call("--prompt-file", "p.txt", "--batch-size", "2", cwd=work)
    french = "quatre-vingts\n"
    assert result.stdout == f"{ANSWER}\n\n{french * 62}{ANSWER}\n{french}"
    assert result.stderr.splitlines() == [
        "p.txt, line 2: too large for the memory: [malloc] Unable to allocate 9 bytes",
        "main.py: p.txt: 1 of 66 lines have no answer",
    ]
    assert result.returncode == 1 and max(begun[1:]) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("one\n".encode("utf-16"), "not text in UTF-8; for documents, use translate.py"),
        (b"PK\3\4\0\n\xff\n\xff\n", "not text in UTF-8; for documents, use translate.py"),
    ],
)
def test_an_error_before_the_first_answer_is_one_line(content, message, work):
    (work / "p.txt").write_bytes(content)
    result = call("--prompt-file", "p.txt", cwd=work)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"main.py: p.txt: {message}\n"


@pytest.mark.slow
def test_standard_input_is_answered_as_lines_come(work):
    command = [sys.executable, ROOT / "main.py", "--prompt-file", "-"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=work, bufsize=0, **pipes) as process:
        watchdog = Timer(120, process.kill)
        watchdog.start()
        for prompt, answer, number in ((PROMPT, ANSWER, 2), (FRENCH, "quatre-vingts", 4)):
            process.stdin.write(f"{prompt}\n\n".encode())
            assert process.stdout.readline().decode() == f"{answer}\n"
            assert process.stdout.readline() == b"\n"
            fault = f"standard input, line {number}: the prompt is empty\n"
            assert process.stderr.readline().decode() == fault
        process.stdin.close()
        assert process.wait(timeout=60) == 1
        watchdog.cancel()


@pytest.fixture
def answered(demo_folders, tmp_path):
    """Answer a prompt file to out.txt, with these arguments besides."""
    prompts = [f"translate number to German: {n}" for n in (12, 345, 6, 7890)]
    prompts[2:2] = [""]  # without an output, but for an empty line
    (tmp_path / "p.txt").write_text("\n".join(prompts))
    given = ["--prompt-file", tmp_path / "p.txt", "-o", tmp_path / "out.txt", "-m", "12"]
    given += ["--memory", tmp_path / "memory.jsonl", "--memory-append"]
    return lambda *arguments: call(*given, *arguments, cwd=demo_folders)


@pytest.mark.parametrize(
    "form",
    [
        [],
        "--json --temp 1 --seed 3 --num-samples 2".split(),
        "--json --num-beams 3 --num-samples 2".split(),
    ],
)
def test_a_file_goes_on_where_it_was_interrupted(answered, tmp_path, monkeypatch, admitted, form):
    out, memory = tmp_path / "out.txt", tmp_path / "memory.jsonl"
    journal = hidden(out, "journal")

    def texts() -> list:
        lines = out.read_text().splitlines()
        if not form:
            return lines
        return [(r["index"], r["sample"], r["text"]) for r in map(json.loads, lines)]

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "remove", lambda self: None)
        first = answered(*form)
    assert first.returncode == 1 and first.stdout == f"{out}\n"
    assert "line 3: the prompt is empty" in first.stderr
    whole, pairs = texts(), memory.read_bytes()
    entries = journal.read_bytes().splitlines(keepends=True)
    for n in range(len(entries)):  # as a kill leaves it
        out.unlink()
        journal.write_bytes(b"".join(entries[:n]) + b'1234 "zw')
        admitted.clear()
        resumed = answered(*form)
        assert resumed.returncode == 1 and "line 3: the prompt is empty" in resumed.stderr
        assert (f"{out}: going on where it was interrupted" in resumed.stderr) == (n > 0)
        assert len(admitted) == len(entries) - n
        assert texts() == whole and memory.read_bytes() == pairs and not journal.exists()
    again = answered(*form)
    assert again.returncode == 1 and f"{out} already exists; --force replaces it" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["--json"], 4),
        (["--num-draft", "0"], 4),
        (["--lookup"], 4),
        (["--top-k", "3"], 4),  # has no effect
        (["prompt"], 3),
        (["--temp", "1", "--seed", "1"], 0),
        (["--min-tokens", "3"], 0),
        (["--model", "demo-draft"], 0),
        (["model"], 0),  # converted again
        (["Finder"], 4),
    ],
)
def test_an_interrupted_runs_rows_are_used_where_they_fit(
    answered, tmp_path, demo_folders, monkeypatch, admitted, arguments, kept
):
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "remove", lambda self: None)
        answered()
    model = demo_folders / "mlx_models/demo-target"
    for word in arguments:
        if word == "prompt":
            (tmp_path / "p.txt").write_text((tmp_path / "p.txt").read_text() + "1")
        if word == "model":
            (model / "weights.npz").touch()
        if word == "Finder":
            (model / ".DS_Store").write_text("")
    flags = [word for word in arguments if word not in ("prompt", "model", "Finder")]
    (tmp_path / "out.txt").unlink()
    admitted.clear()
    answered(*flags)
    assert len(admitted) == 4 - kept
    texts = (tmp_path / "out.txt").read_text()
    answered(*flags, "--force")
    if "--json" not in flags:
        assert (tmp_path / "out.txt").read_text() == texts


@pytest.mark.parametrize("has_journal", [False, True])
def test_an_output_that_is_there_is_left_alone(answered, tmp_path, monkeypatch, has_journal):
    with monkeypatch.context() as patch:
        if has_journal:
            patch.setattr(Journal, "remove", lambda self: None)
        answered()
    (tmp_path / "out.txt").write_text("my notes")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    refused = answered()
    assert refused.returncode == 1
    assert "out.txt already exists; --force replaces it" in refused.stderr
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert answered("--force").stdout == f"{tmp_path / 'out.txt'}\n"
    assert "my notes" not in (tmp_path / "out.txt").read_text()


@pytest.mark.slow
def test_the_prompts_of_a_pipe_are_not_those_of_an_interrupted_runs(demo_folders, tmp_path):
    out = tmp_path / "out.txt"
    many = "\n".join(f"translate number to German: {n}" for n in range(1000, 1100))
    command = [sys.executable, ROOT / "main.py", "--prompt-file", "/dev/stdin", "-o", out]
    with subprocess.Popen(command, cwd=demo_folders, stdin=subprocess.PIPE) as process:
        process.stdin.write(many.encode())
        process.stdin.close()
        while not (hidden(out, "journal").exists() and hidden(out, "journal").stat().st_size):
            time.sleep(0.01)
        process.kill()
    few = "\n".join(f"translate number to German: {n}" for n in (7, 1000, 11))
    ended = subprocess.run(command, cwd=demo_folders, input=few, text=True)
    assert ended.returncode == 0
    assert out.read_text() == "sieben\neintausend\nelf\n"
