"""speculative/models/contract.py is the whole contract: models that have just its required members, one with an encoder and one
without, do all that decoders and commands do."""

import asyncio
import json
import re
import threading
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest
from helpers.programs import call

import serve
from apps.cli import models as opened
from apps.documents.plain import parse
from apps.documents.translator import Translator
from decoder import SpeculativeDecoder
from speculative.common.errors import InputError
from speculative.models.contract import Model, padded
from speculative.step.cache import MASKED, CrossCache, SlotCache
from speculative.step.options import RULES, Options
from speculative.step.prefill import prefill
from speculative.text.memory import Memory, Pair
from speculative.text.text_side import Prompt, TextSide
from speculative.text.tokenizer import byte_tokenizer

PROMPT = "the red house is near the green tree"
TEXT = "thE rEd housE is nEar thE grEEn trEE"
PAD, EOS, START = 0, 1, 2
CAPITALS = {byte_tokenizer().token_to_id("e"): byte_tokenizer().token_to_id("E")}
V = 384
NOISE = np.random.default_rng(0).normal(0, 1, (V, V)).astype(np.float32)


@dataclass(frozen=True)
class Config:
    """Just what `Model` says."""

    vocab_size: int = V
    pad_token_id: int = PAD
    eos_token_ids: tuple[int, ...] = (EOS,)
    max_positions: int | None = None
    max_prompt_tokens: int | None = None


class Copying(Model):
    """Copies its prompt, with some tokens replaced: what the two models below have in common."""

    def __init__(self, replaced: dict[int, int]):
        self.config = Config()
        self.replaced = replaced

    def logits(self, sources: list[list[int]], indices: np.ndarray) -> mx.array:
        """[B, T, V]; indices [B, T]: which token of its source each is to copy."""
        logits = np.zeros((*indices.shape, V), np.float32)
        for b, t in np.ndindex(*indices.shape):
            source = sources[b]  # it ends with EOS
            token = source[min(max(indices[b, t], 0), len(source) - 1)]
            token = self.replaced.get(token, token)
            logits[b, t] = NOISE[token]
            logits[b, t, token] = 9
        return mx.array(logits)


class Translating(Copying):
    """With an encoder."""

    def prefix(self, prompt):
        return [START]

    def start(self, prompts):
        tokens, mask = padded(prompts, PAD)
        encoded = mx.array(tokens)[:, None, :, None]
        return CrossCache([(encoded, encoded)], mask)

    def decode(self, tokens, positions, cache):
        cache.reserve(positions)
        block = tokens[:, None, :, None]
        cache.append(0, block, block)
        encoded = np.array(cache.cross[0][0])[:, 0, :, 0]
        sources = [row[mask].tolist() for row, mask in zip(encoded, cache.mask, strict=True)]
        return self.logits(sources, np.where(positions == MASKED, 0, positions))


class Continuing(Copying):
    """Without one: a row is the prompt, a mark, and the text; the prompt is found in the cache."""

    def prefix(self, prompt):
        return [*prompt, START]

    def start(self, prompts):
        cache = SlotCache(len(prompts), num_layers=1)
        prefill(self, cache, prompts)
        return cache

    def decode(self, tokens, positions, cache):
        held = cache.reserve(positions)
        block = tokens[:, None, :, None]
        keys, _ = cache.append(0, block, block)
        sources = []
        for row, of_row in zip(np.array(keys)[:, 0, :, 0], held, strict=True):
            order = np.argsort(of_row, kind="stable")[: (of_row != MASKED).sum()]
            tokens_so_far = row[order].tolist()
            end = tokens_so_far.index(START) if START in tokens_so_far else len(tokens_so_far)
            sources.append(tokens_so_far[:end])
        marks = np.array([len(source) for source in sources])[:, None]
        return self.logits(sources, np.where(positions == MASKED, 0, positions - marks))


class Resuming(Continuing):
    """With the one optional member that `start` depends on."""

    def new_cache(self, batch_size):
        return SlotCache(batch_size, num_layers=1)

    def start(self, prompts, cache=None):
        cache = cache or self.new_cache(len(prompts))
        prefill(self, cache, prompts)
        return cache


KINDS = pytest.mark.parametrize("kind", [Translating, Continuing])


def new_decoder(kind, has_draft: bool = False, **arguments) -> SpeculativeDecoder:
    tokenizer = byte_tokenizer()
    draft = None
    if has_draft:
        draft = kind({})
        draft.text = TextSide(tokenizer)  # required of a draft model: it is compared
    return SpeculativeDecoder(kind(CAPITALS), tokenizer, draft, **arguments)


@KINDS
@pytest.mark.parametrize(
    ("has_draft", "options"),
    [
        (False, dict(num_draft=0)),
        (False, dict(lookup=True)),
        (True, dict(num_draft=3)),
        (True, {}),
        (True, dict(lookup=True, logprobs=1)),
        (False, dict(num_beams=2)),
        (False, dict(num_beams=3, num_samples=2)),
    ],
)
def test_every_way_to_decode_has_the_models_text(kind, has_draft, options):
    decoder = new_decoder(kind, has_draft)
    ids = decoder.tokenizer.encode(PROMPT).ids
    prompts = [PROMPT, ids, "a bee", Prompt(PROMPT)]
    texts = [TEXT, TEXT, "a bEE", TEXT]
    responses = decoder.batch_generate(prompts, batch_size=3, **options)
    assert [each.text for each in responses if each.sample == 0] == texts
    finished = {i: r for i, r in decoder.stream_batch(prompts, 2, **options) if r.sample == 0}
    assert [finished[i].text for i in range(4)] == texts
    if "num_samples" not in options:
        assert decoder.generate(PROMPT, **options) == TEXT
        assert "".join(each.text for each in decoder.stream_generate(ids, **options)) == TEXT


@pytest.mark.parametrize("has_draft", [False, True])
def test_a_cache_of_its_own_is_all_that_the_prefix_cache_needs(has_draft):
    decoder = new_decoder(Resuming, has_draft)
    for prompt, text, cached in (("a bee", "a bEE", 0), ("a bee sees", "a bEE sEEs", 4)):
        (response,) = decoder.batch_generate([prompt])
        assert response.text == text
        assert response.stats.cached_tokens >= cached


@KINDS
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_samples(kind, rule):
    sampling = dict(temp=1, top_p=0.99, seed=3, acceptance=rule, max_tokens=40)
    plain = new_decoder(kind).batch_generate([PROMPT] * 3, num_draft=0, **sampling)
    drafted = new_decoder(kind, True).batch_generate([PROMPT] * 3, num_draft=3, **sampling)
    assert all(each.stats.accepted for each in drafted)
    if rule == "coupled":
        assert [each.text for each in drafted] == [each.text for each in plain]
    assert len({each.text for each in drafted}) > 1


@KINDS
def test_drafts_come_from_memories_and_references(kind):
    memory = Memory([Pair(PROMPT + "s", TEXT + "s")])
    (response,) = new_decoder(kind, memory=memory).batch_generate([PROMPT])
    assert response.text == TEXT and response.stats.from_memory > 20
    (response,) = new_decoder(kind).batch_generate([Prompt(PROMPT, TEXT)], num_draft=4)
    assert response.text == TEXT and response.stats.accepted > 20


@KINDS
@pytest.mark.parametrize("has_draft", [False, True])
def test_a_text_keeps_to_a_form(kind, has_draft):
    pytest.importorskip("llguidance")
    form = "th[a-d] r[a-d]d( [a-zE]+){3}"
    decoder = new_decoder(kind, has_draft)
    text = decoder.generate(PROMPT, regex=form, max_tokens=60)
    assert re.fullmatch(form, text)
    assert text == decoder.generate(PROMPT, regex=form, max_tokens=60, num_draft=0)


@KINDS
def test_what_a_model_lacks_is_said(kind):
    decoder = new_decoder(kind)
    for options, message in (
        (dict(target_lang="de"), "this model has no languages to choose from"),
        (dict(prompt=[{"role": "user", "content": "x"}]), "this model has no chat template"),
    ):
        with pytest.raises(InputError, match=message):
            decoder.generate(**({"prompt": PROMPT} | options))
    for has_draft in (False, True):
        with pytest.raises(InputError, match="draft vocabulary needs a draft model of this proj"):
            new_decoder(kind, has_draft, draft_vocabulary=[5, 6])


@pytest.fixture
def loaded(kind, monkeypatch):
    """`load` gives a model of this kind, whatever the name; the draft model too."""

    def load(name, group=None, split=True):
        model = kind({} if name == "draft" else CAPITALS)
        if name == "draft":
            model.text = TextSide(byte_tokenizer())
        return model, byte_tokenizer()

    monkeypatch.setattr(opened, "load", load)
    monkeypatch.setattr(opened.Models, "stamp", lambda self: "")
    monkeypatch.setattr(serve, "is_speech", lambda name: False)


@KINDS
def test_main(loaded, tmp_path):
    def output(*arguments) -> str:
        result = call("--model", "small", *arguments, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        return result.stdout

    prompt = ("--prompt", PROMPT)
    for arguments in (
        (),
        ("--draft-model", "draft", "--verbose"),
        ("--num-beams", "2"),
        ("--lookup", "--show-draft"),
        ("--reference", TEXT),
    ):
        assert output(*prompt, *arguments) == f"{TEXT}\n"
    assert json.loads(output(*prompt, "--json", "--logprobs", "1"))["text"] == TEXT
    assert output(*prompt, "--extra-eos-token", "Ġ") == "thE\n"
    (tmp_path / "prompts.txt").write_text(f"{PROMPT}\na bee\n")
    memory = ("--memory", "memory.jsonl", "--memory-append")
    for _ in range(2):
        assert output("--prompt-file", "prompts.txt", *memory) == f"{TEXT}\na bEE\n"


@KINDS
def test_chat(loaded, tmp_path, monkeypatch):
    result = call("--model", "small", "--chat", cwd=tmp_path, typed=f"{PROMPT}\na bee\n")
    assert (result.returncode, result.stdout) == (0, f"{TEXT}\na bEE\n"), result.stderr


@KINDS
def test_translate(loaded, kind, tmp_path):
    source, translation = "The red house.\n\nA green tree!\n", "ThE rEd housE.\n\nA grEEn trEE!\n"
    (tmp_path / "a.txt").write_text(source)
    arguments = ("a.txt", "--model", "small", "--draft-model", "draft", "-o", "b.txt", "--verbose")
    result = call(*arguments, cwd=tmp_path, script="translate.py")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "b.txt").read_text() == translation
    translator = Translator(new_decoder(kind), Options())
    assert translator.translate(parse(source.encode())).data.decode() == translation


async def post(app, path: str, fields: dict) -> tuple[int, str]:
    """The status and the body that answer a request."""
    messages = [{"type": "http.request", "body": json.dumps(fields).encode()}]
    sent = []

    async def receive():
        if not messages:
            await asyncio.Event().wait()  # the client stays
        return messages.pop()

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = dict(type="http", method="POST", path=path, headers=headers, query_string=b"")
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:]).decode()


@KINDS
def test_serve(loaded, tmp_path, monkeypatch):
    answers = []

    def ask(app, engine) -> None:
        fields = {"prompt": [PROMPT, "a bee"], "logprobs": 1}
        answers.append(asyncio.run(post(app, "/v1/completions", fields)))
        answers.append(asyncio.run(post(app, "/v1/completions", {**fields, "stream": True})))
        chat = {"messages": [{"role": "user", "content": "x"}]}
        answers.append(asyncio.run(post(app, "/v1/chat/completions", chat)))
        engine.close()

    def serve_here(server, listener, engine, what) -> None:
        listener.close()
        client = threading.Thread(target=ask, args=(server.config.app, engine))
        client.start()
        engine.run()
        client.join()

    monkeypatch.setattr(serve, "serve", serve_here)
    arguments = ("--model", "small", "--draft-model", "draft", "--port", "0")
    result = call(*arguments, cwd=tmp_path, script="serve.py")
    assert result.returncode == 0, result.stderr
    (status, whole), (_, stream), (refused, reason) = answers
    assert status == 200, whole
    assert [choice["text"] for choice in json.loads(whole)["choices"]] == [TEXT, "a bEE"]
    assert stream.endswith("data: [DONE]\n\n")
    assert refused == 400 and "no chat template" in reason
