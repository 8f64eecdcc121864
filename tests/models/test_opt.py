"""OPT against transformers, from checkpoints in the hub's layouts, and its own text in batches."""

from copy import copy
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import torch
from helpers.checkpoints import save
from helpers.decoding import decode_with
from helpers.models import assert_close
from helpers.opt_checkpoints import VARIANTS, torch_model, write_bpe

from speculative.common.errors import InputError
from speculative.drafters.draft_model import ModelDrafter
from speculative.drafters.prompt_lookup import PromptLookup
from speculative.models.conversion import convert
from speculative.models.loading import load
from speculative.step.cache import MASKED

pytestmark = pytest.mark.slow


def layouts(model: torch.nn.Module) -> dict[str, dict]:
    """The tensors under the names that checkpoints on the hub have."""
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    bare = {name.removeprefix("model."): tensor for name, tensor in state.items()}
    return {"model.decoder": state, "decoder": bare}


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request, tmp_path_factory):
    """(torch model, MLX model, tokenizer) of a converted checkpoint."""
    raw = VARIANTS[request.param]
    reference = torch_model(raw)
    folder = tmp_path_factory.mktemp(request.param)
    save(folder / "hub", raw, layouts(reference)["model.decoder"])
    write_bpe(folder / "hub")
    convert(str(folder / "hub"), folder / "converted", dtype="float32")
    return reference, *load(folder / "converted")


def test_logits_are_those_of_transformers(pair):
    """With a shorter row, whose fillers lie where no position is, and a rejection in between."""
    reference, model, _ = pair
    tokens = np.random.default_rng(0).integers(3, 300, (2, 30))
    with torch.no_grad():
        expected = reference(torch.tensor(tokens)).logits.numpy()
    cache = model.start([tokens[0, :20].tolist(), tokens[1, :5].tolist()])
    assert cache.lengths.tolist() == [19, 4]
    first = [[tokens[0, 19], 7, 7, 7], [tokens[1, 4], 7, 7, 7]]
    at = np.array([[19, 20, 21, MASKED], [4, 5, 6, 7]], np.int32)
    logits = np.array(model.decode(mx.array(np.array(first)), at, cache))
    assert_close(logits[:, 0], expected[[0, 1], [19, 4]])
    cache.keep(np.array([1, 1]))
    second = np.stack([tokens[0, 20:30], tokens[1, 5:15]])
    at = np.stack([np.arange(20, 30), np.arange(5, 15)]).astype(np.int32)
    logits = np.array(model.decode(mx.array(second), at, cache))
    assert_close(logits, np.stack([expected[0, 20:30], expected[1, 5:15]]))


def test_greedy_text_is_that_of_transformers(pair):
    reference, model, _ = pair
    rng = np.random.default_rng(1)
    prompts = [[2, *rng.integers(3, 300, n).tolist()] for n in (1, 9, 30, 4)]
    expected = []
    for prompt in prompts:
        with torch.no_grad():
            output = reference.generate(torch.tensor([prompt]), max_new_tokens=25, do_sample=False)
        expected.append(output[0, len(prompt) :].tolist())
    for drafter, k, size in ((None, 0, 4), (ModelDrafter(model), 3, 3), (PromptLookup(), 4, 2)):
        rows = decode_with(model, drafter, prompts, size, num_draft=k, max_tokens=25)
        assert [row.generated for row in rows] == expected


def test_both_layouts_of_the_hub_are_read(tmp_path):
    raw = VARIANTS["opt-350m"]
    states = layouts(torch_model(raw))
    for name, kind in (("model.decoder", "zip"), ("decoder", "safetensors")):
        folder = save(tmp_path / name, raw, states[name], kind=kind)
        write_bpe(folder)
        convert(str(folder), folder / "converted", dtype="float32")
        model, tokenizer = load(folder / "converted")
        assert tokenizer.encode("the cat").ids[0] == 2 == model.config.eos_token_ids[0]
        assert tokenizer.decode(tokenizer.encode("the cat").ids) == "the cat"


def test_positions_end(pair):
    """A target's rows end there, and a draft model of fewer drafts as far as it knows them, for the other rows on."""
    model = pair[1]
    assert (model.config.max_positions, model.config.max_prompt_tokens) == (64, 63)
    row = decode_with(model, PromptLookup(), [[2, *[9, 17, 4] * 20]], num_draft=5, max_tokens=9)[0]
    assert len(row.tokens) == 64 or row.finish_reason == "stop"
    cache = model.start([[5] * 64])
    with pytest.raises(InputError, match="64 positions"):
        model.decode(mx.array([[7, 8]]), np.array([[64, 65]], np.int32), cache)
    draft = copy(model)
    draft.config = replace(model.config, max_positions=24)
    prompts = [[2, *range(5, 23)], [2, 9], [2, *range(5, 40)]]
    plain = decode_with(model, None, prompts, num_draft=0, max_tokens=20)
    drafted = decode_with(model, ModelDrafter(draft), prompts, num_draft=5, max_tokens=20)
    assert [row.tokens for row in drafted] == [row.tokens for row in plain]
    accepted = [row.stats.accepted for row in drafted]
    assert min(accepted[:2]) > 0 == accepted[2]
