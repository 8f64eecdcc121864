"""Whisper: logits, rules and texts beside transformers', and where its windows are encoded."""

import json
import weakref
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import torch
import transformers
from helpers import whisper_models as wm
from helpers.decoding import new_driver
from helpers.models import assert_close
from helpers.oracle import disturbed
from tokenizers import Tokenizer, models

import apps.speech.transcriber
from apps.speech.options import TranscribeOptions
from apps.speech.rules import Special
from apps.speech.transcriber import Transcriber
from decoder import load
from speculative.checkpoints.weights import Quantization
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.drafters.draft_model import ModelDrafter
from speculative.models.conversion import convert
from speculative.models.whisper import SoundPrompt
from speculative.step.processors import Controls
from speculative.step.row import Row

BINS, FRAMES = wm.SHAPE["num_mel_bins"], 2 * wm.POSITIONS


def features(count=2, bins=BINS, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, (count, FRAMES, bins)).astype(np.float32)


def as_theirs(sound):
    return torch.tensor(sound).transpose(1, 2)


@pytest.mark.parametrize(
    "changes",
    [{}, dict(decoder_layers=1, encoder_layers=3), dict(num_mel_bins=128, d_model=48)],
    ids=["tiny", "distil", "v3"],
)
def test_logits_are_those_of_transformers(tmp_path, changes):
    reference = wm.reference_model(**changes)
    model, _ = load(wm.converted(reference, tmp_path))
    sound = features(bins=reference.config.num_mel_bins)
    tokens = np.random.default_rng(1).integers(0, wm.VOCAB, (2, 12))
    with torch.no_grad():
        expected = reference(
            as_theirs(sound), decoder_input_ids=torch.tensor(tokens)
        ).logits.numpy()
    one, two = map(SoundPrompt, sound)
    logits, scores = model.attention([one, two], mx.array(tokens), {0: [1]})
    assert_close(np.array(logits), expected)
    reference.set_attn_implementation("eager")
    attended = reference(
        as_theirs(sound), decoder_input_ids=torch.tensor(tokens), output_attentions=True
    ).cross_attentions
    weights = np.array(mx.softmax(scores[0], axis=-1))
    assert np.allclose(weights, attended[0][:, [1]].detach(), atol=1e-5)
    cache = model.start([one, two])
    wrong = np.concatenate([tokens[:, :5], np.full((2, 3), 7)], axis=1)
    at = np.tile(np.arange(8, dtype=np.int32), (2, 1))
    logits = np.array(model.decode(mx.array(wrong), at, cache))
    assert_close(logits[:, :5], expected[:, :5])
    cache.keep(np.array([5, 5]))  # the three that follow are rejected
    at = np.tile(np.arange(5, 12, dtype=np.int32), (2, 1))
    assert_close(np.array(model.decode(mx.array(tokens[:, 5:]), at, cache)), expected[:, 5:])


# ---------------------------------------------------------------------------------------------
# Rules


def their_rules(prefix_size, words):
    """Of a vocabulary that has so many words more before the end of text."""
    ids = {name: np.array(value) for name, value in wm.GENERATION.items() if "token" in name}
    moved = {name: np.where(i < wm.END, i, i + words).tolist() for name, i in ids.items()}
    config = transformers.GenerationConfig(**wm.GENERATION | moved)
    return [
        transformers.SuppressTokensLogitsProcessor(config.suppress_tokens),
        transformers.SuppressTokensAtBeginLogitsProcessor(
            config.begin_suppress_tokens, prefix_size
        ),
        transformers.WhisperTimeStampLogitsProcessor(config, prefix_size),
    ]


def written(rng, length, words=0):
    """A text as the rules allow it, with its stamps."""
    text, stamp = [], wm.FIRST_STAMP + rng.integers(0, 5)
    known = [*range(60, 120), *range(wm.VOCAB, wm.VOCAB + words)]
    while len(text) < length:
        text += [stamp, *rng.choice(known, rng.integers(1, 4))]
        stamp = min(stamp + rng.integers(1, 9), wm.VOCAB - 1)
        text += [stamp]
        stamp = min(stamp + rng.integers(0, 3), wm.VOCAB - 1)
    return [int(token) for token in text[:length]]


@pytest.mark.parametrize("words, nameless", [(0, 0), (0, 40), (40, 40)])
def test_rules_are_those_of_transformers_at_every_position(words, nameless):
    """Words that a fine-tune has added behind the timestamps are like those before the end of text; rows without a name
    are never written."""
    size = wm.VOCAB + words + nameless
    s, rng, seen = wm.special(wm.tokenizer(words), size), np.random.default_rng(0), 0
    order = [*range(wm.END), *range(wm.VOCAB, wm.VOCAB + words), *range(wm.END, wm.VOCAB)]
    config = SimpleNamespace(eos_token_ids=(wm.END,), vocab_size=size, max_positions=None)
    for _ in range(60):
        T, rows = int(rng.integers(1, 7)), []
        for _ in range(3):
            earlier = [s.previous, *written(rng, 6)] if rng.random() < 0.5 else []
            prefix = [*earlier, *s.prefix("de", "transcribe")]
            row = Row.begin([1], s.options(), prefix, config)
            text = written(rng, int(rng.integers(0, 12)) + T, words)
            row.tokens += text[: len(text) - T]
            row.origins = ["target"] * (len(text) - T)
            rows.append((row, text, len(prefix)))
        logits = rng.normal(0, 3, (3, T + 1, size)).astype(np.float32)
        drafted = mx.array([text[len(text) - T :] for _, text, _ in rows])
        ours = np.array(Controls([row for row, _, _ in rows])(mx.array(logits), [drafted]))
        for b, (row, text, begin) in enumerate(rows):
            for t in range(T + 1):
                known = row.tokens[:begin] + text[: len(text) - T + t]
                known = [order.index(token) for token in known]
                scores = torch.tensor(logits[b : b + 1, t, order])
                for rule in their_rules(begin, words):
                    scores = rule(torch.tensor([known]), scores)
                np.testing.assert_array_equal(ours[b, t, order], scores[0].numpy())
                assert (ours[b, t, wm.VOCAB + words :] == -np.inf).all()
                seen += 1
    assert seen > 700


# ---------------------------------------------------------------------------------------------
# Texts


def their_text(reference, sound, stamps=True):
    """The tokens of transformers' one pass, prefix and end included."""
    with torch.no_grad():
        found = reference.generate(
            as_theirs(sound[None]),
            language="de",
            task="transcribe",
            return_timestamps=stamps,
            force_unique_generate_call=True,
        )
    return found[0].tolist()


@pytest.mark.slow
def test_a_windows_text_is_transformers_own_with_drafts_and_without(tmp_path):
    reference = wm.reference_model()
    model, _ = load(wm.converted(reference, tmp_path))
    draft = disturbed(model, 0.02)
    draft = draft.for_target(model)
    s, partial = wm.special(), 0
    for seed in range(6):
        (sound,) = features(1, seed=seed)
        prefix = s.prefix("de", "transcribe")
        expected = their_text(reference, sound)
        window = SoundPrompt(sound)
        for num_draft in (0, 4):
            options = s.options(num_draft=num_draft, max_tokens=500)
            row = Row.begin(window, options, prefix, model.config)
            driver = new_driver(model, ModelDrafter(draft), row.options)
            driver.admit([row])
            while not row.finish_reason:
                driver.advance()
            assert row.tokens == expected
            steps = row.stats.accepted_lengths
            partial += sum(n for length, n in steps.items() if 0 < length < num_draft)
    assert partial > 2


@pytest.mark.parametrize("words", [0, 40, None])
def test_without_timestamps_a_segment_is_a_window(tmp_path, monkeypatch, words):
    """Words that were added to a vocabulary have the ids that others have for timestamps. None: the user wants none."""
    has_stamps = words is None
    notes = []
    monkeypatch.setattr(reporter, "note", notes.append)
    monkeypatch.setattr(wm, "tokenizer", partial(wm.tokenizer, words or 0, stamps=has_stamps))
    monkeypatch.setitem(wm.GENERATION, "begin_suppress_tokens", [19])  # the likeliest
    if has_stamps:  # the model was not trained to write none
        never = [*wm.GENERATION["suppress_tokens"], *range(wm.FIRST_STAMP, wm.VOCAB)]
        monkeypatch.setitem(wm.GENERATION, "suppress_tokens", never)
    (sound,) = features(1)
    monkeypatch.setattr(apps.speech.transcriber, "log_mel", lambda samples, bins: sound)
    rows = wm.VOCAB if has_stamps else wm.FIRST_STAMP + words
    reference = wm.reference_model(vocab_size=rows)
    folders = [wm.converted(reference, tmp_path / name) for name in ("model", "draft")]
    expected = their_text(reference, sound, stamps=False)[4:]
    expected = [token for token in expected[:32] if token != wm.END]
    assert not words or max(expected) >= wm.FIRST_STAMP
    transcriber = Transcriber(*folders)
    line = f"{folders[0]}: no timestamps in its vocabulary"
    assert any(line in note for note in notes) != has_stamps
    once = TranscribeOptions("de", compression_ratio_threshold=None, logprob_threshold=None)
    for num_draft, timed in ((0, False), (3, True)):
        given = dict(word_timestamps=timed, without_timestamps=has_stamps)
        options = replace(once, num_draft=num_draft, **given)
        transcript = transcriber.transcribe(np.zeros(160 * FRAMES, np.float32), options)
        assert [s.tokens for s in transcript.segments] == [expected]
        assert transcript.text == wm.tokenizer().decode(expected)


def test_a_window_is_forgotten_with_its_last_row(tmp_path):
    model, _ = load(wm.converted(wm.reference_model(), tmp_path))
    row = Row(SoundPrompt(features(1)[0]))
    model.start([row.prompt])
    held = weakref.ref(row.prompt)
    assert held().encoded
    del row
    assert held() is None


# ---------------------------------------------------------------------------------------------
# Checkpoints


def test_a_checkpoint_in_shards_and_half_precision_is_read(tmp_path):
    reference = wm.reference_model()
    whole, _ = load(wm.converted(reference, tmp_path / "whole"))
    reference.proj_out.weight = torch.nn.Parameter(
        reference.model.decoder.embed_tokens.weight.clone()
    )
    reference.config.tie_word_embeddings = False  # so that the file has proj_out
    hub = wm.write_hub(reference, tmp_path / "hub", max_shard_size="100KB")
    assert len(list(hub.glob("*.safetensors"))) > 1
    for dtype, limit in (("float32", 1e-6), ("float16", 0.02)):
        convert(str(hub), tmp_path / dtype, dtype=dtype)
        model, _ = load(tmp_path / dtype)
        logits = []
        for each in (whole, model):
            window = SoundPrompt(features(1)[0])
            cache = each.start([window])
            at = np.arange(3, dtype=np.int32)[None]
            logits.append(
                np.array(each.decode(mx.array([[1, 2, 3]]), at, cache).astype(mx.float32))
            )
        assert np.abs(logits[0] - logits[1]).max() < limit * np.abs(logits[0]).max()
    convert(str(hub), tmp_path / "small", quantization=Quantization(bits=8, group_size=32))
    model, _ = load(tmp_path / "small")
    assert isinstance(model.decoder.layers[0].up, nn.QuantizedLinear)
    assert not isinstance(model.decoder.positions, nn.QuantizedEmbedding)


def test_folders_of_mlx_whispers_are_refused(tmp_path):
    raw = {"model_type": "whisper", "n_mels": 80, "n_vocab": 51865}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / "weights.npz").write_bytes(b"")
    with pytest.raises(InputError, match=r"mlx_whisper's folder, .*convert the original"):
        convert(str(tmp_path), tmp_path / "out")
    with pytest.raises(InputError, match="convert"):
        load(tmp_path)


def test_a_tokenizer_that_is_not_whispers_is_refused():
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    with pytest.raises(InputError, match=r"no <\|startoftranscript\|>"):
        wm.special(tokenizer)


@pytest.mark.parametrize("lacking", ["model", "draft"])
def test_a_pairs_tokenizers_may_leave_the_timestamps_out(tmp_path, lacking):
    """As those of faster-whisper's folders and of older fine-tunes do."""
    reference = wm.reference_model()
    folders = [wm.converted(reference, tmp_path / name) for name in ("model", "draft")]
    file = tmp_path / lacking / "ours" / "tokenizer.json"
    raw = json.loads(file.read_text())
    raw["added_tokens"] = [t for t in raw["added_tokens"] if t["id"] < wm.FIRST_STAMP]
    file.write_text(json.dumps(raw))
    samples, transcriber = features(1)[0, :, 0].repeat(160), Transcriber(*folders)
    options = TranscribeOptions("de", compression_ratio_threshold=None, logprob_threshold=None)
    both = [replace(options, num_draft=n) for n in (0, 3)]
    plain, drafted = (transcriber.transcribe(samples, each) for each in both)
    assert [s.tokens for s in drafted.segments] == [s.tokens for s in plain.segments]
    assert drafted.stats.accepted == drafted.stats.draft_tokens > 0  # timestamps among them


def test_steering_of_models_of_one_language():
    english = wm.special(is_multilingual=False)
    assert english.prefix("en", "transcribe") == [english.start]
    for language, task in (("de", "transcribe"), ("en", "translate")):
        with pytest.raises(InputError, match="English only"):
            english.prefix(language, task)
    with pytest.raises(InputError, match=r"no language 'xx'; there are \w+ \((en|de|fr)\)"):
        wm.special().language_code("xx")
    for name in ("German", "Deutsch", "allemand", "DE", "de-AT"):
        assert wm.special().language_code(name) == "de"


def test_pairs_that_hear_differently_do_not_go_together(tmp_path):
    model, _ = load(wm.converted(wm.reference_model(), tmp_path / "a"))
    other, _ = load(wm.converted(wm.reference_model(num_mel_bins=128), tmp_path / "b"))
    with pytest.raises(
        InputError, match="reads 128 bins and 60 frames, the model 80 bins and 60 frames"
    ):
        other.for_target(model)


def test_a_checkpoint_may_have_a_language_and_a_task_of_its_own_and_a_wrong_end():
    """As fine-tunes of 2022, whose config.json has English's end and forces German."""
    sizes = dict(vocab_size=wm.VOCAB, max_source_positions=wm.POSITIONS)
    config = SimpleNamespace(eos_token_ids=(50256,), **sizes)
    forced = {"forced_decoder_ids": [[1, wm.IDS["de"]], [2, wm.IDS["transcribe"]]]}
    special = Special.read(wm.tokenizer(), forced, config)
    assert (special.end, special.language) == (wm.END, "de") and special.languages
    assert special.task == "transcribe"
    forced["forced_decoder_ids"][1][1] = wm.IDS["translate"]
    assert Special.read(wm.tokenizer(), forced, config).task == "translate"
    assert wm.special(language="<|fr|>").language == "fr" and wm.special().language is None
    made = wm.tokenizer()
    assert Special.read(made, {}, config).languages
    made.add_tokens(["ĠSolidGoldMagikarp"])  # of GPT-2's vocabulary
    assert not Special.read(made, {}, config).languages
    assert Special.read(made, {"is_multilingual": True}, config).languages


def test_a_shortened_decoder_cannot_translate(tmp_path):
    folder = wm.converted(wm.reference_model(decoder_layers=1), tmp_path)
    transcriber = Transcriber(folder)
    assert transcriber.resolve(TranscribeOptions(language="auto")).language is None
    with pytest.raises(InputError, match="shortened decoder cannot translate"):
        transcriber.resolve(TranscribeOptions(task="translate"))
    transcriber.special = wm.special(task="translate")  # but one that was trained to may
    assert transcriber.resolve(TranscribeOptions()).task == "translate"
