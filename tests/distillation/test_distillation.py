"""Training a draft model: what it learns from, how it is evaluated, and where it stops."""

import json
import random
import shutil
from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from helpers import whisper_models
from helpers.decoding import decode_with, ragged_prompts, total
from helpers.pairs import ours, with_states
from helpers.programs import call
from mlx.utils import tree_flatten

from apps.distillation import training
from apps.distillation.batches import TrainingBatch, drafts
from apps.distillation.evaluation import Evaluation, evaluate
from apps.distillation.folder import save, trained_draft
from apps.distillation.texts import HELD_OUT, TrainingText, read_texts, split
from apps.distillation.training import Training, new_draft
from decoder import load
from demo.training.tasks import held_out_example
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.drafters.draft_model import ModelDrafter
from speculative.models.distilled import from_target, own_weights
from speculative.text.memory import Pair


def evaluated(draft, target, batches) -> Evaluation:
    *_, evaluation = evaluate(draft, target, [lambda batch=batch: batch for batch in batches])
    return evaluation


def texts_of(target, count: int, max_tokens: int = 12, **options) -> list[TrainingText]:
    prompts = ragged_prompts(count, 38, 6)
    return [
        TrainingText.from_row(row)
        for row in decode_with(target, None, prompts, max_tokens=max_tokens)
    ]


@pytest.mark.usefixtures("cpu")
def test_drafts_from_every_token_at_once_are_those_of_the_drafter():
    """The tokens a call that a draft model promises are those that it brings."""
    target = ours("t5")
    draft = with_states(target)
    texts = texts_of(target, 5, 12)
    batches = [TrainingBatch.from_texts(target, some) for some in (texts[:3], texts[3:])]
    evaluation = evaluated(draft, target, batches)
    for length, per_call in evaluation.per_call.items():
        prompts = [text.prompt for text in texts]
        rows = decode_with(target, ModelDrafter(draft), prompts, num_draft=length, max_tokens=12)
        calls = sum(row.stats.target_calls for row in rows)
        assert (
            total(rows).accepted_lengths and per_call == sum(len(r.generated) for r in rows) / calls
        )
    assert evaluation.agreement == 1


@pytest.mark.usefixtures("cpu")
def test_a_drafted_token_reads_its_own_draft_and_the_text_before_it():
    """Depth by depth beside a cache that was fed one draft alone."""
    target = ours("t5")
    draft = with_states(target)
    (text,) = texts_of(target, 1, 9)
    batch = TrainingBatch.from_texts(target, [text])
    found = drafts(draft, batch, 3)
    first = 4
    cache = draft.attend_to(batch.encoded, batch.mask)
    previous = mx.pad(batch.states, [(0, 0), (1, 0), (0, 0)])
    state = None
    for place in range(first + 3):
        cache.previous = previous[:, place : place + 1] if place <= first else state
        token, position = mx.array([[text.tokens[place]]]), np.array([[place]], np.int32)
        state = draft.states(token, position, cache)
        if place >= first:
            assert mx.allclose(found[place - first][:, place : place + 1], state, atol=1e-5)


@pytest.fixture(scope="module")
def demo_texts(demo_pair):
    """The demo target, and what it writes for 100 numbers."""
    target, tokenizer, _ = demo_pair
    numbers = range(1000, 200_000, 1990)
    prompts = [tokenizer.encode(f"translate number to German: {n}").ids for n in numbers]
    rows = decode_with(target, None, prompts, 50, num_draft=0, max_tokens=24)
    return target, [TrainingText.from_row(row) for row in rows]


@pytest.mark.slow
@pytest.mark.usefixtures("cpu")
def test_the_held_out_share_rises_and_other_texts_teach_less(demo_texts, tmp_path):
    """Fifteen steps on the target's texts; on its own texts, as a mutant might be trained, a draft model learns less. Further
    steps on texts of another kind make it worse on the first ones, and it says so."""
    target, texts = demo_texts
    trained = Training(target, new_draft(target), texts, steps=15)
    *_, evaluation = trained
    held_out = [TrainingBatch.from_texts(target, split(texts)[1])]
    before = evaluated(from_target(target, [0]), target, held_out).accuracy
    after = evaluated(trained.draft, target, held_out).accuracy
    assert after > before + 0.15
    assert trained.best is evaluation and evaluation.accuracy == after and trained.progress == 1
    save(trained, "demo", tmp_path / "d", "float32", trained.held_out)
    chance = random.Random(0)
    asked = [held_out_example(chance, "sentence").prompt for _ in range(50)]
    sentences = [target.text.tokenizer.encode(prompt).ids for prompt in asked]
    rows = decode_with(target, None, sentences, 50, num_draft=0, max_tokens=24)
    others = [TrainingText.from_row(row) for row in rows]
    other = Training(target, trained_draft(tmp_path / "d", target), others, steps=15)
    *_, of_sentences = other
    assert other.best is of_sentences and other.is_worse and other.draft.promised == after
    prompts = [text.prompt for text in texts]
    untrained = from_target(target, [0])
    rows = decode_with(untrained, None, prompts, 50, num_draft=0, max_tokens=24)
    mutant = Training(target, untrained, [TrainingText.from_row(row) for row in rows], steps=15)
    list(mutant)
    assert evaluated(mutant.draft, target, held_out).accuracy < after - 0.1


@pytest.mark.usefixtures("cpu")
def test_the_loss_is_cross_entropy_and_kl_over_all_drafted_tokens(monkeypatch):
    """In slices as in one, and as computed plainly."""
    target = ours("t5")
    draft = with_states(target)
    texts = texts_of(target, 4)
    batch = TrainingBatch.from_texts(target, texts)
    plain = []
    theirs = np.array(batch.head_input)
    counted = batch.drafted(0)
    p = np.array(mx.softmax(target.logits(batch.head_input), axis=-1))
    for depth, states in enumerate(drafts(draft, batch, 2)):
        q = np.array(
            draft.logits(states) - mx.logsumexp(draft.logits(states), axis=-1, keepdims=True)
        )
        for b, t in np.argwhere(batch.drafted(depth)):
            apart = ((np.array(states)[b, t] - theirs[b, t]) ** 2).mean()
            apart *= training.STATE_LOSS / (theirs[counted] ** 2).mean()
            plain.append(apart - q[b, t, batch.labels[b, t]] - (p[b, t] * q[b, t]).sum())
    for size in (1024, 7):
        monkeypatch.setattr(training, "SLICE", size)
        found = training.loss(draft, target, batch, batch.labels, 2).item()
        assert found == pytest.approx(np.mean(plain), rel=1e-4)


def test_gradients_reach_every_weight():
    target = ours("t5")
    draft = with_states(target)
    batch = TrainingBatch.from_texts(target, texts_of(target, 4))

    def loss_of(weights):
        training.distilled.set_weights(draft, weights)
        return training.loss(draft, target, batch, batch.labels, 2)

    gradients = mx.grad(loss_of)(own_weights(draft))
    assert all(mx.abs(x).max() > 0 for x in gradients.values())


FAMILIES = ["t5", "umt5", "bart", "m2m", "marian, own vocabularies", "t5gemma", "t5gemma2"]


@pytest.mark.parametrize("name", [*FAMILIES, "whisper"])
def test_a_step_of_training_changes_the_drafts_own_weights_alone(name, tmp_path):
    """Of every family, with what is saved of them."""
    if name == "whisper":
        target, _ = load(whisper_models.converted(whisper_models.reference_model(), tmp_path))
    else:
        target = ours(name)
    start = [target.config.decoder_start_token_id]
    texts = [TrainingText(target.blank_prompt(3), [*start, n, n + 1], 1) for n in range(9)]
    before = {part: np.array(weight) for part, weight in tree_flatten(target.parameters())}
    draft = new_draft(target)
    trained = Training(target, draft, texts, steps=1)
    list(trained)
    after = dict(tree_flatten(target.parameters()))
    assert all(np.array_equal(before[part], after[part]) for part in before)
    save(trained, name, tmp_path / "d", "float32", trained.held_out)
    kept = load(tmp_path / "d")[0].weights
    untrained = own_weights(from_target(target, draft.layers))
    assert kept.keys() == untrained.keys() and not {"embedding", "positions"} & {
        part.partition(".")[0] for part in kept
    }
    assert not mx.array_equal(kept["mix.weight"], untrained["mix.weight"])
    again = Training(target, trained_draft(tmp_path / "d", target), texts, steps=1)
    list(again)
    ((kept_text,), (held_out,)) = again.earlier, trained.held_out
    assert again._earlier and kept_text.tokens == held_out.tokens
    assert np.array_equal(*map(target.prompt_array, (kept_text.prompt, held_out.prompt)))


def test_a_twentieth_is_held_out_whatever_the_order():
    texts = [TrainingText([5], [0, i, i + 1, 1], 1) for i in range(2000)]
    _, held_out = split(texts)
    assert 0.03 < len(held_out) / len(texts) < 0.07 and 1 / HELD_OUT == 0.05
    _, same = split(texts[::-1])
    assert {tuple(t.tokens) for t in same} == {tuple(t.tokens) for t in held_out}
    _, earlier = split(texts[:100])  # what more texts hold out was not learned from before
    assert len(earlier) == 8 and all(text in earlier for text in held_out if text in texts[:100])
    for few in (0, 1):
        with pytest.raises(InputError, match="at least two texts to learn from"):
            split(texts[:few])
    assert [len(part) for part in split(held_out[:2])] == [1, 1]


def test_pairs_become_the_targets_tokens(decoder, monkeypatch):
    model, tokenizer = decoder.model, decoder.tokenizer
    (text,) = read_texts(model, tokenizer, [Pair("repair: A", "The house."), Pair("repair: B", "")])
    assert text.tokens[0] == model.config.decoder_start_token_id and text.tokens[-1] == 1
    assert tokenizer.decode(text.tokens) == "The house."
    bad = [Pair("a", "日本語 テキスト 漢字"), Pair("\ud800", "b"), Pair("a", "b", "de", "en")]
    notes = []
    monkeypatch.setattr(reporter, "note", notes.append)
    assert not read_texts(model, tokenizer, bad)
    reasons = ("many tokens are unknown to this model", "not valid Unicode", "no language 'de'")
    assert all(reason in note for reason, note in zip(reasons, notes, strict=True))
    pairs = [Pair(f"repair: {name}", "The house.") for name in "AB"]
    trained = Training(model, new_draft(model, 2), read_texts(model, tokenizer, pairs), steps=1)
    assert list(trained) and trained.draft.layers == [0, 2]


def test_training_stops_by_itself_and_at_nan(monkeypatch):
    """Once it gains nothing, its rate falls, and whole drafts are trained, before it ends."""
    target = ours("t5")
    texts = texts_of(target, 20, 6)
    monkeypatch.setattr(training, "EVAL_SECONDS", 0)
    depths = []
    loss = training.loss
    monkeypatch.setattr(training, "loss", lambda *args: depths.append(args[-1]) or loss(*args))
    trained = Training(target, new_draft(target), texts, minutes=60)
    assert len(list(trained)) > training.PATIENCE
    assert trained.progress == 1 and depths[-1] == training.DEPTH
    monkeypatch.setattr(
        training, "loss", lambda *args: mx.array(np.nan) + 0 * args[0].decoder.mix.weight.sum()
    )
    with pytest.raises(InputError, match="the loss is nan after 0 steps"):
        list(Training(target, new_draft(target), texts, steps=3))


def test_the_best_state_brings_the_most_tokens_a_call(monkeypatch):
    """Whole drafts are trained at last, when the share of first tokens may fall."""

    def evaluated(*args):
        yield Evaluation(*results[trained.steps_done], 1.0)

    results = [(0.7, {4: 1.0, 8: 1.0}), (0.9, {4: 2.0, 8: 2.0}), (0.8, {4: 3.0, 8: 3.0})]
    monkeypatch.setattr(training, "evaluate", evaluated)
    monkeypatch.setattr(training, "EVAL_SECONDS", 0)
    target = ours("t5")
    trained = Training(target, new_draft(target), texts_of(target, 9), steps=2)
    assert [trained.best is evaluation for evaluation in trained] == [True, True, True]


def test_only_models_with_an_encoder_are_distilled():
    with pytest.raises(InputError, match="no encoder to draft from: use a public draft model"):
        new_draft(object())


def test_the_command_goes_on_where_it_ended(work):
    """It writes only the texts that are missing, and trains the draft model that is there."""
    (work / "p.txt").write_text("".join(f"translate number to German: {n}\n" for n in range(40)))
    argv = ["--model", "mlx_models/demo-target", "--prompt-file", "p.txt", "--steps", "2"]
    first = call(*argv, cwd=work, script="distill.py")
    texts = (work / "mlx_models/demo-target-draft.jsonl").read_text()
    assert len(texts.splitlines()) == 40 and "step 0, " in first.stderr
    assert first.stdout.startswith("python main.py --model mlx_models/demo-target --draft-model")
    (work / "mlx_models/demo-target-draft.jsonl").write_text("\n".join(texts.splitlines()[:30]))
    assert call(*argv, cwd=work, script="distill.py").returncode == 0
    pairs = [json.loads(line) for line in (work / "mlx_models/demo-target-draft.jsonl").open()]
    assert len({pair["prompt"] for pair in pairs}) == len(pairs) == 40


def test_sentences_of_documents_are_translated_once(work):
    (work / "a.md").write_text("# The king\n\nThe king sees the house. The queen reads a letter.\n")
    (work / "b.txt").write_text("The queen reads a letter.\nThe baker sells three keys.\n")
    argv = ["--model", "mlx_models/demo-target", "--document", "a.md", "b.txt", "--steps", "1"]
    argv += ["--to", "German", "--output", "new/draft"]
    for _ in range(2):
        assert call(*argv, cwd=work, script="distill.py").returncode == 0
    pairs = [json.loads(line) for line in (work / "new/draft.jsonl").open()]
    assert {pair["target_lang"] for pair in pairs} == {"de"}
    assert len({pair["prompt"] for pair in pairs}) == len(pairs) == 4


TMX = """<tmx version="1.4"><header/><body><tu><tuv xml:lang="en"><seg>The old king sees.</seg></tuv>
<tuv xml:lang="de"><seg>Der alte König sieht.</seg></tuv></tu><tu><tuv xml:lang="en"><seg>The house.</seg></tuv>
<tuv xml:lang="fr"><seg>La maison.</seg></tuv></tu><tu><tuv xml:lang="en"><seg>A key.</seg></tuv>
<tuv xml:lang="de"><seg>Ein Schlüssel.</seg></tuv></tu></body></tmx>"""


def test_what_cannot_be_learned_from_is_passed_over(work):
    """Of a memory the other direction and other languages, of prompts what main.py passes over."""
    distill = partial(call, "--steps", "1", "--model", script="distill.py")
    (work / "m.tmx").write_text(TMX)
    own = shutil.copytree(work / "mlx_models/demo-target", work / "own")
    (own / "mlx_models/own-draft").mkdir(parents=True)  # an empty folder may be written into
    fitting = distill(".", "--memory", work / "m.tmx", cwd=own)
    assert "pairs left out: 2, the first is 'Der alte" in fitting.stderr
    assert (own / "mlx_models/own-draft/config.json").exists()
    chosen = distill("own/", "--memory", "m.tmx", "--from", "English", "--to", "de", cwd=work)
    assert "2 of 6 pairs are in these languages" in chosen.stderr
    prompt = "translate number to German: "
    asked = [*({"prompt": f"{prompt}{n}", "reference": "ein"} for n in (12, 12, 15))]
    asked += [{"prompt": [{"role": "user", "content": each}]} for each in (f"{prompt}77", "\ud800")]
    (work / "p.jsonl").write_text("\n".join(map(json.dumps, asked)))
    written = distill("own", "--prompt-file", "p.jsonl", "--output", "x", cwd=work)
    assert "p.jsonl, line 5: the prompt is not valid Unicode text" in written.stderr
    pairs = [json.loads(line) for line in (work / "x.jsonl").open()]
    assert sorted(pair["prompt"][len(prompt) :] for pair in pairs) == ["12", "15", "77"]
    refused = call("--model", "x", "--dry-run", cwd=work, script="convert.py").stderr
    assert refused == "convert.py: x is a draft model, made by distill.py: use it as it is\n"


@pytest.mark.parametrize(
    ("flag", "value", "problem"),
    [
        *(
            ("--minutes", value, "argument --minutes: invalid number value")
            for value in ("nan", "inf", "-1", "x")
        ),
        ("--minutes", "0", "--minutes is 0"),
        ("--layers", "5", "the model has 3 decoder layers, not 5"),
        ("--output", "mlx_models", "mlx_models is something else"),
    ],
)
def test_a_mistake_is_one_line(work, flag, value, problem):
    (work / "m.jsonl").write_text('{"prompt": "a", "text": "b"}\n')
    argv = ["--model", "mlx_models/demo-target", "--memory", "m.jsonl", flag, value]
    refused = call(*argv, cwd=work, script="distill.py")
    assert refused.returncode and problem in refused.stderr and refused.stderr.count("\n") == 1
