"""Draft vocabularies: the draft model scores some tokens only, and texts stay the same."""

import json

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from helpers.causal_models import build
from helpers.decoding import decode_with, ragged_prompts, total
from helpers.laws import LIMIT, TableModel, decoded, deviation_of, joint_law
from helpers.oracle import disturbed
from helpers.pairs import ours
from helpers.programs import call

from apps.cli.flags import read_draft_vocabulary
from decoder import Options, SpeculativeDecoder
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.drafters.draft_model import ModelDrafter
from speculative.drafters.draft_vocabulary import MAX_MISSES, MIN_TOKENS, DraftVocabulary
from speculative.drafters.prompt_lookup import PromptLookup
from speculative.models.causal import CausalModel
from speculative.step.draft import Candidate
from speculative.step.sampling import probabilities
from speculative.step.schedule import Schedule
from speculative.text.tokenizer import byte_tokenizer, completion

COUPLED = dict(temp=0.9, top_p=0.9, seed=3, acceptance="coupled")


def pair(name: str, bits: int | None = None):
    """A model with random weights, and a draft model that often agrees with it."""
    if name in ("qwen3", "llama"):  # tied, untied
        tied = dict(tie_word_embeddings=name == "qwen3")
        models = [CausalModel(build(name, noise=noise, **tied)) for noise in (0.0, 0.05)]
    else:
        target = ours(name)
        models = [target, disturbed(target, 0.05)]
    if bits:

        def whole_groups(_, module) -> bool:
            return hasattr(module, "to_quantized") and module.weight.shape[-1] % 32 == 0

        nn.quantize(models[1], 32, bits, class_predicate=whole_groups)
    return models


PENALTY = dict(repetition_penalty=1.3)

# Families narrow their heads each in its own way, and what becomes of it is the same for all: all options for one.
SLOW = [
    pytest.param(*each, marks=pytest.mark.slow)
    for each in (
        *(("v1.1", 8, COUPLED), ("m2m", None, {}), ("marian", None, PENALTY), ("bart", None, {})),
        *(("t5gemma", None, COUPLED), ("qwen3", None, {}), ("llama", 8, PENALTY)),
        *(("t5", None, COUPLED), ("t5", None, PENALTY)),
    )
]


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize(("name", "bits", "options"), [("t5", None, {}), *SLOW])
def test_texts_are_those_without_a_draft_model(name, bits, options):
    """And the draft model's logits are the whole one's, where it has any."""
    target, draft = pair(name, bits)
    size, rng = target.config.vocab_size, np.random.default_rng(0)
    source, tokens, at = [[5, 6, 7]], mx.array([[4, 9]]), np.array([[3, 4]], np.int32)
    prompts = ragged_prompts(5, min(size, 50))
    plain = [row.tokens for row in decode_with(target, None, prompts, max_tokens=24, **options)]
    accepted = []
    for share in (0.01, 1):
        scored = set(rng.permutation(size)[: max(2, int(share * size))].tolist())
        narrowed = draft.narrowed(mx.array(sorted(scored)))
        whole, narrow = (m.decode(tokens, at, m.start(source)) for m in (draft, narrowed))
        assert mx.allclose(narrow, whole[..., mx.array(sorted(scored))], 1e-4, 1e-4)
        vocabulary = DraftVocabulary(draft, size, scored)
        drafter = ModelDrafter(draft, size, vocabulary=vocabulary)
        rows = decode_with(target, drafter, prompts, 3, num_draft=3, max_tokens=24, **options)
        assert [row.tokens for row in rows] == plain
        accepted.append(total(rows).accepted)
        both = ModelDrafter(draft, size, vocabulary, lookup=PromptLookup())
        rows = decode_with(target, both, prompts, num_draft="auto", max_tokens=24, **options)
        assert [row.tokens for row in rows] == plain
    assert accepted[0] < accepted[1]


@pytest.mark.slow
def test_samples_have_the_targets_law():
    class Narrow(TableModel):
        def narrowed(self, ids):
            narrow = Narrow(1)
            narrow.logits = self.logits[:, np.array(ids)]
            return narrow

    draft, settings = Narrow(1), dict(temp=0.8, top_p=0.95)
    drafter = ModelDrafter(draft, vocabulary=DraftVocabulary(draft, 4, {1, 3}))
    options = Options(num_draft=3, max_tokens=3, acceptance="block", seed=1, **settings)
    law = joint_law(np.array(probabilities(mx.array(TableModel(0).logits), **settings)), 3)
    rows = decoded(options, drafter)
    assert 0 < total(rows).accepted < total(rows).draft_tokens
    assert deviation_of(rows, law) < LIMIT


class Counted:
    """A model that tells which tokens it was narrowed to."""

    def narrowed(self, ids):
        return ids.tolist()


def test_a_vocabulary_is_learned_for_each_language():
    vocabulary = DraftVocabulary(Counted(), 900)
    common, rare = [*range(10)] * (MIN_TOKENS // 10), list(range(200, 400))
    vocabulary.learn([*common, *rare], "de")
    assert vocabulary.narrowed({"de"}) is None  # more is to be expected
    vocabulary.learn([*common, *common, *common, 999], "de")
    assert vocabulary.narrowed({"de"}).model == [*range(10), *rare]
    assert vocabulary.narrowed({"de", "fr"}) is None
    vocabulary.learn([70, 71] * MIN_TOKENS, "fr")
    assert vocabulary.narrowed({"fr"}).model == [70, 71]
    both = vocabulary.narrowed({"de", "fr"})
    assert both.model == [*range(10), 70, 71, *rare] and vocabulary.narrowed({"de"}) is both
    vocabulary.learn([5, 80] * (MAX_MISSES - 1), "de")
    assert vocabulary.narrowed({"de"}) is both
    vocabulary.learn([80], "de")
    assert 80 in vocabulary.narrowed({"de"}).tokens
    assert str(vocabulary) == "draft vocabulary: 211 of 900 tokens"


def test_costs_and_chances_are_learned_apart():
    """A narrowed draft model is another drafter: what the whole one took says nothing of it."""
    schedule = Schedule(100)
    whole, narrow = (Candidate(drafter, 50, state="new") for drafter in ("model", "narrowed"))
    for candidate in (whole, narrow):
        schedule.plan([[candidate]], [50])
        costs = schedule._costs_for(1)
        for _ in range(40):
            costs.add(1, 1, 3.0 if candidate is whole else 1.0, False)
    of_each = []
    for candidate in (whole, narrow):
        schedule.plan([[candidate]], [50])
        seconds, draft, *_ = schedule._costs_for(1).estimate()
        of_each.append(seconds[1] + draft)
    assert of_each[0] > 2.9 > 1.1 > of_each[1]


def test_the_tokens_of_files(tmp_path, monkeypatch):
    tokenizer, notes = byte_tokenizer(), []
    monkeypatch.setattr(reporter, "note", notes.append)
    files = {
        "a.txt": b"ab\n\xff\nb\n",
        "a.jsonl": json.dumps({"prompt": "x", "text": "ab"}).encode() + b"\n{\n",
        "a.tsv": b"x\tab\nx\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        tokens = read_draft_vocabulary(str(tmp_path / name), tokenizer)
        assert tokens == {ord("a") + 3, ord("b") + 3}
    assert [", line 2: " in note for note in notes] == [True, True]


def test_what_any_text_needs_is_kept(demo_pair):
    tokenizer = demo_pair[1]
    tokens = completion(tokenizer)([tokenizer.token_to_id("▁the")])
    assert {0, 1, 2, *(tokenizer.token_to_id(c) for c in ("a", "Z", "▁"))} <= tokens
    assert len(tokens) < 0.3 * tokenizer.get_vocab_size()
    assert len(completion(byte_tokenizer())([])) == byte_tokenizer().get_vocab_size()


def test_commands(demo_pair, demo_folders, tmp_path):
    (tmp_path / "texts.txt").write_text("eintausend\nzweihundert\n")
    prompt = ("-p", "translate number to German: 1284", "--verbose")
    for value in ("auto", tmp_path / "texts.txt"):
        result = call(*prompt, "--draft-vocabulary", value, cwd=demo_folders)
        assert result.stdout == "eintausendzweihundertvierundachtzig\n"
        assert "\ndraft vocabulary: " in result.stderr
    result = call(*prompt, "--draft-vocabulary", "missing.txt", cwd=demo_folders)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    result = call(*prompt, "--model", "x", "--draft-vocabulary", "auto", cwd=demo_folders)
    assert (result.returncode, result.stdout) == (2, "")
    model, tokenizer, draft = demo_pair
    for wrong in ("all", [], [-1], ["a"]):
        with pytest.raises(InputError, match="neither token ids nor 'auto'"):
            SpeculativeDecoder(model, tokenizer, draft, draft_vocabulary=wrong)
    with pytest.raises(InputError, match="a draft vocabulary needs a draft model"):
        SpeculativeDecoder(model, tokenizer, draft_vocabulary="auto")
