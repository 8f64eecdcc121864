"""The benchmark runs, and its instruments measure what they say. What they find is not asserted."""

import json
import os
import random
import re
import subprocess
from collections import Counter
from functools import partial
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from helpers import programs
from helpers.bart_tokenizers import checkpoint
from helpers.models import random_model
from mlx.utils import tree_flatten

from benchmarks import limits, measure, tables
from convert import convert
from demo.tasks import held_out_example
from model import T5
from speculative.drafting import ModelDrafter
from speculative.options import Options
from speculative.row import Row


def run(folder: Path, *arguments) -> subprocess.CompletedProcess:
    return programs.run(*arguments, cwd=folder, script="benchmark.py")


@pytest.mark.slow
def test_speed_of_the_users_models_as_table_and_json(demo_folders, tmp_path):
    prompts = [held_out_example(random.Random(i), "repair").prompt for i in range(3)]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts))
    models = ["--model", "demo-target", "--draft-model", "demo-draft"]
    options = ["--num-draft", "4", "auto", "--drafter", "model", "lookup", "both"]
    batches = ["--batch-size", "1", "2", "--prompt-file", tmp_path / "prompts.txt"]
    result = run(demo_folders, *models, *options, *batches)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    names = [found["decoding"] for found in report["runs"]]
    assert len(names) == 2 * (1 + 3 * 2)
    assert all(f"| {name} " in result.stdout for name in names)
    assert report["oracle"] > 0 and set(report["share_of_limits"]) == {
        "read",
        "largest",
        "products",
    }
    assert report["other texts"] == {}
    assert report["synchronisations"] == {"0": 1.0, "5": 1.0}
    assert all(found["tokens/s"] > 0 for found in report["runs"])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["decoder-only", "nllb"])
def test_models_of_other_families_are_measured(bart_folders, tmp_path, family):
    """With their chat template or languages, and what a step multiplies by: NLLB's decoder, not its encoder."""
    if family == "nllb":
        checkpoint(tmp_path / "hub", bart_folders["nllb"], "nllb")
        target = draft = convert(str(tmp_path / "hub"), tmp_path / "out", dtype="float32")
        options = ["--target-lang", "fra_Latn", "--max-tokens", "8"]
    else:
        target, draft = (programs.DEMO / f"causal-{role}" for role in ("target", "draft"))
        options = ["--drafter", "model", "lookup"]
    models = ["--model", target, "--draft-model", draft]
    result = run(tmp_path, *models, *options, "--num-draft", "3", "--examples", "1")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["other texts"] == {} and report["oracle"] > 0
    of_step = 1e9 * report["step_gb"]
    size = max(file.stat().st_size for file in target.iterdir())  # the weights
    assert 0.2 * size < of_step <= size
    assert (of_step > 0.9 * size) == (family == "decoder-only")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draft-model", "x"], "--draft-model needs --model"),
        (["--model", "demo-target", "--drafter", "both"], "need --draft-model"),
        (["--model", "demo-target", "--baselines"], "--baselines is for the embedded pair"),
        (["--model", "none-such"], "no model 'none-such'"),
        (["--num-draft", "many"], "'many' is neither a number nor auto"),
        (["--model", "demo-target", "--prompt-file", "none"], "none"),
        pytest.param(
            ["--model", programs.DEMO / "causal-target", "--target-lang", "fra_Latn"],
            "are not for prompts in a chat template",
            marks=pytest.mark.slow,
        ),
        (["--kinds", "number", "--prompt-file", "x"], "--kinds are the demo's"),
        (["rules", "--report"], "the table rules has no use for --report"),
        (["--batch-size", "0"], "0 is not 1 or more"),
        (["--examples", "0"], "0 is not 1 or more"),
        (["--num-draft", "2", "-1"], "num_draft is -1, not a whole number of 0 or more"),
        (["--model", "demo-target", "--prompt-file", "/dev/null"], "/dev/null: no prompts"),
        (["rules", "--model", "demo-target"], "the table rules has no use for --model"),
        (["lengths", "--num-draft", "3"], "the table lengths has no use for --num-draft"),
    ],
)
def test_mistakes_are_one_line(demo_folders, arguments, message):
    result = programs.call(*arguments, cwd=demo_folders, script="benchmark.py")
    assert result.returncode in (1, 2)
    (line,) = result.stderr.splitlines()
    assert line.startswith("benchmark.py: ") and message in line


@pytest.mark.parametrize("variant", ["v1.1", "t5"])
def test_the_bytes_of_a_step_are_those_of_the_weights_that_matter(variant):
    """Those whose change is seen in a step after the source has been encoded and projected, but for norms
    and position bias, of which no product is made."""
    model = random_model(variant)
    source, positions = mx.array([[5, 6]]), np.array([[0, 1]], np.int32)

    def logits(cache) -> mx.array:
        return model.decode(mx.array([[7, 8]]), positions, cache)

    expected, read = logits(model.start(source)), 0
    for name, weight in tree_flatten(model.parameters()):
        cache = model.start(source)
        model.load_weights([(name, weight * 1.5)], strict=False)
        if not mx.array_equal(logits(cache), expected) and not re.search("norm|bias", name):
            read += weight.nbytes
        model.load_weights([(name, weight)], strict=False)
    assert sum(product.bytes for product in limits.products(model, [5, 6])) == read


@pytest.mark.parametrize("bits", [None, 8])
def test_the_products_of_a_step_can_be_made_alone(bits):
    model = random_model("v1.1", d_model=64, d_ff=64, d_kv=32)
    whole = sum(product.bytes for product in limits.products(model, [5, 6]))
    if bits:

        def divides(name: str, module: nn.Module) -> bool:
            return hasattr(module, "to_quantized") and "relative_bias" not in name

        nn.quantize(model, group_size=32, bits=bits, class_predicate=divides)
    of_step = limits.products(model, [5, 6])
    # Quantized: a byte a weight, and a scale and a bias of float32 for 32 of them.
    share = (8 + 2 * 32 / 32) / 32 if bits else 1
    assert sum(product.bytes for product in of_step) == share * whole
    assert limits.chain(of_step)() > 0  # they fit


@pytest.mark.skipif(mx.default_device() == mx.gpu, reason="a GPU reads in one piece")
def test_a_plain_read_reads_all_of_it_once(monkeypatch):
    read, seen = limits.Read(1 << 20), []
    monkeypatch.setattr(np, "max", lambda part: seen.append(part.nbytes))
    assert read() > 0
    assert sum(seen) == 1 << 20


def test_an_oracle_takes_the_best_way():
    """Against all ways through short texts, and never beyond the end or what is known."""
    rng, by_length = np.random.default_rng(0), [1.0, 1.4, 1.5, 3.0]

    def ways(known: list[bool]) -> list[float]:
        found = [] if known else [0.0]
        for k in range(min(len(by_length), len(known))):
            if all(known[:k]):
                found += [by_length[k] + rest for rest in ways(known[k + 1 :])]
        return found

    for length in range(9):
        known = rng.random(length) < 0.7
        assert limits.least_seconds(known, by_length) == pytest.approx(min(ways(known.tolist())))


def test_what_an_oracle_knows_is_what_passes(demo_pair):
    """From wherever a draft begins, as many of its tokens pass as are known from there on."""
    target, tokenizer, draft = demo_pair
    for example in measure.examples(2):
        prompt = tokenizer.encode(example.prompt).ids
        (plain,) = measure.decoder(target, None, 0)([prompt])
        known, _ = limits.known_to_draft(draft, plain)
        for k in (3, 30):
            (row,) = measure.decoder(target, ModelDrafter(draft), k)([prompt])
            at, expected = 0, Counter()
            while at < len(known):
                passing = [*known[at : at + k].tolist(), False].index(False)
                expected[passing] += 1
                at += passing + 1
            assert row.stats.accepted_lengths == expected


def test_every_way_takes_its_turn_at_every_source():
    calls = []

    def way(name):
        return lambda sources: calls.append((name, sources)) or [[1, 2] for _ in sources]

    runs = measure.take_turns({n: way(n) for n in "ab"}, [[1], [2], [3]], per_turn=2)
    assert calls[:2] == [("a", [[1]]), ("b", [[1]])]  # warming up
    assert calls[2:] == [
        ("a", [[1], [2]]),
        ("b", [[1], [2]]),
        ("b", [[3]]),
        ("a", [[3]]),
    ]
    assert runs["a"].tokens == [4, 2] and len(runs["b"].results) == 3


def test_synchronisations_are_seen():
    model = random_model()
    drafter = ModelDrafter(model)
    assert measure.synchronisations_per_step(model, drafter, Row([5, 6, 7]), 3) == 1
    waiting = T5(model.config)
    waiting.load_weights(tree_flatten(model.parameters()))
    decode = waiting.decode

    def decode_and_wait(*arguments):
        logits = decode(*arguments)
        mx.eval(logits)
        return logits

    waiting.decode = decode_and_wait
    assert measure.synchronisations_per_step(waiting, drafter, Row([5, 6, 7]), 3) == 2


@pytest.mark.slow
def test_baselines_write_the_same_text(demo_pair, monkeypatch):
    pytest.importorskip("torch")
    from benchmarks import baselines

    target, tokenizer, draft = demo_pair
    monkeypatch.setattr(baselines, "widened_pair", lambda sizes: (target, draft))
    generate = baselines.with_transformers(("t5-large", "t5-small"), 64)
    sources = [tokenizer.encode(e.prompt).ids for e in measure.examples(2)]
    ours = [row.generated for row in measure.decoder(target, None, 0)(sources)]
    assert generate(sources) == ours  # side by side, of different lengths
    for how in ({}, {"assisted": True}, {"lookup": 10}):
        assert [generate([source], **how)[0] for source in sources[::3]] == ours[::3]


def _which_blas(sizes, max_tokens):
    """In the place of a library: whether our BLAS is in its process."""
    import blas

    return lambda prompts: [[int(bool(blas.loaded))]]


@pytest.mark.slow
def test_baselines_have_the_blas_of_their_own(monkeypatch):
    pytest.importorskip("torch")
    from benchmarks import baselines

    monkeypatch.delenv("SPECULATIVE_BLAS", raising=False)
    library = baselines.Baseline(_which_blas, (), 0)
    assert library.way()([[5]]) == [[0]] and "SPECULATIVE_BLAS" not in os.environ
    library.close()


@pytest.mark.slow
def test_a_table_for_each_kind_in_a_file_to_send(demo_folders, tmp_path):
    sizes = ["--sizes", "demo", "demo", "--examples", "2", "--num-draft", "auto"]
    asked = ["--kinds", "repair", "number", "--per-turn", "2", "--report", tmp_path / "sent.md"]
    result = run(demo_folders, *sizes, *asked)
    assert result.returncode == 0, result.stderr
    *printed, line = result.stdout.splitlines()
    report, sent = json.loads(line), (tmp_path / "sent.md").read_text()
    assert json.loads(sent.split("```json\n")[1].split("```")[0]) == report
    assert "\n".join(printed) in sent and "100" in report["kinds"]["repair"]["verify_cost"]
    assert list(report["kinds"]) == ["repair", "number"]
    prompts = [report["kinds"][kind]["prompts"] for kind in ("repair", "number")]
    assert prompts[0] != prompts[1] and all(found.startswith("2 of") for found in prompts)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["rules", "batches", "lengths"])
def test_tables_are_printed(demo_folders, monkeypatch, what):
    """Of a few tokens each."""
    monkeypatch.setattr(tables, "decoder", partial(measure.decoder, max_tokens=6))
    monkeypatch.setattr(tables, "Options", lambda **of: Options(**of | {"max_tokens": 6}))
    asked = [what, "--sizes", "demo", "demo", "--examples", "1"]
    result = programs.call(*asked, cwd=demo_folders, script="benchmark.py")
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if line.startswith("|")]
    assert len(lines) > 5 and len({line.count("|") for line in lines}) == 1
