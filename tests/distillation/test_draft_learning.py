"""A draft model that makes itself while the work runs: texts stay the same, and what it has learned is kept."""

import json
import math
from itertools import count

import numpy as np
import pytest
from helpers.pairs import with_states

from apps.distillation import forecast, kept_texts, learning, training
from apps.distillation.evaluation import Evaluation
from apps.distillation.forecast import FITTED, Measured
from apps.distillation.learning import Learner
from apps.documents.files import load as load_document
from apps.documents.translator import Memories, Translator
from decoder import Options, SpeculativeDecoder, load
from speculative.common.reporting import reporter
from speculative.models.distilled import save

PROMPTS = [f"translate number to German: {n}" for n in range(1000, 60_000, 997)]


@pytest.fixture
def notes(monkeypatch):
    lines = []
    monkeypatch.setattr(reporter, "note", lines.append)
    return lines


@pytest.fixture
def eager(monkeypatch):
    """Trains early, without asking whether it pays."""
    monkeypatch.setattr(kept_texts, "FIRST", 8)
    monkeypatch.setattr(learning, "EPOCHS", 8)
    monkeypatch.setattr(learning, "pays", lambda measured: True)


def learns(model, tokenizer, folder, **options):
    learner = Learner(model, "target", folder, **options)
    learner.total = 1e9
    return SpeculativeDecoder(model, tokenizer, learner.draft), learner


SAMPLED_ALONE = pytest.param(1, dict(temp=0.8, seed=3), marks=pytest.mark.slow)


@pytest.mark.parametrize(("batch_size", "options"), [(4, {}), SAMPLED_ALONE])
def test_texts_are_those_without_a_draft_model(
    decoder, eager, tmp_path, notes, batch_size, options
):
    """While a draft model is trained and swapped in beside rows that have begun."""
    generate = dict(max_tokens=24, batch_size=batch_size, **options)
    plain = SpeculativeDecoder(decoder.model, decoder.tokenizer)
    expected = plain.batch_generate(PROMPTS[:24], num_draft=0, **generate)
    learned, learner = learns(decoder.model, decoder.tokenizer, tmp_path / "draft")
    found = learned.batch_generate(PROMPTS[:24], num_draft=3, **generate)
    assert [each.text for each in found] == [each.text for each in expected]
    assert learner.version and sum(each.stats.draft_tokens for each in found)
    notes.clear()
    learner.report()
    assert len(notes) == 1 and "without it" in notes[0]


def test_the_next_run_begins_with_what_was_learned(decoder, eager, tmp_path):
    folder = tmp_path / "draft"
    learned, learner = learns(decoder.model, decoder.tokenizer, folder)
    learned.batch_generate(PROMPTS[:40], max_tokens=24, num_draft=3)
    accuracy = json.loads((folder / "config.json").read_text())["accuracy"]
    again, learner = learns(decoder.model, decoder.tokenizer, folder)
    (first,) = again.batch_generate(PROMPTS[40:41], max_tokens=24, num_draft=3)
    assert learner.version == 1 and first.stats.draft_tokens and 0 < accuracy <= 1
    assert load(folder)[0].for_target(decoder.model).layers == [2]


@pytest.mark.parametrize("held_out", [(), ((np.array([5, 6], np.int32), [0, 7, 1], 1),)])
def test_a_draft_model_that_may_be_worse_on_other_texts_is_for_this_run_only(
    decoder, eager, tmp_path, monkeypatch, notes, held_out
):
    """Worse on the texts held out when the one in the folder was made, or these are not known."""

    def evaluated(*args):
        found = next(numbers)
        yield Evaluation(1 / found, {4: found, 8: found}, 1.0, 1 / found)

    numbers = count(1)
    monkeypatch.setattr(training, "evaluate", evaluated)
    draft = with_states(decoder.model, [2])
    draft.held_out = held_out
    save(draft, decoder.model, "x", tmp_path / "draft", "float32")
    before = (tmp_path / "draft/weights.npz").read_bytes()
    learned, learner = learns(decoder.model, decoder.tokenizer, tmp_path / "draft")
    learned.batch_generate(PROMPTS[:20], max_tokens=24)
    assert learner.version > 1 and "for this run only" in notes[-1]
    assert (tmp_path / "draft/weights.npz").read_bytes() == before


@pytest.mark.parametrize("reason", ["what nobody foresaw", "holds another draft model now"])
def test_whatever_ends_training_is_a_line(decoder, tmp_path, monkeypatch, notes, reason):
    monkeypatch.setattr(kept_texts, "FIRST", 8)
    learned, learner = learns(decoder.model, decoder.tokenizer, tmp_path / "draft", serves=True)
    other = with_states(decoder.model, [0, 1])
    save(other, decoder.model, "x", tmp_path / "draft", "float32")
    before = (tmp_path / "draft/weights.npz").read_bytes()
    if reason.startswith("what"):
        monkeypatch.setattr(learning, "trained_draft", lambda *args: {}[reason])
    learned.batch_generate(PROMPTS[:12], max_tokens=24)
    assert learner.idle() and not learner.idle() and not learner._training
    assert "learns no more" in notes[-1] and reason in notes[-1]
    assert (tmp_path / "draft/weights.npz").read_bytes() == before


def test_a_fitted_draft_model_drafts_before_any_training_and_is_not_saved(
    decoder, eager, tmp_path, monkeypatch
):
    monkeypatch.setattr(learning, "pays", lambda measured: not measured.evaluation)
    monkeypatch.setattr(Evaluation, "speedup", lambda *args: 2.0)
    learned, learner = learns(decoder.model, decoder.tokenizer, tmp_path / "draft")
    found = learned.batch_generate(PROMPTS[:40], batch_size=4, max_tokens=24, num_draft=3)
    assert sum(each.stats.accepted for each in found) > 20
    assert learner.version and not (tmp_path / "draft").exists()


def test_a_small_job_never_trains(decoder, tmp_path, monkeypatch, notes):
    monkeypatch.setattr(learning, "Training", None)
    monkeypatch.setattr(kept_texts, "FIRST", 8)
    monkeypatch.setattr(forecast, "LOOK", 8)
    learned, learner = learns(decoder.model, decoder.tokenizer, tmp_path / "draft")
    learner.total = sum(map(len, PROMPTS[:40]))
    learned.batch_generate(PROMPTS[:40], max_tokens=4)  # 8 at once
    learner.report()
    assert not notes and not (tmp_path / "draft").exists()


def test_a_server_trains_in_pieces_while_it_is_idle(decoder, eager, tmp_path, monkeypatch):
    # Few steps on few texts bring little, on some machines nothing.
    monkeypatch.setattr(training.Training, "is_news", lambda self, _: self.steps_done > 0)
    learned, learner = learns(decoder.model, decoder.tokenizer, tmp_path / "draft", serves=True)
    monkeypatch.setattr(learning, "SLICE_SECONDS", 1e9)
    learned.batch_generate(PROMPTS[:24], max_tokens=24)
    assert not learner.version
    pieces = 0
    while learner.idle():
        pieces += 1
    assert learner.version and pieces > 10
    assert not load(tmp_path / "draft")[0].held_out  # what was asked stays in memory
    learned.batch_generate(PROMPTS[24:50], max_tokens=24)
    monkeypatch.setattr(learning, "SLICE_SECONDS", 0)
    while learner.idle():
        pass
    assert learner._texts._next_look == math.inf


def test_texts_that_are_drafted_much_worse_are_another_kind(decoder, tmp_path, monkeypatch):
    """The draft model is checked on the latest, whatever the schedule drafts."""
    monkeypatch.setattr(kept_texts, "FIRST", 8)
    monkeypatch.setattr(learning, "CHECKED", 12)
    shares = iter([0.9, 0.8, 0.5])
    checked = []

    def accuracy(draft, batch):
        checked.append(len(batch.tokens))
        return next(shares)

    monkeypatch.setattr(learning, "accuracy", accuracy)
    learned, learner = learns(decoder.model, decoder.tokenizer, tmp_path / "draft")
    learner.version = 1
    learner._texts._next_training = 1000
    learner._measured = Measured(learned_from=1000)
    learner.total = 1
    generate = dict(batch_size=1, max_tokens=4, num_draft=1)
    learned.batch_generate(PROMPTS[:24], **generate)
    assert checked == [8, 12] and len(learner._texts.texts) == 24
    learned.batch_generate(PROMPTS[24:26], **generate)
    assert checked == [8, 12, 12] and learner._measured.learned_from == FITTED
    assert len(learner._texts.texts) == 8 + 2


def test_what_the_target_saw_is_what_it_sees(decoder, eager, tmp_path):
    """The states of finished rows are those that the target computes again."""
    from dataclasses import replace

    import mlx.core as mx

    from apps.distillation.batches import TrainingBatch

    learned, learner = learns(decoder.model, decoder.tokenizer, tmp_path / "draft")
    learner._texts._next_look = 1000
    learned.batch_generate(PROMPTS[:9], batch_size=3, max_tokens=24)
    texts = learner._texts.texts
    seen = TrainingBatch.from_texts(decoder.model, texts)
    again = TrainingBatch.from_texts(decoder.model, [replace(text, seen=None) for text in texts])
    read = mx.array(seen.drafted(0))[:, :, None]
    assert mx.allclose(seen.states * read, again.states * read, atol=1e-4)
    assert (seen.mask == again.mask).all()


def test_what_a_run_finds_done_is_not_left_to_do(decoder, tmp_path):
    """Such as the sentences of an interrupted run."""
    source = tmp_path / "in.txt"
    source.write_text("The king sees the house.\nThe queen sees the key.\n")
    learned, learner = learns(decoder.model, decoder.tokenizer, tmp_path / "draft")
    known = {"The king sees the house.": "Le roi."}
    translator = Translator(learned, Options(target_lang="fr"), 2, memories=Memories(texts=known))
    translator.translate(load_document(str(source), None).document, "in.txt")
    assert learner.total == 1e9 - len("The king sees the house.")
    assert learner._work.done >= len("The queen sees the key.")
