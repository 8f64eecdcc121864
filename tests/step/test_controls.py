"""Stop texts, log-probabilities, several samples, and a checkpoint's own settings, on the embedded pair."""

import json
import random
import shutil

import numpy as np
import pytest
import torch
from helpers.models import reference_texts
from helpers.programs import ANSWER, DEMO, PROMPT, call
from transformers import T5ForConditionalGeneration

from decoder import batch_generate, generate, load, stream_generate
from demo.pair import examples
from speculative.common.errors import InputError
from speculative.models.conversion import convert
from speculative.step.options import Options
from speculative.step.sampling import BANNED
from speculative.text.generation import GenerationDefaults
from speculative.text.rows import TextStream

WAYS = [(False, 4, 3), (True, 6, 8), (True, "auto", 1)]  # lookup, num_draft, batch size


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    return [example.prompt for example in examples(2)]


def test_text_ends_before_the_first_stop_however_it_comes(demo_pair):
    """Against the whole text, cut: stops within a token, over several, at the start, of which one begins
    another, and none."""
    _, tokenizer, _ = demo_pair
    rng = random.Random(0)
    stopped = 0
    for _ in range(400):
        tokens = [rng.randrange(3, 60) for _ in range(rng.randint(1, 12))]
        whole = tokenizer.decode(tokens, skip_special_tokens=False)
        places = [rng.randrange(len(whole) + 1) for _ in range(rng.randint(1, 3))]
        stops = [s for i in places if (s := whole[i : i + rng.randint(1, 6)])] or ["zz"]
        stream, pieces = TextStream(tokenizer, (), stops), []
        while tokens and not stream.stopped:
            pieces.append(stream.push([tokens.pop(0)]))
        ends = [(i + len(stop), i) for stop in stops if (i := whole.find(stop)) >= 0]
        end = min(ends, default=(0, len(whole)))[1]
        assert "".join(pieces) + stream.finish() == whole[:end], (whole, stops)
        stopped += bool(tokens)
    assert stopped > 100


@pytest.mark.parametrize(("lookup", "num_draft", "batch_size"), WAYS)
def test_stops_cut_the_text_of_every_drafter(demo_pair, prompts, lookup, num_draft, batch_size):
    target, tokenizer, draft = demo_pair
    options = dict(draft_model=draft, lookup=lookup, num_draft=num_draft)
    whole = batch_generate(target, tokenizer, prompts)
    middle = [r.text[len(r.text) // 2 :][:3] for r in whole]  # hardly ever where a token begins
    stops = [*middle, "never there"]
    responses = batch_generate(
        target, tokenizer, prompts, batch_size=batch_size, stop=stops, **options
    )
    for response, plain in zip(responses, whole, strict=True):
        matches = [(i + len(stop), i) for stop in stops if (i := plain.text.find(stop)) >= 0]
        assert response.finish_reason == "stop" and response.text == plain.text[: min(matches)[1]]
        assert response.tokens == plain.tokens[: len(response.tokens)]
    pieces = stream_generate(target, tokenizer, prompts[0], stop=middle[0], **options)
    assert "".join(r.text for r in pieces) == whole[0].text.partition(middle[0])[0]


@pytest.mark.parametrize("num_draft", [0, 4])
def test_a_stop_token_ends_the_text_and_is_not_in_it(demo_pair, num_draft):
    """Nor does it come before `min_tokens`, and beams do not know it."""
    target, tokenizer, draft = demo_pair
    ids = tokenizer.encode(ANSWER).ids
    settings = dict(draft_model=draft, num_draft=num_draft, stop_token_ids=[ids[3], ids[5]])
    assert generate(target, tokenizer, PROMPT, **settings) == tokenizer.decode(ids[:3])
    later = generate(target, tokenizer, PROMPT, **settings, min_tokens=5)
    assert len(tokenizer.encode(later).ids) > 5
    with pytest.raises(InputError, match="stop_token_ids cannot be used with num_beams"):
        generate(target, tokenizer, PROMPT, stop_token_ids=[3], num_beams=2)


def test_what_is_banned_has_a_log_probability_that_json_can_hold(demo_pair):
    """It was minus infinity, or no number."""
    target, tokenizer, draft = demo_pair
    banned = range(target.config.vocab_size - 1)
    for options in (dict(forced_bos_token_id=7), dict(suppress_tokens=[*banned])):
        options |= dict(logprobs=3, max_tokens=3, num_draft=2)
        (response,) = batch_generate(target, tokenizer, [PROMPT], draft, **options)
        assert response.logprobs[0] == 0
        scores = [score for best in response.top_logprobs for _, score in best]
        assert min(scores) == BANNED
        json.dumps([response.logprobs, scores], allow_nan=False)


@pytest.mark.parametrize("settings", [{}, dict(repetition_penalty=1.5, no_repeat_ngram_size=2)])
def test_logprobs_are_transformers_own(demo_pair, prompts, settings):
    target, tokenizer, draft = demo_pair
    reference = T5ForConditionalGeneration.from_pretrained(DEMO / "target", dtype=torch.float32)
    settings_of_theirs = settings | dict(output_scores=True, return_dict_in_generate=True)
    sources = [torch.tensor([tokenizer.encode(prompt).ids]) for prompt in prompts]
    of_theirs = [
        reference.generate(source, max_new_tokens=12, **settings_of_theirs) for source in sources
    ]
    for lookup, num_draft, batch_size in WAYS:
        options = settings | dict(lookup=lookup, num_draft=num_draft, max_tokens=12, logprobs=3)
        responses = batch_generate(target, tokenizer, prompts, draft, batch_size, **options)
        for theirs, response in zip(of_theirs, responses, strict=True):
            assert response.tokens == theirs.sequences[0, 1:].tolist()
            expected = torch.log_softmax(torch.cat(theirs.scores), -1).numpy()
            of_tokens = np.take_along_axis(expected, np.array(response.tokens)[:, None], -1)[:, 0]
            np.testing.assert_allclose(response.logprobs, of_tokens, atol=1e-4)
            assert response.mean_logprob == pytest.approx(of_tokens.mean(), abs=1e-4)
            for of_token, row in zip(response.top_logprobs, expected, strict=True):
                ids, values = zip(*of_token, strict=True)
                np.testing.assert_allclose(values, np.sort(row)[:-4:-1], atol=1e-4)
                np.testing.assert_allclose(values, row[list(ids)], atol=1e-4)
    for logprobs, best in ((None, None), (0, [[]] * 3)):
        (response,) = batch_generate(target, tokenizer, [PROMPT], logprobs=logprobs, max_tokens=3)
        assert response.top_logprobs == best and (response.logprobs is None) == (best is None)


def test_samples_share_the_reading_and_are_those_of_a_list(demo_pair, prompts, monkeypatch):
    target, tokenizer, draft = demo_pair
    batch_sizes, start = [], type(target).start
    monkeypatch.setattr(
        type(target),
        "start",
        lambda self, prompts: batch_sizes.append(len(prompts)) or start(self, prompts),
    )
    options = dict(temp=4.0, seed=3, max_tokens=20)
    samples = batch_generate(target, tokenizer, [prompts[0]], num_samples=5, **options)
    assert batch_sizes == [1]
    assert [r.sample for r in samples] == list(range(5)) and len({r.text for r in samples}) == 5
    several = batch_generate(target, tokenizer, prompts, draft, 4, num_samples=3, **options)
    listed = [prompt for prompt in prompts for _ in range(3)]
    expected = batch_generate(target, tokenizer, listed, batch_size=2, **options)
    assert [r.text for r in several] == [r.text for r in expected]
    with pytest.raises(InputError, match="num_samples above 1 is for batch_generate"):
        generate(target, tokenizer, "x", temp=1.0, num_samples=2)


# ---------------------------------------------------------------------------------------------
# A checkpoint's own settings

SETTINGS = dict(no_repeat_ngram_size=2, repetition_penalty=1.3, min_length=9, max_length=11)
SETTINGS |= dict(forced_eos_token_id=[1], bad_words_ids=[[24, 9], [5]], num_beams=4)


def checkpoint(folder, legacy: bool):
    """The embedded target with generation settings, in their own file or, as of old, in config.json."""
    shutil.copytree(DEMO / "target", folder)
    config = json.loads((folder / "config.json").read_text())
    ids = {key: config[key] for key in ("eos_token_id", "pad_token_id", "decoder_start_token_id")}
    if legacy:
        (folder / "config.json").write_text(json.dumps(config | SETTINGS))
    else:
        (folder / "generation_config.json").write_text(json.dumps(ids | SETTINGS))
    return folder


@pytest.mark.parametrize("legacy", [False, True])
def test_a_checkpoints_settings_are_what_transformers_makes_of_them(tmp_path, prompts, legacy):
    source = checkpoint(tmp_path / "hub", legacy)
    model, tokenizer = load(convert(str(source), tmp_path / "ours", dtype="float32"))
    reference = T5ForConditionalGeneration.from_pretrained(source, dtype=torch.float32)
    tokens = [tokenizer.encode(prompt).ids for prompt in prompts]
    expected = reference_texts(reference, tokens, None, [1], num_beams=1)
    responses = batch_generate(model, tokenizer, prompts)
    assert [r.tokens for r in responses] == expected
    assert {r.generation_tokens for r in responses} <= {9, 10}
    with pytest.warns(UserWarning, match=r"^ignored from generation_config.json: num_beams=4$"):
        generate(model, tokenizer, prompts[0], max_tokens=1)
    # What is asked for wins.
    neutral = dict(no_repeat_ngram_size=0, repetition_penalty=1, min_tokens=0, max_tokens=40)
    neutral |= dict(forced_eos_token_id=-1, bad_words_ids=[])
    plain, tokenizer = load(convert(str(DEMO / "target"), tmp_path / "plain", dtype="float32"))
    unset = [r.text for r in batch_generate(plain, tokenizer, prompts, max_tokens=40)]
    assert [r.text for r in batch_generate(model, tokenizer, prompts, **neutral)] == unset


def test_what_is_taken_is_told(tmp_path):
    convert(str(checkpoint(tmp_path / "hub", False)), tmp_path / "ours", dtype="float32")
    prompt = "repair: The kign sees the the old house near the river in summer."
    arguments = ("--model", "ours", "--prompt", prompt, "--verbose", "--no-repeat-ngram-size", "0")
    ran = call(*arguments, cwd=tmp_path)
    assert ran.returncode == 0
    first, second, third, *_ = ran.stderr.splitlines()
    assert first == "ignored from generation_config.json: num_beams=4 (use --num-beams 4)"
    assert second.startswith("used from generation_config.json: ")
    assert "repetition_penalty=1.3" in second and "no_repeat_ngram_size" not in second
    assert third == "1 of 1 outputs cut short after at most 10 tokens; see --max-tokens"


def test_settings_that_cannot_be_or_are_not_supported_are_named(tmp_path):
    settings = dict(stop_strings=["und"], sequence_bias={}, num_beam_groups=1, do_sample=True)
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    assert GenerationDefaults.load(tmp_path).not_done == dict(stop_strings=["und"])
    for name, value in dict(max_length=-3, bad_words_ids=[5]).items():
        (tmp_path / "generation_config.json").write_text(json.dumps({name: value}))
        with pytest.raises(InputError, match=f"generation_config.json: {name} is "):
            GenerationDefaults.load(tmp_path)


def test_settings_are_filled_in_where_they_count():
    """Lengths count what a row begins with; settings of beams are for those who ask for beams."""
    generation = GenerationDefaults({"min_length": 10, "max_length": 20, "max_new_tokens": 7})
    assert generation.with_defaults(Options(), prefix_size=2) == Options(min_tokens=8, max_tokens=7)
    generation = GenerationDefaults(dict(length_penalty=2.0, early_stopping=True))
    own = Options(num_beams=4, length_penalty=0.5)
    assert (
        generation.with_defaults(Options(), 1) == Options() and generation.applied(Options()) == {}
    )
    assert generation.with_defaults(own, 1) == Options(
        num_beams=4, length_penalty=0.5, early_stopping=True
    )
    assert generation.applied(own) == dict(early_stopping=True)
