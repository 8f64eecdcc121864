"""What is kept between runs: costs of steps, by models and machine; and what is not believed."""

import json
from pathlib import Path

import pytest
from helpers.models import random_model

import machine
from decoder import SpeculativeDecoder
from machine import KeptCosts
from speculative.options import Options
from speculative.schedule import Costs

COSTS = Costs({1: ({0: 0.1}, {0: 0.1, 4: 0.15}), 8: ({}, {0: 0.2, 2: 0.25})}, 0.001)


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv(machine.SWITCH, str(tmp_path / "cache"))
    return tmp_path / "cache"


def kept(target=None, draft=None, **options) -> KeptCosts:
    return KeptCosts(target or random_model(), draft, Options(**options))


def test_costs_are_those_that_were_kept(cache):
    kept().save(COSTS)
    assert kept().load() == COSTS
    assert [file.suffix for file in cache.iterdir()] == [".json"]


def test_costs_are_of_models_machine_and_way(cache, monkeypatch):
    kept().save(COSTS)
    others = [
        dict(target=random_model(d_ff=32)),
        dict(draft=random_model()),
        dict(lookup=True),
        dict(temp=1.0),
    ]
    assert [kept(**other).load() for other in others] == [None] * len(others)
    kept(temp=1.0).save(COSTS)
    assert kept(temp=0.7).load() == COSTS and kept(temp=0.7, top_k=5).load() is None
    monkeypatch.setattr(machine, "version", lambda package: "another")
    assert kept().load() is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 5000,
        '{"of": OF}',
        '{"of": {}, "costs": {"steps": {"1": [{"0": 1}, {"0": 1}]}, "reading": null}}',
        '{"of": OF, "costs": {"steps": {}, "reading": null}}',
        '{"of": OF, "costs": {"steps": {"1": [{}, {"0": 1}]}, "reading": null}}',
        '{"of": OF, "costs": {"steps": {"1": [{"0": 1}]}, "reading": null}}',
        '{"of": OF, "costs": {"steps": {"0": [{"0": 1}, {"0": 1}]}, "reading": null}}',
        '{"of": OF, "costs": {"steps": {"1": [{"0": -1}, {"0": 1}]}, "reading": null}}',
        '{"of": OF, "costs": {"steps": {"1": [{"0": NaN}, {"0": 1}]}, "reading": null}}',
        '{"of": OF, "costs": {"steps": {"1": [{"999": 1}, {"0": 1}]}, "reading": null}}',
        '{"of": OF, "costs": {"steps": {"1": [{"0": 1}, {"0": 1}]}, "reading": 0}}',
    ],
)
def test_damaged_and_foreign_files_are_ignored(cache, text):
    kept().save(COSTS)
    (file,) = cache.iterdir()
    of = json.dumps(json.loads(file.read_text())["of"])
    file.write_text(text.replace("OF", of))
    assert kept().load() is None
    kept().save(COSTS)
    assert kept().load() == COSTS


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv(machine.SWITCH, str(place))
        kept().save(COSTS)
        assert kept().load() is None
    monkeypatch.setenv(machine.SWITCH, "0")
    assert machine.folder() is None and kept().load() is None


@pytest.mark.parametrize(
    ("system", "xdg", "expected"),
    [
        ("Linux", None, ".cache/speculative-decoding"),
        ("Linux", "elsewhere", "elsewhere/speculative-decoding"),
        ("Darwin", "elsewhere", "Library/Caches/speculative-decoding"),
    ],
)
def test_the_folder_is_the_platforms(monkeypatch, tmp_path, system, xdg, expected):
    monkeypatch.delenv(machine.SWITCH)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if xdg:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / xdg))
    monkeypatch.setattr(machine.platform, "system", lambda: system)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert machine.folder() == tmp_path / expected


def test_a_decoder_begins_with_what_an_earlier_one_has_measured(cache, demo_pair):
    target, tokenizer, draft = demo_pair

    def decode() -> Costs:
        decoder = SpeculativeDecoder(target, tokenizer, draft)
        options = Options()
        begins = decoder.schedule(options, decoder.drafter(options)).costs()
        decoder.generate("translate number to German: 1284")
        return begins

    assert decode() is None
    begins = decode()
    assert begins is not None and 0 in begins.steps[1][0] and any(begins.steps[1][1])


def test_memory_is_wired_while_texts_are_written(monkeypatch, demo_pair):
    """As far as the system recommends, where it recommends anything."""
    target, tokenizer, draft = demo_pair
    limits = [0]
    monkeypatch.setattr(
        machine.mx, "device_info", lambda: {"max_recommended_working_set_size": 1 << 30}
    )
    monkeypatch.setattr(
        machine.mx, "set_wired_limit", lambda limit: limits.append(limit) or limits[-2]
    )
    responses = SpeculativeDecoder(target, tokenizer, draft).stream_generate("repair: teh king")
    next(responses)
    assert limits == [0, 1 << 30]
    responses.close()
    assert limits == [0, 1 << 30, 0]
