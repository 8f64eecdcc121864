"""A target split among ranks: real processes, started by mlx.launch on this machine. What they write
is what one process writes, and what goes wrong on one of them ends all."""

import os
import re
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest
import torch
from helpers import bart_checkpoints
from helpers import t5gemma2_checkpoints as t5gemma2
from helpers import t5gemma_checkpoints as t5gemma
from helpers.bart_models import LIVELY
from helpers.checkpoints import SMALL, UNSCALED, save, state_dict, torch_model
from helpers.programs import ANSWER, PROMPT, ROOT
from helpers.rank_program import decode
from helpers.ranks import LIMIT, by_hand, ends, launch, launched, run_jobs

import main
from docs.tools import imports
from speculative.checkpoints.tensors import map_npz
from speculative.checkpoints.weights import Quantization
from speculative.common.errors import InputError
from speculative.models.conversion import convert
from speculative.models.ranks import Ranks, session

pytestmark = pytest.mark.slow

# The head is not the embedding: with random weights that repeats its input for ever.
RAW = SMALL | dict(
    vocab_size=384, tokenizer_class="ByT5Tokenizer", d_kv=8, tie_word_embeddings=False
)
EIGHT = RAW | dict(model_type="t5", num_heads=8)
SIXTEEN = RAW | dict(model_type="umt5", feed_forward_proj="gated-gelu", num_heads=16)
WIDE = SIXTEEN | dict(d_model=32, d_ff=128)  # 128 inputs: a group of 32 for each of 4 ranks
MODELS = {  # how each is made and converted
    "8": (EIGHT, {}),
    "12": (RAW | UNSCALED | dict(model_type="t5", num_heads=12, num_decoder_layers=3), {}),
    "16": (SIXTEEN, {}),
    "affine": (WIDE, dict(quantization=Quantization("affine", 4, 32))),
    "mxfp8": (WIDE, dict(quantization=Quantization("mxfp8"))),
    "float16": (EIGHT, dict(dtype="float16")),
    "bfloat16": (EIGHT, dict(dtype="bfloat16")),
}
# How far logits, of up to 20, may be from those of one process; of the others 1e-4.
TOLERANCE = {"affine": 1e-3, "mxfp8": 1e-3, "float16": 0.05, "bfloat16": 0.4}


def convert_pair(
    folder: Path, raw: dict, state=None, files: Iterable[Path] = (), **options
) -> None:
    """A random target, and a draft model that often agrees with it; `files` are the tokenizer's."""
    state = state or state_dict(torch_model(raw), raw)
    noisy = {name: x + 0.05 * x.std() * torch.randn_like(x) for name, x in state.items()}
    for role, weights, more in (("target", state, options), ("draft", noisy, {})):
        source = save(folder / f"{role}-source", raw, weights)
        for file in files:
            shutil.copy(file, source)
        convert(str(source), folder / role, **dict(dtype="float32") | more)


def convert_others(folder: Path, bart_tokenizer: Path) -> None:
    """Pairs of other families, whose stacks have heads and units of their own, and biases."""
    files = [file for file in bart_tokenizer.iterdir() if file.name != "config.json"]
    raw = bart_checkpoints.VARIANTS["bart"] | dict(vocab_size=720, max_position_embeddings=200)
    reference = bart_checkpoints.torch_model(raw, seed=2)  # whose texts vary
    state = bart_checkpoints.state_dict(reference)
    for name in state:
        for end, change in LIVELY.items():
            state[name] = change(state[name]) if name.endswith(end) else state[name]
    convert_pair(folder / "bart", raw, state, files)
    t5gemma.save_tokenizer(folder / "gemma")
    files = list((folder / "gemma").iterdir())
    for name, made in (("t5gemma", t5gemma), ("t5gemma2", t5gemma2)):
        raw = made.raw_config(vocab_size=704, max_position_embeddings=200)
        state = t5gemma.state_dict(t5gemma.torch_model(raw))
        convert_pair(folder / name, raw, state, files)


@pytest.fixture(scope="module")
def models(tmp_path_factory, bart_folders) -> Path:
    folder = tmp_path_factory.mktemp("models")
    convert_others(folder, bart_folders["bart"][0])
    for name, (raw, options) in MODELS.items():
        convert_pair(folder / name, raw, **options)
    return folder


def split_bytes(folder: Path, ranks: int) -> float:
    """What a rank should hold: its share of all but norms, tables, head, and what is added to sums."""
    size = 0.0
    for name, array in map_npz(folder / "target" / "weights.npz").items():
        is_summed = array.dtype == np.float16 and ".out." in name  # in float32 then
        is_whole = re.search(r"norm|embed|position|^head|^logits_bias|(out|down)\.bias$", name)
        size += array.nbytes * (2 if is_summed else 1) / (1 if is_whole else ranks)
    return size


# What ranks do in each way, they do for any model; models differ in how they are split.
WAYS = {
    2: {"8": ["plain", "draft", "block"], "bart": ["draft"]}
    | {name: [] for name in ("t5gemma", "t5gemma2", "12", "16", *TOLERANCE)},
    4: {"affine": ["short"]},
}
DECIDED = ["auto", "coupled", "fresh", "beams"]


def job(models: Path, name: str, ways: list[str], **options) -> dict:
    return dict(folder=str(models / name), ways=ways, **options)


@pytest.fixture(scope="module")
def results(models, tmp_path_factory) -> dict[int, list]:
    """What ranks find, by their number: of each of WAYS, and where rank 1 is another kind of machine."""
    jobs = {n: [job(models, *each) for each in ways.items()] for n, ways in WAYS.items()}
    jobs[2].append(job(models, "8", DECIDED, tampered=True))
    return {n: run_jobs(n, of_n, tmp_path_factory.mktemp("ranks")) for n, of_n in jobs.items()}


@pytest.mark.parametrize("ranks", WAYS)
def test_ranks_write_what_one_process_writes(models, results, ranks):
    for (name, wanted), by_rank in zip(WAYS[ranks].items(), results[ranks], strict=False):
        alone = decode(**job(models, name, wanted))
        for of_rank in by_rank:
            logits = np.array(of_rank.pop("logits"))
            assert np.abs(logits - alone["logits"]).max() < TOLERANCE.get(name, 1e-4)
            assert of_rank.pop("bytes") == split_bytes(models / name, ranks)
            assert of_rank == by_rank[0]  # counts of drafted tokens, too
        for way in wanted:
            assert texts(by_rank[0], way) == texts(alone, way)
        if "draft" in wanted:  # drafted tokens pass, and fail
            assert any(
                0 < sum(n * steps for n, steps in enumerate(histogram)) < drafted
                for _, drafted, histogram, _ in by_rank[0]["draft"]
            )


def texts(result: dict, way: str) -> list[list[int]]:
    return [tokens for tokens, *_ in result[way]]


def test_rank_0_decides_where_ranks_differ_in_drafts_logits_and_clocks(models, results):
    first, second = results[2][-1]
    alone = decode(**job(models, "8", DECIDED))
    for way in DECIDED:
        assert first[way] == second[way]
        assert texts(first, way) == texts(alone, way) or way == "fresh"


@pytest.fixture
def elsewhere(work) -> Path:
    """Another rank's."""
    shutil.copytree(work / "mlx_models", work / "elsewhere" / "mlx_models")
    return work / "elsewhere"


MAIN = ROOT / "main.py"
PAIR = ["-p", PROMPT, "--model", "demo-target", "--draft-model", "demo-draft"]
FIVE = "translate number to German: 5"


def test_embedded_pair_is_converted_once_and_one_rank_prints(tmp_path):
    stdout, stderr = launch(2, MAIN, "--prompt", PROMPT, "--verbose", cwd=tmp_path)
    assert stdout == f"{ANSWER}\n"
    lines = stderr.splitlines()
    begun = [n for n, line in enumerate(lines) if "tokens per target call" in line]
    # The silent rank may be the one that converts a model
    notes = [f"converting the demo {x} model to mlx_models/demo-{x}" for x in ("target", "draft")]
    assert lines[: begun[0]] in (notes, notes[:1], notes[1:], [])
    assert {path.name for path in tmp_path.glob("mlx_models/[!.]*")} == {
        "demo-target",
        "demo-draft",
    }


def test_rank_0_reads_the_prompt_file_for_all(work, elsewhere):
    (work / "prompts.txt").write_text(f"{PROMPT}\n\n{FIVE}\n")
    command = [MAIN, "--prompt-file", "prompts.txt", "--num-draft", "2"]
    with by_hand([command] * 2, [work, elsewhere], work / "hosts") as ranks:
        (code, stdout, stderr), (other, *silent) = ends(ranks)
    assert (code, stdout) == (1, f"{ANSWER}\n\nfünf\n")
    assert stderr.splitlines() == [
        "prompts.txt, line 2: the prompt is empty",
        "main.py: prompts.txt: 1 of 3 lines have no answer",
    ]
    assert (other, silent) == (1, ["", ""])


def test_one_rank_alone_is_no_group(work):
    assert launch(1, MAIN, "--prompt", PROMPT, cwd=work) == (f"{ANSWER}\n", "")


def other_weights(folder: Path) -> None:
    path = folder / "mlx_models" / "demo-target" / "weights.npz"
    arrays = dict(np.load(path))
    arrays["decoder.norm.weight"] = arrays["decoder.norm.weight"] + 1
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    ("arguments", "change", "of_last", "code", "message"),
    [
        (["--verbose"], None, [], 2, "give one of --prompt, --prompt-file and --chat"),
        (["-p", "x", "--model", "demo-target"], None, [], 1, "cannot be split among 3 ranks"),
        (PAIR, other_weights, [], 1, "rank 1 has a different weights.npz from rank 0"),
        (PAIR, None, ["--seed", "1"], 1, "rank 1 has a different set of arguments from rank 0"),
    ],
)
def test_what_is_wrong_is_one_line_of_rank_0_and_every_ranks_exit_code(
    work, elsewhere, arguments, change, of_last, code, message
):
    """Also what only the last rank is given, or finds in its folder."""
    if change:
        change(elsewhere)
    command, others = [MAIN, *arguments], 2 if "3 ranks" in message else 1
    commands, folders = [command] * others + [[*command, *of_last]], [work] * others + [elsewhere]
    with by_hand(commands, folders, work / "hosts") as started:
        (first, stdout, stderr), *silent = ends(started)
    (line,) = stderr.splitlines()
    assert line.startswith("main.py: ") and message in line
    assert (first, stdout) == (code, "") and silent == [(code, "", "")] * others


def test_a_file_that_one_rank_lacks_is_named():
    ranks = Ranks()
    ranks.gather = lambda text: ['{"a.npz": "1", "b.json": "2"}', '{"a.npz": "1"}']
    with pytest.raises(InputError, match=r"rank 1 has a different b\.json from rank 0"):
        ranks.check_same()


def test_standard_input_is_for_one_process():
    with pytest.raises(InputError, match=r"standard input are not for mlx\.launch"):
        main.check_ranks(main.parse_args(["-p", "-"]), Ranks())


def test_ranks_compare_the_whole_program(monkeypatch):
    read = []
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or b"")
    main.check_ranks(main.parse_args(["-p", "x"]), Ranks())
    assert {*imports.files()} <= {*read}


@pytest.mark.parametrize("backend", ["ring", "jaccl"])
def test_a_loss_that_mlx_notices_is_one_line(monkeypatch, backend):
    monkeypatch.setenv("MLX_RANK", "0")
    alone = SimpleNamespace(rank=lambda: 0, size=lambda: 1)
    monkeypatch.setattr(mx.distributed, "init", lambda strict: alone)
    with pytest.raises(InputError, match="lost the connection to another rank"), session():
        raise RuntimeError(f"[{backend}] the connection was lost")


NAMED = f"""
import os, runpy, sys
open(f"{{os.environ['MLX_RANK']}}.pid", "w").write(str(os.getpid()))
sys.path.insert(0, {str(ROOT)!r})
runpy.run_path({str(MAIN)!r}, run_name="__main__")
"""


def test_when_a_rank_is_killed_all_end_and_nothing_wrong_is_printed(work):
    (work / "prompts.txt").write_text(f"{FIVE}\n" * 5000)
    command = ["-c", NAMED, "--prompt-file", "prompts.txt", "--batch-size", "2"]
    with launched(2, *command, cwd=work) as started:
        assert started.stdout.readline() == "fünf\n"
        os.kill(int((work / "1.pid").read_text()), signal.SIGKILL)
        stdout, stderr = started.communicate(timeout=LIMIT)
    assert set(stdout.splitlines()) <= {"fünf"}
    assert "Node with rank 1 exited" in stderr and "Traceback" not in stderr
