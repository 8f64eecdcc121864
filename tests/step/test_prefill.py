"""What has been read once is not read again, and no text depends on it."""

import gc
import json

import mlx.core as mx
import numpy as np
import pytest

pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: requirements-apps.txt")

from helpers import causal_folders
from helpers.causal_configs import VOCAB
from helpers.causal_models import build, randomised
from helpers.programs import call

import main
from apps.cli import cli
from apps.cli.chat import chat
from apps.cli.display import Display
from apps.cli.session import Session
from decoder import SpeculativeDecoder
from speculative.common.reporting import reporter
from speculative.models import loading, opt
from speculative.models.causal import CausalModel
from speculative.step.prefix_cache import PrefixCache
from speculative.text.text_side import TextSide
from speculative.text.tokenizer import byte_tokenizer

TINY, LARGE = 60_000, 1 << 30  # bytes


def decoder(model, draft, prefix_cache: int, vocabulary=None) -> SpeculativeDecoder:
    if draft:
        draft.text = TextSide(byte_tokenizer())
    return SpeculativeDecoder(
        model,
        byte_tokenizer(),
        draft,
        draft_vocabulary=vocabulary,
        prefix_cache=prefix_cache,
    )


def random_prompts(count: int, most: int, begin=(), seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[*begin, *rng.integers(3, VOCAB, n).tolist()] for n in rng.integers(1, most, count)]


def models(name: str):
    if name == "opt":
        sizes = dict(hidden_size=32, ffn_dim=48, num_attention_heads=4, num_hidden_layers=2)
        config = opt.Config.from_hub(dict(vocab_size=VOCAB, **sizes), None)
        return randomised(opt.OPT(config)), randomised(opt.OPT(config), noise=0.1)
    return CausalModel(build(name)), CausalModel(build(name, noise=0.1))


# Full attention, a window, states (in batches and alone), and our own.
SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("gemma3_text", "falcon_h1", "mamba", "opt")
]


@pytest.mark.parametrize("name", ["llama", *SLOW])
def test_texts_are_the_same_with_and_without(cpu, name):
    target, draft = models(name)
    without, *others = (
        decoder(target, draft, prefix_cache, vocabulary)
        for prefix_cache, vocabulary in ((0, None), (LARGE, None), (TINY, None), (LARGE, range(50)))
    )
    reused = np.zeros(len(others), int)

    def same(prompts, batch_size, **options) -> list[list[int]]:
        texts = list(prompts)
        expected = without.batch_generate(texts, batch_size, max_tokens=6, **options)
        for i, other in enumerate(others):
            answers = other.batch_generate(texts, batch_size, max_tokens=6, **options)
            assert [a.tokens for a in answers] == [f.tokens for f in expected], (i, options)
            reused[i] += sum(a.stats.cached_tokens for a in answers)
        return [each.tokens for each in expected]

    talks = random_prompts(4, 40)
    for turn, options in enumerate((dict(num_draft=3), dict(temp=0.8, seed=5), dict(lookup=True))):
        texts = same(talks, 3, **options)
        new = random_prompts(4, 9, seed=turn)
        talks = [[*talk, *text, *more] for talk, text, more in zip(talks, texts, new, strict=True)]
    lines = random_prompts(6, 12, begin=[7, 8, 9] * 20)
    same(lines, 4, num_draft=2)
    # In the tiny cache, prefixes of 7 rows follow each other: whether one is still there when it is wanted is chance.
    assert (reused[[0, 2]] > 200).all(), reused
    assert all(0 < other.prefix_cache.size <= other.prefix_cache.limit for other in others)


def test_a_shared_beginning_is_read_once_and_a_conversation_goes_on(cpu):
    model, read = CausalModel(build("llama")), []
    whole = model.decode
    model.decode = lambda tokens, *rest: (read.append(tokens.size), whole(tokens, *rest))[1]
    ours = decoder(model, None, LARGE)
    lines = random_prompts(8, 5, begin=[7] * 200)
    ours.batch_generate(list(lines), 8, max_tokens=1)
    assert sum(read) < 200 + 8 * 6 + 8
    read.clear()
    answer = ours.batch_generate([lines[0]], max_tokens=9)[0]
    assert answer.stats.cached_tokens == len(lines[0]) - 1 and sum(read) == len(answer.tokens)
    turn = [*lines[0], *answer.tokens, 5, 6]
    (answer,) = ours.batch_generate([turn], max_tokens=1)
    assert answer.stats.cached_tokens == len(turn) - 3  # the text's last token was never read


def test_states_count_only_where_all_that_they_hold_is_there(cpu):
    ours = decoder(CausalModel(build("mamba2")), None, LARGE)
    (prompt,) = random_prompts(1, 30)

    def reused(tokens) -> tuple[int, list[int]]:
        (response,) = ours.batch_generate([tokens], max_tokens=6, num_draft=0)
        return response.stats.cached_tokens, response.tokens

    _, text = reused(prompt)
    assert reused([*prompt, *text, 5])[0] == len(prompt) + len(text) - 1
    assert reused([*prompt, text[0] - 1, 5])[0] == len(prompt) - 1  # to the prompt's end
    assert reused(prompt[:-2])[0] == 0


def test_what_was_used_least_recently_goes_first(cpu):
    model = CausalModel(build("llama"))
    prompts = [[n] * 9 for n in (3, 4, 5)]

    def read(prefixes: PrefixCache, prompt):
        prefixes.add(model, model.start([prompt]), 0, prompt)

    prefixes = PrefixCache(LARGE)
    read(prefixes, prompts[0])
    prefixes = PrefixCache(2 * prefixes.size)
    for prompt in (prompts[0], prompts[1], prompts[0], prompts[2]):
        read(prefixes, prompt)
    assert [prefixes.cached_tokens(model, prompt) for prompt in prompts] == [8, 0, 8]
    assert prefixes.cached_tokens(CausalModel(build("llama")), prompts[0]) == 0  # another model's
    read(prefixes, prompts[0] + [7])  # has all of the shorter one, but is longer than what is left
    assert prefixes.size <= prefixes.limit and prefixes.cached_tokens(model, prompts[0]) == 8


def test_memory_is_free_once_it_is_not_used(cpu):
    ours = decoder(CausalModel(build("llama")), None, TINY)
    gc.collect()
    gc.disable()  # it comes late, because it counts objects and not bytes
    try:
        before = mx.get_active_memory()
        for prompt in random_prompts(20, 60):
            ours.generate(prompt, max_tokens=4)
        mx.synchronize()  # what is still computed holds what it is made of
        assert mx.get_active_memory() - before < 2 * TINY
    finally:
        gc.enable()


def test_a_chat_keeps_its_messages_in_the_template(cpu, tmp_path, monkeypatch, capsys):
    causal_folders.write(tmp_path / "target")
    model, tokenizer = loading.load(tmp_path / "target")
    typed = iter(["the cat", "", "and the dog", "/r", "the cat", "x " * 300, "a mat", "/q", "no"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    monkeypatch.setattr(reporter, "note", cli.note)
    ours = SpeculativeDecoder(model, tokenizer)
    prompt_format = ours.text.prompt_format()
    options = main.Options(max_tokens=8)
    chat(Session(ours, options, prompt_format, Display()))
    printed, errors = capsys.readouterr()
    assert "the prompt has" in errors and next(typed) == "no"

    messages, expected = [], []
    for content in ("the cat", "and the dog", None, "the cat", "a mat"):
        if content is None:
            messages.clear()
            continue
        messages.append({"role": "user", "content": content})
        prompt = model.text.chat.apply(messages, tokenize=False, add_generation_prompt=True)
        tokens = tokenizer.encode(prompt, add_special_tokens=False).ids
        plain = SpeculativeDecoder(model, tokenizer, prefix_cache=0)
        expected.append(plain.generate(tokens, **vars(options)))
        messages.append({"role": "assistant", "content": expected[-1]})
    assert printed == "\n".join([*expected, ""])


@pytest.mark.parametrize("has_template", [False, True])
def test_a_chat_without_a_template_in_use_has_prompts_that_stand_alone(tmp_path, has_template):
    """With --ignore-chat-template, and with a base model, which has none."""
    causal_folders.write(tmp_path / "model")
    if not has_template:
        path = tmp_path / "model" / "tokenizer_config.json"
        config = json.loads(path.read_text())
        del config["chat_template"]
        path.write_text(json.dumps(config))
    prompts = ["the cat", "and the dog"]
    arguments = ("--model", "model", "--max-tokens", "8")
    if has_template:
        arguments += ("--ignore-chat-template",)
    typed = "".join(f"{prompt}\n" for prompt in prompts)
    printed = call(*arguments, "--chat", cwd=tmp_path, typed=typed)
    assert printed.returncode == 0, printed.stderr
    model, tokenizer = loading.load(tmp_path / "model")
    alone = SpeculativeDecoder(model, tokenizer)
    texts = [alone.generate(prompt, max_tokens=8) for prompt in prompts]
    assert printed.stdout == "\n".join([*texts, ""])
