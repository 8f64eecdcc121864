"""generate, stream_generate and batch_generate on the embedded pair."""

import dataclasses
import random

import numpy as np
import pytest
import torch
from helpers.models import reference_texts
from helpers.oracle import flat_weights
from helpers.programs import DEMO
from transformers import T5ForConditionalGeneration

from decoder import Options, SpeculativeDecoder, Stats, batch_generate, generate, stream_generate
from demo.training.tasks import SHORT_KINDS, held_out_example
from model import T5
from speculative.common.errors import InputError
from speculative.models.causal import DecoderOnly
from speculative.step.sampling import RowSeeds
from speculative.text.text_side import TextSide
from speculative.text.tokenizer import byte_tokenizer


def examples(count: int, kind: str) -> list:
    rng = random.Random(5)
    return [held_out_example(rng, kind) for _ in range(count)]


# Drafters by their options, numbers of drafted tokens, batches.
WAYS = [
    ("none", 0, 8),
    ("model", 3, 8),
    ("model", 4, 1),
    ("model", 7, 3),
    ("model", "auto", 8),
    ("lookup", 6, 8),
    ("lookup", "auto", 3),
    ("both", 3, 3),
    ("both", "auto", 1),
]


def test_every_way_writes_what_transformers_writes(demo_pair):
    target, tokenizer, draft = demo_pair
    reference = T5ForConditionalGeneration.from_pretrained(DEMO / "target", dtype=torch.float32)
    prompts = [e.prompt for kind in SHORT_KINDS for e in examples(3, kind)]
    prompts += [e.prompt for e in examples(2, "paragraph")]
    tokens = [tokenizer.encode(prompt).ids for prompt in prompts]
    expected = reference_texts(reference, tokens, 256, [1])
    partial = 0
    for drafter, num_draft, batch_size in WAYS:
        options = dict(lookup=drafter in ("lookup", "both"), num_draft=num_draft)
        options["draft_model"] = draft if drafter in ("model", "both") else None
        responses = batch_generate(target, tokenizer, prompts, batch_size=batch_size, **options)
        assert [r.tokens for r in responses] == expected, (options, batch_size)
        assert generate(target, tokenizer, prompts[-1], **options) == responses[-1].text
        if num_draft != "auto":
            lengths = sum((r.stats for r in responses), Stats()).accepted_lengths
            partial += sum(lengths[n] for n in range(1, num_draft))
    assert partial > 50


def test_stream_is_the_text_in_pieces(demo_pair):
    target, tokenizer, draft = demo_pair
    prompt = examples(1, "sentence")[0].prompt
    responses = list(stream_generate(target, tokenizer, prompt, draft, num_draft=3))
    (whole,) = batch_generate(target, tokenizer, [prompt])
    assert "".join(r.text for r in responses) == whole.text
    assert [t for r in responses for t in r.tokens] == whole.tokens
    assert len(responses) > 1
    assert [r.finish_reason for r in responses] == [None] * (len(responses) - 1) + ["stop"]
    last = responses[-1]
    assert last.generation_tokens == len(whole.tokens)
    assert last.prompt_tokens == len(tokenizer.encode(prompt).ids)
    assert last.stats.target_calls == len(responses)
    assert last.stats.accepted == sum(sum(r.from_draft) for r in responses) > 0
    assert all(r.from_draft[:-1] == [True] * (len(r.tokens) - 1) for r in responses)
    assert last.stats.seconds > 0 and last.stats.preparing_seconds > 0
    calls = [r.stats.target_calls for r in responses]
    assert calls == list(range(1, len(responses) + 1))  # a response is of its moment


def test_a_draft_never_proposes_what_the_target_has_no_row_for(demo_pair):
    """A target of fewer rows than its tokenizer has pieces: the draft's logits are cut to them."""
    target, tokenizer, draft = demo_pair
    narrow = T5(dataclasses.replace(target.config, vocab_size=600))
    weights = dict(flat_weights(target))
    weights["embedding.weight"] = weights["embedding.weight"][:600]
    narrow.load_weights(list(weights.items()))
    prompt = "repair: The kign."  # all of its pieces are below 600
    assert max(tokenizer.encode(prompt).ids) < 600
    fed, decode = [], narrow.decode

    def spy(tokens, positions, cache):
        fed.append(tokens.max().item())
        return decode(tokens, positions, cache)

    narrow.decode = spy
    options = dict(temp=3.0, seed=0, max_tokens=40, acceptance="coupled")
    plain = generate(narrow, tokenizer, prompt, **options)
    assert generate(narrow, tokenizer, prompt, draft, **options) == plain
    assert 500 < max(fed) < 600


def test_a_fresh_seed_makes_the_same_texts_again_also_of_token_ids(demo_pair):
    target, tokenizer, draft = demo_pair
    texts, options = ["x", "the sun", "x"], dict(temp=2.0, max_tokens=12)
    ids = [tokenizer.encode(text).ids for text in texts]
    first, second = (batch_generate(target, tokenizer, ids, **options) for _ in range(2))
    seed = first[0].seed
    mixed = [texts[0], *map(tuple, ids[1:])]
    repeated = batch_generate(target, tokenizer, mixed, draft, seed=seed, **options)
    assert [each.seed for each in repeated] == [seed] * 3 and second[0].seed != seed
    for each in (first, repeated):
        assert [r.text for r in each] == [r.text for r in first] != [r.text for r in second]
        assert [r.prompt for r in each] == texts


def test_wrong_arguments_are_named(demo_pair):
    target, tokenizer, draft = demo_pair
    pair, continuing = (draft, tokenizer), DecoderOnly()
    continuing.config, continuing.decode = draft.config, draft.decode
    continuing.text = TextSide(tokenizer)
    for arguments, options, message in [
        ((target, tokenizer, " \n"), {}, "the prompt is empty"),
        ((target, tokenizer, "a \udcff b"), {}, "not valid Unicode"),
        ((target, tokenizer, []), {}, "the prompt is empty"),
        ((target, tokenizer, [5, "a"]), {}, "the prompt is list, not text, messages or token ids"),
        ((target, tokenizer, b"x"), {}, "the prompt is bytes, not text, messages or token ids"),
        ((target, tokenizer, [5, 10**6]), {}, "the token 1000000, the model 1056 tokens"),
        ((target, tokenizer, "x"), dict(num_draft=-1), "num_draft is -1"),
        ((target, byte_tokenizer(), "x", draft), {}, "a different vocabulary"),
        (("mlx_models/t5", tokenizer, "x"), {}, r"model is a str, not a model; load\(\) returns"),
        ((target, draft, "x"), {}, "tokenizer is a T5, not a tokenizer"),
        ((target, tokenizer, "x", pair), {}, "draft_model is a tuple, not a model"),
        ((target, tokenizer, "x", T5(draft.config)), {}, "the draft model has no tokenizer"),
        ((target, tokenizer, "x", continuing), {}, "the model has an encoder: its draft model"),
    ]:
        with pytest.raises(InputError, match=message):
            generate(*arguments, **options)
    with pytest.raises(TypeError, match="num_drafts"):
        generate(target, tokenizer, "x", num_drafts=3)
    with pytest.raises(InputError, match="the prompt is int, not text"):
        batch_generate(target, tokenizer, ["x", 3])
    for prompts in ("12", 12):
        with pytest.raises(InputError, match=r"prompts is a .*, not a list of texts"):
            batch_generate(target, tokenizer, prompts)
    for size in (True, 1.0, np.int64(0)):
        with pytest.raises(InputError, match=r"batch_size is .*, not a whole number from 1 to"):
            batch_generate(target, tokenizer, ["x"], batch_size=size)
    assert len(batch_generate(target, tokenizer, ["x"] * 2, batch_size=np.int64(3))) == 2
    assert batch_generate(target, tokenizer, []) == []


def test_a_row_has_only_what_its_options_use(demo_pair):
    decoder = SpeculativeDecoder(*demo_pair)
    row = decoder.maker.row("x", Options())
    assert (row.seed, row.grammar, decoder.prefix_cache) == (b"", None, None)
    assert "grammars" not in vars(decoder.maker)
    sampled = Options(temp=1.0, seed=3)
    first, second = (decoder.maker.row("x", sampled, seeds).seed for seeds in [RowSeeds(3)] * 2)
    assert decoder.maker.row("x", sampled).seed == first != second
