"""The manual is true: its commands run, its flags exist, its Python works, its files are there.

Commands of main.py run on the embedded pair, whatever models they name; those of the other scripts, which would download, go on or take minutes, pass the real parsers.
"""

import argparse
import inspect
import json
import re
import shlex
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from helpers.pages import FENCE, blocks_in, read
from helpers.programs import ANSWER, PROMPT, ROOT, call, run

import benchmark
import convert
import distill
import main
import serve
import transcribe
import translate
from decoder import Batch, SpeculativeDecoder, Stats
from speculative.checkpoints.weights import Quantization
from speculative.models.encoder_decoder import EncoderDecoder
from speculative.step.cache import CrossCache
from speculative.step.draft import Draft, Plan
from speculative.step.options import Options
from speculative.step.processors import Prefixes
from speculative.step.row import Response, Row
from speculative.step.sampling import Sampler

PAGES = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
MANUAL = ("README.md", "CONTRIBUTING.md", "demo/README.md", *PAGES)
PARSERS = {
    f"{module.__name__}.py": module.parse_args
    for module in (main, translate, transcribe, distill, convert, serve, benchmark)
}
OPTIONS = {
    "convert.py": "docs/conversion.md",
    "benchmark.py": "docs/benchmarks.md",
    "transcribe.py": "docs/speech.md",
    "distill.py": "docs/distilling.md",
}
# Looked up there: what the table of memory has, and others
HUB = {"google/flan-t5-base", "tencent/Hy-MT2-7B"}
HUB |= json.loads((ROOT / "docs/tools/configs.json").read_text())["configs"].keys()
MADE = {"convert.py": "", "distill.py": "-draft"}  # ends of the names that these give
LOAD = re.compile(r'(?:load|Transcriber)\(((?:"[^"]+"(?:, )?)+)\)')  # by names
# What names in the text stand for
CLASSES = (Batch, CrossCache, Draft, EncoderDecoder, Plan, Prefixes, Response, Row, Sampler, Stats)
OBJECTS = {name: kind for kind in CLASSES for name in (kind.__name__, kind.__name__.lower())}
OBJECTS |= dict(decoder=SpeculativeDecoder, SpeculativeDecoder=SpeculativeDecoder, cache=CrossCache)
FOREIGN = {"--python", "--hostfile", "--backend"}  # flags of other programs that the manual names
CHANGING = {"--model", "--json", "--verbose", "--show-draft", "--help"}  # output not compared
CALL = re.compile(
    r"(?:python3?|mlx\.launch .*?|^) ?(?:\S*/)?((?:main|translate|transcribe|distill|convert|serve|benchmark)\.py)(?= |$)"
)


def spans(text: str) -> list[str]:
    """The code within the text's lines, `like this`."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCE.sub("", text))]


def commands(code: str) -> list[list[str]]:
    """The calls of our scripts in shell code: the script's name and its arguments."""
    calls = []
    for line in code.replace("\\\n", " ").splitlines():
        for start in CALL.finditer(line):
            lexer = shlex.shlex(line[start.end() :], posix=True, punctuation_chars="();<>|&")
            lexer.whitespace_split = True
            words = list(lexer)
            operators = [i for i, word in enumerate(words) if set(word) <= set("();<>|&")]
            calls.append([start[1], *words[: min(operators, default=None)]])
    return calls


def code_of(text: str) -> list[tuple[str, str]]:
    """A page's code in its order, and the language of each piece; that of `code in a line` is "span"."""
    found = re.finditer(rf"{FENCE.pattern}|`([^`]+)`", text, FENCE.flags)
    return [("span", " ".join(f[3].split())) if f[3] else (f[1], f[2]) for f in found]


def of_page(text: str) -> list[list[str]]:
    """All commands of a page; those in its lines have more than a script's name."""
    pieces = [(kind, commands(code)) for kind, code in code_of(text) if kind != "python"]
    return [c for kind, calls in pieces for c in calls if kind != "span" or len(c) > 1]


def help_of(script: str) -> str:
    return call("--help", cwd=ROOT, script=script).stdout


def flags_of(script: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", help_of(script)))


def check(script: str, arguments: list[str], capsys) -> argparse.Namespace:
    """The parsed arguments. AssertionError or InputError when the script would refuse them."""
    flags = {word.partition("=")[0] for word in arguments if re.match(r"--?[a-z]", word)}
    assert flags <= flags_of(script), f"{script} has no {flags - flags_of(script)}"
    try:
        args = PARSERS[script](arguments)
    except SystemExit as stopped:
        assert stopped.code == 0, capsys.readouterr().err
        return argparse.Namespace()
    if script in ("main.py", "translate.py", "serve.py"):
        Options(**{f.name: getattr(args, f.name) for f in fields(Options) if f.name in args})
    elif script == "convert.py" and args.quantize:
        Quantization(args.q_mode or "affine", args.q_bits or 0, args.q_group_size or 0)
    return args


def check_all(calls: list[list[str]], capsys) -> None:
    """As `check`, for commands in their order. AssertionError also for a model that is neither on the hub nor in a fresh
    clone, and that no earlier command has made."""
    known = set(HUB)
    for script, *arguments in calls:
        args = check(script, arguments, capsys)
        named = {getattr(args, flag, None) for flag in ("model", "draft_model")} - {None}
        unknown = {name for name in named - known if not (ROOT / name / "config.json").exists()}
        assert not unknown, f"{script}: where is {unknown}?"
        if script in MADE and named and "--dry-run" not in arguments:
            known.add(Path(args.model).name + MADE[script])


@pytest.fixture
def work(work, monkeypatch) -> Path:
    """Where calls in this process are at home."""
    monkeypatch.chdir(work)
    return work


def output_of(arguments: list[str], work: Path) -> str:
    """What main.py prints with the pair for models, without languages and templates, which it has not, and
    with a prompt file that is there."""
    for flag in ("--source-lang", "--from", "--target-lang", "--to", "--system-prompt"):
        if flag in arguments:
            i = arguments.index(flag)
            del arguments[i : i + 2]
    stand_in = {"--model": "demo-target", "--draft-model": "demo-draft"}
    for i, flag in enumerate(arguments[:-1]):
        arguments[i + 1] = stand_in.get(flag, arguments[i + 1])
        if flag in ("--prompt-file", "--draft-vocabulary") and arguments[i + 1] not in (
            "-",
            "auto",
        ):
            line = '{"prompt": "%s"}' if arguments[i + 1].endswith(".jsonl") else "%s"
            (work / arguments[i + 1]).write_text(line % PROMPT + "\n")
    if "-" in arguments:  # what reads stdin wants a real one
        result = run(*arguments, cwd=work, input=f"{PROMPT}\n")
    else:
        result = call(*arguments, cwd=work)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("name", MANUAL)
def test_every_command_is_one_that_the_program_takes_and_finds_its_models(name, capsys):
    models = [m for names in LOAD.findall(read(name)) for m in re.findall(r'"(.+?)"', names)]
    loads = [["convert.py", "--dry-run", "--model", model] for model in models]
    check_all(of_page(read(name)) + loads, capsys)


@pytest.mark.parametrize("name", MANUAL)
def test_every_command_of_main_runs_and_prints_what_the_manual_says(name, work):
    """What a block's commands print is the block that follows at once, if it has none itself."""
    text = read(name)
    fences = list(FENCE.finditer(text))
    for fence, after in zip(fences, [*fences[1:], None], strict=False):
        calls = [c for c in commands(fence[2]) if fence[1] != "python"]
        printed = [
            output_of(arguments, work)
            for script, *arguments in calls
            if script == "main.py" and "--chat" not in arguments  # nobody types
        ]
        assert all(text.strip() for text in printed)
        follows = after and not text[fence.end() : after.start()].strip()
        flags = {word for command in calls for word in command}
        if printed and follows and not commands(after[2]) and not flags & CHANGING:
            assert "".join(printed) == after[2]


def of_mlx_lm(program: str) -> set[str]:
    """The flags of an mlx-lm program."""
    lm = pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: requirements-apps.txt")
    source = Path(lm.__file__).with_name(f"{program}.py").read_text(encoding="utf-8")
    return set(re.findall(r'"(--[a-z][\w-]*)"', source))


@pytest.mark.parametrize(("program", "script"), [("generate", "main.py"), ("server", "serve.py")])
def test_every_flag_of_mlx_lms_is_here_or_in_its_table(program, script):
    _, rest = read("docs/from_mlx_lm.md").split(f"| `mlx_lm.{program}` | `{script}` |")
    named = set(re.findall(r"--[a-z][\w-]*", rest.partition("\n\n")[0]))
    assert "--kv-bits" in of_mlx_lm(program) <= flags_of(script) | named


@pytest.mark.parametrize("name", MANUAL)
def test_every_flag_in_the_text_is_a_programs(name):
    accepted = FOREIGN.union(*map(flags_of, PARSERS))
    if name == "docs/from_mlx_lm.md":
        accepted |= of_mlx_lm("generate") | of_mlx_lm("server")
    named = {f for span in spans(read(name)) for f in re.findall(r"(?<![\w-])--[a-z][\w-]*", span)}
    assert named <= accepted, f"{name}: no program has {named - accepted}"


@pytest.mark.parametrize("name", MANUAL)
def test_every_attribute_and_keyword_in_the_text_is_ours(name, demo_pair):
    """The Python of the pages runs; here is the rest."""
    text = read(name)
    if name.startswith("docs/from_"):
        text = re.sub(r"^\|[^|]*", "", text, flags=re.MULTILINE)  # the other program's
    code = "\n".join(code for kind, code in code_of(text) if kind != "python")
    objects = OBJECTS | dict(model=demo_pair[0], tokenizer=demo_pair[1])
    for root, path in re.findall(r"(?<![\w./])(\w+)((?:\.[a-z_]\w*)+)", code):
        owner = objects.get(root)
        for part in path[1:].split(".") if owner and path != ".py" else ():
            assert hasattr(owner, part) or part in owner.__annotations__, f"{root}{path}: {part}"
            owner = getattr(owner, part, None)
    if name in ("docs/python.md", "docs/from_mlx_lm.md", "docs/from_transformers.md"):
        ours = {*inspect.signature(SpeculativeDecoder).parameters, *Options.__annotations__}
        assert {*re.findall(r"^(\w+)=", code, re.MULTILINE)} <= ours


def test_the_table_of_a_response_has_its_fields():
    table = read("docs/python.md").partition("| field | |")[2].partition("\n\n")[0]
    named = {f for cell in re.findall(r"^\|(.*?)\|", table, re.MULTILINE) for f in spans(cell)}
    assert named == {name for name in dir(Response) if name[0] != "_"} | {*Response.__annotations__}


@pytest.mark.parametrize(("script", "page"), OPTIONS.items())
def test_every_flag_of_a_program_is_in_its_page(script, page):
    """Those of main.py and serve.py are written from their declaration."""
    assert flags_of(script) - {"--help", "-h"} <= set(re.findall(r"`(-[\w-]+)`", read(page)))


def test_main_alone_says_what_to_do_in_five_lines(work, capsys):
    result, printed = call(cwd=work), ""
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 5
    calls = commands(result.stderr.partition("\n")[2])
    check_all(calls, capsys)
    for script, *arguments in calls:
        printed += output_of(arguments, work) if script == "main.py" else ""
    assert printed.startswith(f"{ANSWER}\n")


@pytest.mark.parametrize("script", PARSERS)
def test_the_commands_in_a_scripts_first_lines_are_ones_that_it_takes(script, capsys):
    """There, what a command does may stand beside it, two spaces away."""
    doc = sys.modules[script.removesuffix(".py")].__doc__
    examples = commands("\n".join(line.strip().partition("  ")[0] for line in doc.splitlines()))
    assert examples
    check_all(examples, capsys)


@pytest.mark.parametrize("name", ["README.md", "docs/python.md"])
def test_python_in_the_manual_runs(name, work, monkeypatch):
    """A page's blocks in their order, as one program, with the embedded pair for the models they name."""
    monkeypatch.syspath_prepend(str(ROOT))
    blocks = blocks_in(name, "python")
    assert blocks
    models = re.findall(r'load\("(.+?)"\)', "".join(blocks))
    for i, model in enumerate(dict.fromkeys(models)):
        (work / model).parent.mkdir(exist_ok=True)
        (work / model).symlink_to(work / "mlx_models" / ("demo-draft" if i else "demo-target"))
    scope = {"prompt": PROMPT, "prompts": [PROMPT] * 2}
    (work / "demo").symlink_to(ROOT / "demo")
    for code in blocks:
        exec(compile(code, name, "exec"), scope)
        assert scope["text"] == ANSWER


def test_the_table_of_memory_is_what_its_script_prints():
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: requirements-apps.txt")
    from docs.tools.memory_table import table

    assert table() in read("docs/models.md")


def test_the_manual_explains_the_lines_of_the_step_in_their_order():
    section = read("docs/design.md").split("## The step")[1].split("##")[0]
    explained = re.findall(r"^- \*\*(\w+)\*\*:", section, re.MULTILINE)
    _, _, body = inspect.getsource(Batch.step).split('"""')
    places = [re.search(rf"\b{name}\b", body).start() for name in explained]
    assert len(explained) > 9 and places == sorted(places)


@pytest.mark.parametrize("name", MANUAL)
def test_every_file_in_the_text_is_there(name):
    near = (ROOT, (ROOT / name).parent)
    named = {s for s in spans(read(name)) if re.fullmatch(r"[\w./-]+\.(py|md)|[\w-]+/", s)}
    assert not {n for n in named - {"mlx_models/"} if not any((to / n).exists() for to in near)}


def test_the_readme_has_every_program_and_page():
    text = read("README.md")
    assert {command[0] for command in of_page(text)} == PARSERS.keys()
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
