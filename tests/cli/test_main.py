"""The command line as a user meets it: text on stdout, all else on stderr, mistakes in one line."""

import ast
import json
import os
import platform
import re
import subprocess
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path

import pytest
from helpers.programs import ANSWER, PROMPT, ROOT, call, run

from apps.cli import cli, flags
from decoder import load
from speculative.common.errors import InputError
from speculative.models.loading import find

SCRIPTS = ("main", "convert", "translate", "transcribe", "distill", "serve", "benchmark")


@pytest.fixture
def folder(work) -> Path:
    """With a checkpoint, too."""
    (work / "m.tsv").write_text("a\tb\n")
    (work / "checkpoint").symlink_to(ROOT / "demo" / "draft")
    (work / "p.txt").write_text(f"{PROMPT}\ntranslate number to German: 5\n{PROMPT}\n")
    return work


@pytest.mark.slow
def test_embedded_pair_is_converted_on_first_use(tmp_path):
    first = run("--prompt", PROMPT, cwd=tmp_path)
    assert (first.returncode, first.stdout) == (0, f"{ANSWER}\n")
    assert first.stderr.splitlines() == [
        "converting the demo target model to mlx_models/demo-target",
        "converting the demo draft model to mlx_models/demo-draft",
    ]
    second = call("-p", PROMPT, cwd=tmp_path)
    assert (second.stdout, second.stderr) == (f"{ANSWER}\n", "")
    # Another embedded model replaces what an older one was converted to.
    config = tmp_path / "mlx_models" / "demo-draft" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"converted_state": {}}))
    third = call("-p", PROMPT, cwd=tmp_path)
    assert third.stdout == f"{ANSWER}\n"
    assert third.stderr == "converting the demo draft model to mlx_models/demo-draft\n"


def test_prompt_from_standard_input(folder):
    assert run("-p", "-", cwd=folder, input=PROMPT + "\n").stdout == f"{ANSWER}\n"


def test_another_token_may_end_the_text(folder):
    assert call("-p", PROMPT, "--extra-eos-token", "a", cwd=folder).stdout == f"{ANSWER[:-7]}\n"


def test_texts_that_max_tokens_cuts_are_told(folder):
    result = call("-p", PROMPT, "-m", "4", "--json", cwd=folder)
    text = json.loads(result.stdout)["text"]
    assert text and text != ANSWER and ANSWER.startswith(text)
    assert result.returncode == 0
    assert result.stderr == "1 of 1 outputs cut short after at most 4 tokens; see --max-tokens\n"
    result = call("--prompt-file", "p.txt", "-m", "4", cwd=folder)
    assert result.returncode == 0
    assert result.stderr == "2 of 3 outputs cut short after at most 4 tokens; see --max-tokens\n"


BEAMS = ("length-penalty", "early-stopping")


@pytest.mark.parametrize(
    ("arguments", "notes"),
    [
        (["--batch-size", "8"], ["--batch-size has no effect without --prompt-file"]),
        (["--force"], ["--force has no effect without --output"]),
        (
            ["--seed", "0", "--top-k", "0"],
            [f"--{flag} has no effect at temperature 0; see --temp" for flag in ("top-k", "seed")],
        ),
        (
            ["--top-k", "3", "--top-p", "0.5", "--min-p", "0.1", "--acceptance", "block"],
            [
                f"--{flag} has no effect at temperature 0; see --temp"
                for flag in ("top-k", "top-p", "min-p", "acceptance")
            ],
        ),
        (["--temp", "1e-6", "--top-k", "1", "--seed", "0"], []),
        (["--delta", "0.0"], []),
        (
            ["--length-penalty", "-0.5", "--early-stopping"],
            [f"--{flag} has no effect without --num-beams" for flag in BEAMS],
        ),
        (
            ["--num-beams", "2", "--length-penalty", "-0.5", "--num-draft", "3", "--lookup"],
            [
                f"--{flag} has no effect with --num-beams, which does not draft"
                for flag in ("num-draft", "lookup")
            ],
        ),
        (
            ["--num-draft", "0", *"--no-lookup --delta 0.5 --reference x --memory m.tsv".split()],
            [
                f"--{flag} has no effect with --num-draft 0"
                for flag in ("lookup", "delta", "reference", "memory")
            ],
        ),
        (["--num-draft", "0", "--memory", "m.jsonl", "--memory-append"], []),
        (
            ["--model", "demo-target", "--num-draft", "5"],
            ["--num-draft has no effect without a draft model, --lookup or a reference"],
        ),
        (["--model", "demo-target", "--num-draft", "5", "--memory", "m.tsv"], []),
    ],
)
def test_a_flag_without_effect_is_told(folder, arguments, notes):
    result = call("-p", PROMPT, *arguments, cwd=folder)
    assert (result.returncode, result.stdout) == (0, f"{ANSWER}\n")
    assert result.stderr.splitlines() == notes


def test_verbose_ends_with_a_summary(folder):
    result = call("-p", PROMPT, "--verbose", "--num-draft", "4", cwd=folder)
    assert result.stdout == f"{ANSWER}\n"
    rates, draft, split = result.stderr.splitlines()
    assert re.fullmatch(
        r"1 output: 17 prompt tokens, 10 tokens in [\d.]+ s, [\d.]+ tokens/s, "
        r"2\.50 tokens per target call",
        rates,
    )
    assert draft == ("draft: 7 of 16 tokens accepted (44%), steps by tokens accepted: 0 |███ █| 4")
    percents = [int(n) for n in re.findall(r"(\d+)%", split)]
    assert len(percents) == 4 and 98 <= sum(percents) <= 102
    assert re.sub(r" \d+%", "", split).startswith(
        "time: prompt processing, the draft model's, decoding, elsewhere; peak memory "
    )
    plain = call("-p", PROMPT, "--verbose", "--num-draft", "0", cwd=folder).stderr
    assert "1.00 tokens per target call" in plain and "draft:" not in plain


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--lookup"], 2, "give one of --prompt, --prompt-file and --chat"),
        (["--chat", "--json"], 2, "--chat goes with neither --json nor --memory-append"),
        (["-p", "x", "--prefix-cache", "a"], 2, "invalid gigabytes value: 'a'"),
        (["-p", "x", "--num-draft", "two"], 1, "num_draft is 'two', not a whole number from 0 to"),
        (
            ["-p", "x", "--logit-bias", '{"5":' * 3000],
            2,
            "is not an object in JSON with token ids as keys (",
        ),
        (["-p", "x", "--extra-eos-token", "a b"], 1, "'a b' is not a token of this model"),
        (["-p", "x", "--chat-template-config", "[1]"], 2, "'[1]' is not an object in JSON ("),
        (["translate this"], 2, "translate this (put the prompt after --prompt)"),
        (["-p", "x", "--traget-lang", "de"], 2, "--traget-lang de (did you mean --target-lang?)"),
        (["-p", "x", "--model", "mlx_models"], 1, "mlx_models"),
        (
            ["-p", "x", "--model", "demo-target", "--draft-model", "t5-tiny"],
            1,
            "no model 't5-tiny' here (a name on the hub has an owner: google/flan-t5-base)",
        ),
        (["-p", "x", "--max-tokens", "9" * 5000], 1, "99999999999999999999, not a whole"),
        (["-p", "x", "a\nb\u2028c"], 2, "unrecognized arguments: a b c ("),
        (["--prompt-file", "."], 1, "Is a directory"),
        (
            ["-p", "x", "--reference", f"@{ROOT}/demo/target/spiece.model"],
            2,
            "model is not text in UTF-8",
        ),
        (["--adapter-path", "a", "--adapter-path", "b"], 2, "--adapter-path: given twice"),
        (["-p", "x", "--regex", "a\nb"], 1, "no text in the model's vocabulary fits it"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(folder, arguments, code, message):
    result = call(*arguments, cwd=folder)
    assert result.returncode == code
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("main.py: ") and message in line


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            dict(version_info=(3, 9, 6), version="3.9.6 (default)"),
            "this is Python 3.9.6; version 3.11",
        ),
        (
            dict(platform="darwin"),
            "an Intel Python: MLX needs Apple silicon and an arm64 Python",
        ),
        (dict(modules=sys.modules | {"mlx": None}), "no package mlx; activate the environment"),
    ],
)
def test_a_wrong_python_is_told_before_it_reads_what_it_cannot(monkeypatch, changed, told):
    first = (ROOT / "apps" / "cli" / "__init__.py").read_text()
    library = ROOT / "speculative"
    before = [ROOT / "apps" / "__init__.py", library / "__init__.py"]
    before += [library / "common" / f"{name}.py" for name in ("__init__", "blas", "own_modules")]
    sources = [first, *(path.read_text() for path in before)]
    for script in SCRIPTS:
        text = (ROOT / f"{script}.py").read_text()
        imported = re.findall(r"(?m)^(?:from|import) (\w+)(\S*)", text)
        assert next(x for x in imported if x[0] not in sys.stdlib_module_names) == ("apps", ".cli")
        for source in (text, *sources):
            ast.parse(source, feature_version=(3, 9))
    for name, value in changed.items():
        monkeypatch.setattr(sys, name, value)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with pytest.raises(SystemExit, match=told):
        exec(first)


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_interrupt_while_a_command_imports_is_one_line(script, tmp_path):
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    ended = run("--help", cwd=tmp_path, script=f"{script}.py", env=environment)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")


def test_standard_input_that_is_no_text(folder):
    command = [sys.executable, ROOT / "main.py", "-p", "-"]
    result = subprocess.run(command, cwd=folder, input=b"\xff\xfe", capture_output=True)
    assert result.returncode == 1
    assert result.stderr == b"main.py: standard input is not UTF-8 text\n"


def test_a_reader_that_leaves_is_no_traceback(folder):
    command = f"PYTHONUNBUFFERED= {sys.executable} {ROOT / 'main.py'} -p x --json | true"
    result = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_text_that_the_encoding_lacks_is_one_line(folder):
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    prompt = "translate English to German: The old king sees two red doors."
    result = run("-p", prompt, cwd=folder, env=environment)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("main.py: the output's encoding: 'ascii' codec can't encode")
    assert line.endswith("; set PYTHONIOENCODING=utf-8")


@pytest.mark.parametrize(
    ("error", "raised", "told"),
    [
        (
            MemoryError("Unable to allocate 27 GiB"),
            SystemExit,
            "main.py: out of memory, or the GPU failed; try shorter",
        ),
        (RuntimeError("[malloc] Unable to allocate"), SystemExit, "main.py: out of memory, or"),
        (
            RuntimeError("[METAL] Command buffer execution failed: x"),
            SystemExit,
            "main.py: out of memory",
        ),
        (RuntimeError("something else"), RuntimeError, ""),
    ],
)
def test_too_little_memory_is_one_line_and_an_error_of_ours_a_traceback(
    monkeypatch, capsys, error, raised, told
):
    def fails():
        raise error

    monkeypatch.setattr(sys, "argv", ["main.py"])
    with pytest.raises(raised) as stopped:
        cli.run(fails)
    assert getattr(stopped.value, "code", 1) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(told) and bool(errors) == bool(told)


def test_a_path_in_an_error_is_as_the_user_wrote_it():
    """Not PosixPath('no/such')."""
    with pytest.raises(InputError, match=r"^no model 'tests/no/such'"):
        load(Path("tests/no/such"))


def test_a_name_on_the_hub_means_its_own_conversion(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("mlx_models", "thing")
    folder.mkdir(parents=True)
    (folder / "weights.npz").touch()
    (folder / "config.json").write_text('{"converted_from": "owner/thing"}')
    assert find("owner/thing") == find("thing") == find(str(folder)) == folder
    there = "converted from owner/thing, not from other/thing; to convert that: python convert.py"
    with pytest.raises(
        InputError, match=f"{there} --model other/thing --mlx-path mlx_models/other-thing"
    ):
        find("other/thing")


@pytest.mark.parametrize(
    ("script", "arguments", "unneeded", "printed"),
    [
        (
            "main",
            ["-p", PROMPT],
            ["torch", "transformers", "sentencepiece", "huggingface_hub", "apps.distillation"],
            ANSWER,
        ),
        ("convert", ["--model", "checkpoint", "--mlx-path", "made"], ["torch"], "made"),
    ],
)
def test_what_a_program_does_not_need_it_does_not_import(
    folder, script, arguments, unneeded, printed
):
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r});"
        f"sys.argv[0] = '{script}.py'; import {script}; {script}.main();"
        f"assert not set({unneeded}) & sys.modules.keys()"
    )
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, f"{printed}\n"), result.stderr


def test_a_text_that_fails_its_form_is_an_exit_code(folder):
    result = call("-p", "x", "--grammar", 'start: "a" ("b" | "c\\n") "\\n"', cwd=folder)
    assert result.returncode == 1 and "could not keep to their form" in result.stderr


@pytest.mark.parametrize("script", ["main", "translate", "transcribe", "distill"])
def test_no_file_that_a_command_reads_is_written(script, monkeypatch):
    parsers: list[cli.Parser] = []
    monkeypatch.setattr(cli.Parser, "parse_known_args", lambda self, *_: parsers.append(self))
    with pytest.raises((TypeError, AttributeError)):
        import_module(script).parse_args(["x"])
    files = [action for action in parsers[0]._actions if action.metavar == "FILE"]
    assert files
    for action in files:
        if action.dest not in ("output", "report"):
            name = action.type("x") if action.type else "x"
            given = Namespace(**{action.dest: [name] if action.nargs else name})
            with pytest.raises(InputError, match="and --output would both be x"):
                flags.check_apart(given, [("--output", Path("x"))])


@pytest.mark.parametrize("names", [("A.txt", "a.txt"), ("\u00e9.txt", "e\u0301.txt")])
def test_on_a_mac_names_of_one_file_differ_in_case_and_accents(names, monkeypatch):
    written = [(f"{i}.txt", Path("out") / name) for i, name in enumerate(names)]
    flags.check_apart(Namespace(), written)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InputError, match="would both be"):
        flags.check_apart(Namespace(), written)
