"""Draft models made from their target: they share its encoder, embedding and head, and texts stay the same."""

import json
import threading
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from helpers.decoding import (
    RashSchedule,
    Stopping,
    decode_with,
    new_driver,
    new_rows,
    ragged_prompts,
    start,
    total,
)
from helpers.pairs import ours, with_states
from mlx.utils import tree_map
from tokenizers import Tokenizer, models

from decoder import SpeculativeDecoder, load
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.drafters.draft_model import ModelDrafter
from speculative.drafters.prompt_lookup import PromptLookup
from speculative.models.distilled import (
    from_target,
    own_weights,
    save,
    skeleton,
    target_states,
    type_of,
)
from speculative.step.cache import MASKED
from speculative.step.options import Options

OTHERS = ("umt5", "bart", "m2m", "t5gemma", "t5gemma2")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in OTHERS]
NAMES = ["t5", *SLOW]


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{}, dict(temp=0.9, seed=3, acceptance="coupled")])
def test_texts_are_those_without_a_draft_model(name, options):
    """In ragged batches in which rows join late, with drafts of any length and steps without one, and narrowed."""
    target = ours(name)
    prompts = ragged_prompts(9, 38)
    expected = decode_with(target, None, prompts, num_draft=0, max_tokens=20, **options)
    draft = with_states(target)
    narrow = draft.narrowed(mx.array(np.arange(38)))
    for model, schedule in ((draft, RashSchedule()), (narrow, Stopping(5, 0.2))):
        drafter = ModelDrafter(model, lookup=PromptLookup())
        rows = decode_with(target, drafter, prompts, 4, schedule, max_tokens=20, **options)
        assert [row.tokens for row in rows] == [row.tokens for row in expected]
        assert total(rows).draft_tokens


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("name", NAMES)
def test_a_draft_model_drafts_for_a_fine_tune_too(name, tmp_path, monkeypatch):
    """After a note; when it is trained further, its folder names the new target."""
    notes, dtype = [], "bfloat16" if name in ("t5", "bart", "t5gemma") else "float16"
    monkeypatch.setattr(reporter, "note", notes.append)
    target = ours(name)
    target.origin = "org/base"
    saved(target, tmp_path / "d", dtype)
    load(tmp_path / "d")[0].for_target(target)
    assert not notes
    mx.random.seed(1)
    tuned = tree_map(lambda w: w + 0.02 * w.std() * mx.random.normal(w.shape), target.parameters())
    target.update(tuned)
    target.origin = "tuned"
    draft = load(tmp_path / "d")[0].for_target(target)
    assert notes == ["d is made from t5-x: same texts, speed may differ"]
    prompts = ragged_prompts(6, 38)
    expected = decode_with(target, None, prompts, num_draft=0, max_tokens=20)
    rows = decode_with(target, ModelDrafter(draft), prompts, 4, RashSchedule(), max_tokens=20)
    assert [row.tokens for row in rows] == [row.tokens for row in expected]
    assert total(rows).draft_tokens
    save(draft, target, "tuned", tmp_path / "d", dtype)
    config = json.loads((tmp_path / "d/config.json").read_text())
    assert config["origin"] == config["draft_of"] == "tuned" and config["vocabulary"]
    load(tmp_path / "d")[0].for_target(target)
    assert len(notes) == 1


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("prefix", [[0], [0, 7, 9]])
def test_every_accepted_token_is_read_with_the_targets_state(prefix, monkeypatch):
    """After each step the draft model's cache holds what it would hold had it read the text in one call, with states
    behind the prefix only, however late it first drafts."""
    target = ours("t5")
    monkeypatch.setattr(target, "prefix", lambda prompt: prefix)
    draft = with_states(target, [1])
    drafter = ModelDrafter(draft)
    options = Options(max_tokens=24)
    driver = new_driver(target, drafter, options, RashSchedule())
    driver.admit(new_rows(target, ragged_prompts(3, 38), options))
    compared = 0
    while not all(row.finish_reason for row in driver.batch.rows):
        driver.advance()
        cache = drafter._cached.cache
        for b, row in enumerate(driver.batch.rows):
            if row.finish_reason or not cache:
                continue
            held = int(cache.lengths[b])
            alone = target.start([row.prompt])
            place = np.arange(held, dtype=np.int32)[None]
            alone.keep_states(target_states)
            target.states(mx.array([row.tokens[:held]]), place, alone)
            states = alone.states(place)
            once = draft.attend_to(*alone.encoded([0]))
            once.previous = mx.pad(states, [(0, 0), (1, 0), (0, 0)])[:, :-1]
            once.previous = once.previous * mx.array(place[0] >= row.prefix_size)[:, None]
            draft.states(mx.array([row.tokens[:held]]), place, once)
            slots = np.argsort(cache.position[b, : cache.cursor], kind="stable")[:held]
            assert cache.position[b, slots].tolist() == list(range(held))
            there = cache.keys[0][b][:, mx.array(slots)]
            assert mx.allclose(there, once.keys[0][0, :, :held], atol=1e-5)
            compared += held > 1
    assert compared > 10


@pytest.mark.usefixtures("cpu")
def test_the_encoder_runs_once_for_target_and_draft_model(monkeypatch):
    target = ours("t5")
    calls = []
    encode = type(target).encode
    monkeypatch.setattr(type(target), "encode", lambda *args: (calls.append(1), encode(*args))[1])
    prompts = ragged_prompts(6, 38)
    decode_with(target, ModelDrafter(with_states(target)), prompts, 2, num_draft=3, max_tokens=8)
    drafting = len(calls)
    calls.clear()
    decode_with(target, None, prompts, 2, num_draft=0, max_tokens=8)
    assert drafting == len(calls)


@pytest.mark.parametrize("bits", [None, 4])
def test_layers_of_a_quantized_target_are_its_own_unpacked(demo_folders, bits, tmp_path):
    target, tokenizer = load(demo_folders / "mlx_models/demo-target")
    saved(target, tmp_path / "d", "bfloat16")
    if bits:
        nn.quantize(target, 32, bits, class_predicate=lambda _, m: isinstance(m, nn.Linear))
    draft = from_target(target, [1])
    x = mx.random.normal((1, 3, target.config.d_model), key=mx.random.key(0))
    theirs = target.decoder.layers[1].attention.query(x)
    assert mx.allclose(draft.decoder.layers[0].attention.query(x), theirs, atol=1e-4)
    assert draft.embedding is target.embedding and draft.encoder is target.encoder
    tokenizer.add_tokens(["<sep>"])  # as fine-tunes do
    assert load(tmp_path / "d")[0].for_target(target).target_states
    target.text = replace(target.text, tokenizer=Tokenizer(models.Unigram([("<unk>", 0.0)], 0)))
    with pytest.raises(InputError, match="another vocabulary"):
        load(tmp_path / "d")[0].for_target(target)


def saved(model, folder, dtype="float32"):
    draft = with_states(model)
    save(draft, model, "t5-x", folder, dtype)
    return draft


@pytest.mark.usefixtures("cpu")
def test_a_folder_is_loaded_with_its_target_alone(decoder, tmp_path):
    model, tokenizer = decoder.model, decoder.tokenizer
    draft = saved(model, tmp_path / "x-draft")
    assert {file.name for file in (tmp_path / "x-draft").iterdir()} == {
        "weights.npz",
        "config.json",
    }
    loaded, _ = load(tmp_path / "x-draft")
    with pytest.raises(InputError, match="a draft model of t5-x: it writes no texts alone"):
        SpeculativeDecoder(loaded, tokenizer)
    ours_ = SpeculativeDecoder(model, tokenizer, loaded).draft_model
    for name, weight in own_weights(draft).items():
        assert mx.array_equal(own_weights(ours_)[name], weight)
    with pytest.raises(InputError, match="x-draft is a draft model of t5-x, and this model has"):
        loaded.for_target(ours("t5"))
    set_config(tmp_path / "x-draft", layers=[7])
    with pytest.raises(InputError, match="x-draft is a draft model of t5-x, and this model has"):
        load(tmp_path / "x-draft")[0].for_target(model)


def set_config(folder, **changes):
    """Change what the weights' file says of the draft model; without changes it says nothing."""
    with np.load(folder / "weights.npz") as file:
        arrays = dict(file)
    config = json.loads(arrays.pop("config").tobytes()) | changes
    if changes:
        arrays["config"] = np.frombuffer(json.dumps(config).encode(), np.uint8)
    np.savez(folder / "weights.npz", **arrays)


@pytest.mark.usefixtures("cpu")
def test_nobody_reads_a_part_of_one_model_and_a_part_of_another(tmp_path):
    """While two models of different shapes are saved in one folder."""
    target = ours("t5")
    seen, errors = set(), []

    def write(layers):
        draft = with_states(target, layers)
        mx.eval(own_weights(draft))
        try:
            for _ in range(15):
                save(draft, target, f"of {len(layers)}", tmp_path / "d", "float32")
        except Exception as error:
            errors.append(error)

    saved(target, tmp_path / "d")
    threads = [threading.Thread(target=write, args=(layers,)) for layers in ([0], [0, 1])]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        loaded, _ = load(tmp_path / "d")
        seen.add((loaded.draft_of, len(loaded.for_target(target).layers)))
    assert not errors and seen - {("t5-x", 1)} == {("of 1", 1), ("of 2", 2)}
    assert {path.name for path in (tmp_path / "d").iterdir()} == {"weights.npz", "config.json"}


def test_a_damaged_folder_is_an_input_error(tmp_path):
    """Wherever a byte of a weight is another one, or what describes them is missing."""
    target = ours("t5")
    weights = own_weights(saved(target, tmp_path / "d"))
    whole = (tmp_path / "d/weights.npz").read_bytes()
    for weight in weights.values():
        at = whole.index(np.array(weight).tobytes()) + weight.nbytes // 2
        changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        (tmp_path / "d/weights.npz").write_bytes(changed)
        with pytest.raises(InputError, match="d: damaged"):
            load(tmp_path / "d")
    (tmp_path / "d/weights.npz").write_bytes(whole)
    set_config(tmp_path / "d")
    with pytest.raises(InputError, match="d: damaged"):
        load(tmp_path / "d")


def test_weights_are_stored_in_the_targets_type(tmp_path):
    target = ours("t5")
    target.set_dtype(mx.bfloat16)
    assert type_of(target) == "bfloat16"
    saved(target, tmp_path / "d", type_of(target))
    assert {x.dtype for x in load(tmp_path / "d")[0].weights.values()} == {mx.bfloat16}


def test_a_full_disk_leaves_the_last_state(decoder, tmp_path, monkeypatch):
    folder = tmp_path / "d"
    saved(decoder.model, folder)
    before = (folder / "weights.npz").read_bytes()

    def full(*args, **arrays):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left on device"):
        saved(decoder.model, folder)
    assert (folder / "weights.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_states_of_tokens_that_the_target_lacks_are_zero():
    target = ours("t5")
    cache = target.start([[5, 6], [7]])
    cache.keep_states(target_states)
    assert cache.states(np.array([[0], [0]])) is None
    positions = np.array([[0, 1, 2], [0, 1, MASKED]], np.int32)
    tokens = mx.array([[0, 9, 8], [0, 9, 9]])
    target.decode(tokens, positions, cache)
    cache.keep(np.array([2, 1]))
    states = np.array(cache.states(np.array([[-1, 0, 1, 2], [0, 1, 2, MASKED - 1]])))
    assert (np.abs(states).sum(axis=2) > 0).tolist() == [[0, 1, 1, 0], [1, 0, 0, 0]]
    assert skeleton(target, [0]).target_states


@pytest.mark.usefixtures("cpu")
def test_long_accepted_drafts_are_not_read_as_a_prefill():
    """A draft model of all layers, which reads no states yet, is the target itself: all that it drafts passes."""
    target = ours("t5")
    drafter = ModelDrafter(from_target(target, range(len(target.decoder.layers))))
    driver = start(target, drafter, ragged_prompts(2, 38), num_draft=10, max_tokens=40)
    while not all(row.finish_reason for row in driver.batch.rows):
        driver.advance()
        offered = drafter.candidates([row.context for row in driver.batch.rows])
        assert not any(c.missing for candidates in offered for c in candidates)
    stats = total(driver.batch.rows)
    assert stats.accepted == stats.draft_tokens > 20
