"""The manual is true: its commands run, its flags exist, its Python works, its files are there.

Commands of main.py run on the embedded pair, whatever models they name; those of convert.py, serve.py and
benchmark.py, which would download, go on or take minutes, pass the real parsers.
"""

import ast
import inspect
import re
import shlex
import sys
import textwrap
from dataclasses import fields
from itertools import groupby
from pathlib import Path

import pytest
from helpers.pages import FENCE, blocks_in, read
from helpers.programs import ANSWER, PROMPT, ROOT

import benchmark
import convert
import main
import serve
from checkpoints.quantization import Quantization
from decoder import Batch
from speculative.options import MAX_TOKENS, Options

PAGES = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
MANUAL = ("README.md", "CONTRIBUTING.md", "demo/README.md", *PAGES)
OPTIONS = {
    "main.py": "using",
    "convert.py": "conversion",
    "serve.py": "serving",
    "benchmark.py": "benchmarks",
}
PARSERS = {
    "main.py": main.parse_args,
    "convert.py": convert.parse_args,
    "serve.py": serve.parse_args,
    "benchmark.py": benchmark.parse_args,
}
OPERATORS = set("();<>|&")  # of the shell
FOREIGN = {"--python", "--hostfile", "--backend"}  # flags of other programs that the manual names
CHANGING = {"--json", "--verbose", "--show-draft", "--help"}  # what they print is not compared


def spans(text: str) -> list[str]:
    """The code within the text's lines, `like this`."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCE.sub("", text))]


def commands(code: str) -> list[list[str]]:
    """The calls of our scripts in shell code: the script's name and its arguments."""
    found = []
    for line in code.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            assert not any(script in line for script in PARSERS), f"an open quote: {line}"
            continue  # the output of a command
        for is_operator, part in groupby(words, key=OPERATORS.issuperset):
            call = list(part)
            scripts = [i for i, word in enumerate(call) if Path(word).name in PARSERS]
            if not is_operator and scripts and _starts(call[: scripts[0]]):
                found.append([Path(call[scripts[0]]).name, *call[scripts[0] + 1 :]])
    return found


def _starts(before: list[str]) -> bool:
    """Whether what stands before a script's name starts it; `git add main.py` does not."""
    return not before or any(re.match(r"python|mlx\.launch", Path(word).name) for word in before)


def blocks(text: str) -> list[tuple[list[list[str]], str | None]]:
    """The commands of each fenced block, and the block that follows at once, if it has none: what
    they print."""
    fences = list(FENCE.finditer(text))
    found = []
    for i, fence in enumerate(fences):
        output = None
        if i + 1 < len(fences) and not text[fence.end() : fences[i + 1].start()].strip():
            output = fences[i + 1][2]
        if fence[1] != "python" and (of_block := commands(fence[2])):
            found.append((of_block, None if output and commands(output) else output))
    return found


def in_fences(text: str) -> list[list[str]]:
    return [command for of_block, _ in blocks(text) for command in of_block]


def in_lines(text: str) -> list[list[str]]:
    """Commands of the kind `benchmark.py rules`: more than a file's name."""
    return [c for span in spans(text) for c in commands(span) if len(c) > 1]


def options_of(script: str, capsys) -> tuple[set[str], str]:
    """The flags that a script's --help names, and all that it says."""
    with pytest.raises(SystemExit):
        PARSERS[script](["--help"])
    usage = capsys.readouterr().out
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", usage)), usage


def check(script: str, arguments: list[str], capsys) -> None:
    """AssertionError or InputError when the script would refuse the arguments."""
    known, _ = options_of(script, capsys)
    flags = [word.partition("=")[0] for word in arguments if re.match(r"--?[a-z]", word)]
    assert known.issuperset(flags), f"{script} has no {set(flags) - known}"
    try:
        args = PARSERS[script](arguments)
    except SystemExit as stopped:
        assert stopped.code == 0, capsys.readouterr().err
        return
    if script in ("main.py", "serve.py"):
        Options(**{f.name: getattr(args, f.name) for f in fields(Options) if f.name in args})
    elif script == "convert.py" and args.quantize:
        Quantization(args.q_mode or "affine", args.q_bits or 0, args.q_group_size or 0)


@pytest.fixture
def work(demo_folders, tmp_path, monkeypatch) -> Path:
    """An empty folder with the embedded pair, where calls in this process are at home."""
    (tmp_path / "mlx_models").mkdir()
    for role in ("target", "draft"):
        converted = demo_folders / "mlx_models" / f"demo-{role}"
        (converted / "weights.npz").touch()  # newer than the embedded model
        (tmp_path / "mlx_models" / f"demo-{role}").symlink_to(converted)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def on_the_embedded_pair(arguments: list[str], work: Path) -> list[str]:
    """The arguments with the pair for models, without languages and templates, which it has not, and with
    a prompt file that is there."""
    arguments = [part for word in arguments for part in _split(word)]
    for flag in ("--source-lang", "--target-lang", "--system-prompt"):
        if flag in arguments:
            i = arguments.index(flag)
            del arguments[i : i + 2]
    stand_in = {"--model": "demo-target", "--draft-model": "demo-draft"}
    for i, flag in enumerate(arguments[:-1]):
        if flag in stand_in:
            arguments[i + 1] = stand_in[flag]
        elif flag == "--prompt-file" and arguments[i + 1] != "-":
            line = '{"prompt": "%s"}' if arguments[i + 1].endswith(".jsonl") else "%s"
            (work / arguments[i + 1]).write_text(line % PROMPT + "\n")
    return arguments


def _split(word: str) -> list[str]:
    return word.split("=", 1) if re.match(r"--[a-z-]+=", word) else [word]


def output_of(arguments: list[str], work: Path, monkeypatch, capsys) -> str:
    monkeypatch.setattr(sys, "argv", ["main.py", *on_the_embedded_pair(arguments, work)])
    (work / "stdin").write_text(f"{PROMPT}\n")
    monkeypatch.setattr(sys, "stdin", (work / "stdin").open())
    capsys.readouterr()
    try:
        main.main()
    except SystemExit as stopped:
        assert stopped.code == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize("name", MANUAL)
def test_every_command_is_one_that_the_program_takes(name, capsys):
    for command in in_fences(read(name)) + in_lines(read(name)):
        check(command[0], command[1:], capsys)


def test_the_manual_shows_how_to_use_each_program():
    assert {command[0] for command in in_fences(read("README.md"))} >= {"main.py", "convert.py"}
    assert "benchmark.py" in {
        c[0] for c in in_fences(read("README.md")) + in_lines(read("README.md"))
    }


@pytest.mark.parametrize("name", MANUAL)
def test_every_command_of_main_runs_and_prints_what_the_manual_says(
    name, work, monkeypatch, capsys
):
    for of_block, output in blocks(read(name)):
        printed = [
            output_of(arguments, work, monkeypatch, capsys)
            for script, *arguments in of_block
            if script == "main.py"
        ]
        assert all(text.strip() for text in printed)
        flags = {word for command in of_block for word in command}
        if output and printed and not flags & {"--model", *CHANGING}:
            assert "".join(printed) == output


@pytest.mark.parametrize("name", MANUAL)
def test_every_flag_in_the_text_is_a_programs(name, capsys):
    known = set().union(*(options_of(script, capsys)[0] for script in PARSERS)) | FOREIGN
    named = {
        flag for span in spans(read(name)) for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", span)
    }
    assert named <= known, f"{name}: no program has {named - known}"


@pytest.mark.parametrize(("script", "page"), OPTIONS.items())
def test_every_flag_of_a_program_is_in_its_page(script, page, capsys):
    pages = (
        {page, "using"} if script == "serve.py" else {page}
    )  # it has the other's options as well
    text = "".join(read(f"docs/{name}.md") for name in pages)
    named = set(re.findall(r"`(-[\w-]+)`", text))
    assert options_of(script, capsys)[0] - {"--help", "-h"} <= named


def test_the_defaults_in_the_manual_are_those_of_decoding():
    rows = re.findall(r"^\| `--([\w-]+)`.*\| *([^|]*?) *\|$", read("docs/using.md"), re.MULTILINE)
    found = {flag.replace("-", "_"): default for flag, default in rows}
    defaults = {f.name: f.default for f in fields(Options) if f.name != "processors"}
    defaults = {k: "the checkpoint's" if v is None else v for k, v in defaults.items()}
    defaults |= dict.fromkeys(("stop", "logprobs", "logit_bias"), "none")
    defaults |= {"max_tokens": f"the checkpoint's, or {MAX_TOKENS}"}
    defaults |= {"repetition_context_size": "all"}
    defaults |= {"lookup": "with `--draft-model` and `auto`"}
    defaults |= {"acceptance": "coupled, or token with `--delta`"}
    defaults |= {"batch_size": main.BATCH_SIZE}
    defaults |= {"source_lang": "the tokenizer's", "target_lang": "the model's"}
    assert {name: found[name] for name in defaults} == {k: str(v) for k, v in defaults.items()}


def test_main_alone_says_what_to_do_in_five_lines(work, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["main.py"])
    with pytest.raises(SystemExit, match="2"):
        main.main()
    said, lines = "", capsys.readouterr().err.splitlines()
    assert len(lines) == 5
    for line in lines:
        for script, *arguments in commands(line) if line.startswith("  ") else ():
            check(script, arguments, capsys)
            if script == "main.py":
                said += output_of(arguments, work, monkeypatch, capsys)
    assert said.startswith(f"{ANSWER}\n")


@pytest.mark.parametrize("script", PARSERS)
def test_the_commands_in_a_scripts_first_lines_are_ones_that_it_takes(script, capsys):
    """There, what a command does may stand beside it, two spaces away."""
    first = sys.modules[script.removesuffix(".py")].__doc__
    lines = [line.strip().partition("  ")[0] for line in first.splitlines()]
    found = [c for line in lines if line.startswith("python ") for c in commands(line)]
    assert found
    for command in found:
        check(command[0], command[1:], capsys)


@pytest.mark.parametrize("name", ["README.md", "docs/python.md"])
def test_python_in_the_manual_runs(name, work, monkeypatch):
    """A page's blocks in their order, as one program, with the embedded pair for the models they name."""
    monkeypatch.syspath_prepend(str(ROOT))
    found = blocks_in(name, "python")
    assert found
    models = dict.fromkeys(re.findall(r"mlx_models/([\w.-]+)", "".join(found)))
    for i, model in enumerate(models):
        of_pair = work / "mlx_models" / ("demo-draft" if i else "demo-target")
        if not (work / "mlx_models" / model).exists():
            (work / "mlx_models" / model).symlink_to(of_pair)
    known = {"prompt": PROMPT, "prompts": [PROMPT] * 2}
    for code in found:
        exec(compile(code, name, "exec"), known)
        assert known["text"] == ANSWER


def test_the_step_in_the_manual_is_the_step():
    (shown,) = blocks_in("docs/design.md", "python")
    _, _, body = inspect.getsource(Batch.step).split('"""')
    assert shown == textwrap.dedent(body.removeprefix("\n"))


def parts() -> dict[str, list[Path]]:
    """The modules of each part of the project: one of the root, or those of a folder."""
    found = {path.name: [path] for path in sorted(ROOT.glob("*.py"))}
    for path in sorted(ROOT.glob("*/__init__.py")):
        found[f"{path.parent.name}/"] = sorted(path.parent.glob("*.py"))
    return found


@pytest.mark.parametrize("name", MANUAL)
def test_every_file_in_the_text_is_there(name):
    near = (ROOT, (ROOT / name).parent)
    named = {s for s in spans(read(name)) if re.fullmatch(r"[\w./-]+\.(py|md)|[\w-]+/", s)}
    assert not {n for n in named - {"mlx_models/"} if not any((to / n).exists() for to in near)}


def test_every_part_is_in_the_readme_and_every_page_is_linked_there():
    text = read("README.md")
    assert parts().keys() <= set(spans(text))
    assert set(PAGES) <= set(re.findall(r"\]\(([^)#]+)\)", text))


@pytest.mark.parametrize("name", MANUAL)
def test_every_link_leads_somewhere(name):
    for target in re.findall(r"\]\(([^)]+)\)", read(name)):
        page, _, heading = target.partition("#")
        if not page.startswith("https://"):
            path = (ROOT / name).parent / page if page else ROOT / name
            assert path.exists(), target
            titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert not heading or heading in {t.lower().replace(" ", "-") for t in titles}, target


def test_imports_run_the_way_that_the_manual_says():
    (chain,) = re.findall(r"^`errors\.py`, .*(?:\n.+)*", read("CONTRIBUTING.md"), re.MULTILINE)
    floors = [spans(floor) for floor in chain.split("<-")]
    level = {part: i for i, floor in enumerate(floors) for part in floor}
    assert level.keys() == parts().keys()
    by_name = {re.sub(r"\.py$|/$", "", part): part for part in level}
    for part, modules in parts().items():
        for module in modules:
            for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom):
                    names = [node.module or ""]
                for other in {by_name.get(n.partition(".")[0], part) for n in names} - {part}:
                    assert level[other] < level[part], f"{module} imports {other}"


@pytest.mark.parametrize(
    "wrong",
    [
        "```\npython main.py --propmt x\n```",
        "```\npython main.py --promp x\n```",  # argparse would take it for --prompt
        "```\n$ A=1 .venv/bin/python main.py --prompt x \\\n  --num-draft five\n```",
        "```\npip install x && python main.py -p x --temp -1\n```",
        "```\npython main.py -p x --prompt-file y\n```",
        "```sh\npython convert.py --model x --q-bits 4\n```",
        "```\npython convert.py --model x -q --q-bits 7\n```",
        "```\npython convert.py --model x -q --q-mode mxfp4 --q-bits 2\n```",
        "```\npython convert.py google/flan-t5-xl\n```",
        "see `benchmark.py nothing`",
        "see `python benchmark.py\nlengths --size t5-base`",
    ],
)
def test_a_wrong_command_is_seen(wrong, capsys):
    (command,) = in_fences(wrong) + in_lines(wrong)
    with pytest.raises((AssertionError, main.InputError)):
        check(command[0], command[1:], capsys)


def test_commands_are_found_wherever_they_stand():
    text = """
```
VAR=x python3 main.py --prompt "a | b" | head -n 1
mlx.launch -n 2 main.py -p 'it''s' > out.txt && .venv/bin/python ./convert.py --model y
git add main.py  # no call
```

```
it's output
```
"""
    assert blocks(text) == [
        (
            [
                ["main.py", "--prompt", "a | b"],
                ["main.py", "-p", "its"],
                ["convert.py", "--model", "y"],
            ],
            "it's output\n",
        )
    ]
    with pytest.raises(AssertionError, match="an open quote"):
        blocks("```\npython main.py -p 'x\n```")
