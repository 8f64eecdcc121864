"""Beam search: texts and scores are those of transformers' generate(num_beams=N, do_sample=False).

Where two texts, or two beginnings at the edge of the beams, differ in score by less than float32 can tell, either
may win. The seeds here have no such ties: with others, a text that differs while its score is theirs is
a tie, and one with another score is a fault. Sums of float32 log-probabilities near 0 are alike to 2e-6 a token.
"""

import itertools

import numpy as np
import pytest
import torch
from helpers.decoding import Waiting, new_rows, ragged_prompts
from helpers.models import cached_logits, padded_inputs, random_model, until
from helpers.oracle import in_transformers
from helpers.pairs import RAW, both

from decoder import SpeculativeDecoder, Stats
from demo.pair import examples
from docs.tools import torch_ways
from speculative.step.beams import BeamBatch
from speculative.step.driver import Driver
from speculative.step.options import Options

ENDS = (1, 5)
VOCAB = 61
PROMPTS = ragged_prompts(12, VOCAB)
# With an end that is likelier than a random model has it, texts end at all lengths.
SOON = dict(max_tokens=14, logit_bias={1: 2.0, 5: 1.0})


def theirs(reference, **options) -> list[tuple[list[int], float]]:
    """(tokens, score) of each prompt's texts, from transformers; the end of sequence included."""
    pad, ends = reference.generation_config.pad_token_id, reference.generation_config.eos_token_id
    width, encoder = max(map(len, PROMPTS)), reference.config.is_encoder_decoder
    tokens, mask = np.full((len(PROMPTS), width), pad), np.zeros((len(PROMPTS), width), int)
    for b, prompt in enumerate(PROMPTS):
        place = slice(len(prompt)) if encoder else slice(width - len(prompt), width)
        tokens[b, place], mask[b, place] = prompt, 1
    output = reference.generate(
        input_ids=torch.tensor(tokens),
        attention_mask=torch.tensor(mask),
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **in_transformers(options),
    )
    ends, first = ends if isinstance(ends, list) else [ends], 1 if encoder else width
    texts = [until(ends, row[first:]) for row in output.sequences.tolist()]
    return list(zip(texts, output.sequences_scores.tolist(), strict=True))


def search(model, batch_size, **options):
    """The finished rows of our search: each prompt's texts, the best first."""
    settings = Options(**options)
    rows = new_rows(model, PROMPTS, settings)
    for row in rows:
        row.others = new_rows(model, [row.prompt] * (settings.num_samples - 1), settings)
    driver = Driver(BeamBatch(model, settings.num_beams))
    assert len(list(driver.decode(Waiting(rows), batch_size))) == len(rows)
    return [each for row in rows for each in (row, *row.others)]


def ours(model, batch_size, **options) -> list[tuple[list[int], float]]:
    return [(row.generated, row.text_score) for row in search(model, batch_size, **options)]


def differ(texts, expected) -> list[int]:
    """The places where a text or a score is another."""
    assert len(texts) == len(expected)
    return [
        i
        for i, ((text, score), (right, its)) in enumerate(zip(texts, expected, strict=True))
        if text != right or score != pytest.approx(its, rel=1e-5, abs=5e-4)
    ]


def pair(variant: str, ends=ENDS):
    """A model, and the same in transformers, which wants stacks of one height. Its logits are spread, so that
    texts hang on more than on their length, and no two scores are nearly equal."""
    model = random_model(variant, num_decoder_layers=2, eos_token_id=list(ends))
    spread = cached_logits(model, *padded_inputs(VOCAB), 30).std()
    model.decoder.norm.weight = model.decoder.norm.weight * (3 / spread)
    return model, torch_ways.in_transformers(model)


@pytest.fixture(scope="module")
def models():
    return pair("ul2")


def compare(models, batch_size, **options):
    """Ours, after it has been found to be theirs."""
    texts = ours(models[0], batch_size, **options)
    assert differ(texts, theirs(models[1], **options)) == []
    return texts


@pytest.mark.parametrize(
    ("beams", "penalty", "early", "batch_size"),
    [(2, 1.0, True, 5), (4, 0.5, False, 3), (4, 2.0, "never", 12), (5, -0.5, "never", 1)],
)
def test_texts_and_scores_are_those_of_transformers(models, beams, penalty, early, batch_size):
    options = dict(num_beams=beams, length_penalty=penalty, early_stopping=early, num_samples=2)
    texts = compare(models, batch_size, **options, **SOON)
    assert len({len(text) for text, _ in texts}) > 2


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["t5", "one end"])
def test_every_length_penalty_and_way_to_stop(variant):
    models = pair("ul2", ENDS[:1]) if variant == "one end" else pair(variant)
    ways = itertools.product((0.5, 1.0, 2.0, -0.5, 0.0), (False, True, "never"))
    for i, (penalty, early) in enumerate(ways):
        beams = (2, 4, 5)[(i + i // 3) % 3]
        options = dict(num_beams=beams, length_penalty=penalty, early_stopping=early)
        compare(models, 5, **options, **SOON, num_samples=2)


def test_processors_see_log_probabilities(models):
    controls = dict(repetition_penalty=1.4, no_repeat_ngram_size=2, min_tokens=4)
    controls |= dict(forced_bos_token_id=17, forced_eos_token_id=1, suppress_tokens=[12, 33])
    words = [[7], [39], [9, 11], [32, 32], [56]]
    compare(models, 5, num_beams=4, num_samples=2, max_tokens=9, bad_words_ids=words, **controls)


def test_rows_come_and_go_and_a_batch_shrinks(models):
    """As alone, whatever the size of the batch; and the steps are counted."""
    options = dict(num_beams=3, length_penalty=0.2, **SOON)
    alone = ours(models[0], 1, **options)
    for batch_size in (2, 12):
        assert differ(ours(models[0], batch_size, **options), alone) == []
    rows = search(models[0], 5, **options)
    for row in rows:
        assert row.stats.tokens == len(row.generated) <= row.stats.target_calls
        assert row.origins == ["target"] * len(row.generated)
        assert row.stats.seconds > 0 and row.stats.encoding_seconds > 0
        assert row.finish_reason == ("stop" if row.generated[-1] in ENDS else "length")
    assert {row.finish_reason for row in rows} == {"stop", "length"}


def test_where_nothing_may_be_written_the_text_is_empty(models):
    row, *_ = search(models[0], 5, num_beams=2, suppress_tokens=list(range(VOCAB)))
    assert (row.generated, row.finish_reason, row.text_score) == ([], "none", -1e9)


def test_beams_that_have_no_text_say_so(demo_pair):
    options = dict(regex="two", num_beams=4, num_samples=4)
    responses = SpeculativeDecoder(*demo_pair[:2]).batch_generate(["x"], **options)
    assert [(r.text, r.finish_reason) for r in responses] == [("two", "stop")] * 3 + [("", "none")]


def test_responses_are_the_best_texts_and_their_scores(demo_pair):
    decoder = SpeculativeDecoder(*demo_pair)
    prompts, options = [example.prompt for example in examples(1)], dict(num_beams=3, max_tokens=12)
    responses = decoder.batch_generate(prompts, 2, num_samples=2, **options)
    assert [r.sample for r in responses] == [0, 1] * len(prompts)
    best, second, *_ = responses
    assert best.text != second.text and best.score > second.score
    assert "".join(best.texts) == best.text and best.mean_logprob is None
    (whole,) = decoder.stream_generate(prompts[0], **options)
    assert (whole.tokens, whole.text) == (best.tokens, best.text)
    assert whole.score == pytest.approx(best.score, abs=1e-5)
    total = sum((r.stats for r in responses), Stats())
    assert total.tokens == sum(len(r.tokens) for r in responses) and total.draft_tokens == 0


# ---------------------------------------------------------------------------------------------
# Other families


SHORT = dict(max_tokens=12, num_samples=2)
WAYS = [
    dict(num_beams=2, length_penalty=0.5, early_stopping=False, **SHORT),
    dict(num_beams=5, length_penalty=-0.5, early_stopping="never", **SHORT),
]


@pytest.mark.slow
def test_barts_family():
    """With what BART's checkpoints ask for: no 3-gram twice, a least length, a forced first and last token."""
    raw = RAW["bart"] | dict(decoder_layers=2)
    reference, model = both(raw)
    reference.generation_config.forced_eos_token_id = None  # as its config has it
    end = raw["eos_token_id"]
    controls = dict(no_repeat_ngram_size=3, min_tokens=3, forced_bos_token_id=7)
    for options in WAYS:
        compare((model, reference), 5, **options, logit_bias={end: 3.0})
        compare((model, reference), 5, **options, **controls, forced_eos_token_id=end)


@pytest.mark.slow
def test_a_decoder_only_model_of_mlx_lm():
    """Prompts of 1 to 20 tokens, which transformers fills up on the left."""
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: requirements-apps.txt")
    from helpers.causal_models import arguments, build
    from mlx.utils import tree_flatten
    from mlx_lm.models import llama
    from transformers import LlamaConfig, LlamaForCausalLM

    from speculative.models.causal import CausalModel

    changes = dict(num_hidden_layers=2, tie_word_embeddings=False)
    lm = build("llama", **changes)
    config = arguments(llama, **changes) | dict(eos_token_id=1, pad_token_id=0)
    del config["sliding_window"]  # of which transformers' cache makes more than its Llama
    reference = LlamaForCausalLM(LlamaConfig(**config)).eval()
    weights = {name: torch.tensor(np.array(w)) for name, w in tree_flatten(lm.parameters())}
    reference.load_state_dict(weights)
    model = CausalModel(lm, [1], 0)
    for options in WAYS:
        controls = dict(logit_bias={1: 3.0}, no_repeat_ngram_size=2)
        compare((model, reference), 5, **options, **controls)
