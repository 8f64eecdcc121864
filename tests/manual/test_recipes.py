"""The worked examples of docs/new_drafter.md, docs/new_rule.md, docs/new_family.md and docs/new_format.md do what they say, and
pass the tests that the pages send them to."""

import itertools
import re
import sys

import mlx.core as mx
import pytest
from helpers.decoding import decode_with, ragged_prompts, total
from helpers.pages import blocks_in, read
from helpers.scripted import START, agreeing, plain

from decoder import SpeculativeDecoder
from speculative import models
from speculative.models import registry

NAMES = ("drafter", "rule", "family", "format")
DRAFTER, RULE, FAMILY, FORMAT = (f"docs/new_{name}.md" for name in NAMES)


def run(page: str) -> dict:
    """What a page's blocks define, run in their order as one program, with a tenth of a million draws."""
    scope: dict = {"__name__": page}
    for code in blocks_in(page, "python"):
        exec(compile(code.replace("1_000_000", "100_000"), page, "exec"), scope)
    return scope


@pytest.fixture
def at_home(demo_folders, monkeypatch):
    """Where mlx_models/ has the embedded pair."""
    monkeypatch.chdir(demo_folders)


def test_the_drafter_drafts_and_the_text_stays(at_home, capsys):
    scope = run(DRAFTER)
    assert capsys.readouterr().out == blocks_in(DRAFTER)[0]
    assert scope["stats"].accepted > 20


def test_the_drafter_serves_rows_that_come_and_go():
    scope: dict = {}
    exec(blocks_in(DRAFTER, "python")[0], scope)
    target, _ = agreeing(ends=0.03, copies=0.6)
    prompts = ragged_prompts(18, 50, 60)
    expected = [plain(target, prompt, 60) for prompt in prompts]
    followed = scope["remembered"]([START, *text] for text in expected)
    for num_draft, batch_size in ((4, 1), (1, 3), (4, 8), ("auto", 8)):
        drafter = scope["Memory"](followed)
        rows = decode_with(target, drafter, prompts, batch_size, num_draft=num_draft, max_tokens=60)
        assert [row.generated for row in rows] == expected
        lengths = total(rows).accepted_lengths
        assert num_draft == "auto" or (lengths[0] > 20 and lengths[num_draft] > 20)


def test_the_rule_keeps_the_law_and_prints_what_the_page_says(at_home, capsys):
    run(RULE)
    assert capsys.readouterr().out == blocks_in(RULE)[0]


def test_the_format_keeps_all_but_its_texts(at_home, capsys):
    run(FORMAT)
    assert capsys.readouterr().out == blocks_in(FORMAT)[0]


def test_a_function_is_the_rule(demo_pair):
    """And what `auto` has learned, which is kept by its name, does not trip over it."""

    def nothing_passes(p, q, tokens, lengths, u):
        return mx.zeros(len(p), mx.int32), p[:, 0]

    target, tokenizer, draft = demo_pair
    decoder = SpeculativeDecoder(target, tokenizer, draft)
    prompt, stats = "translate English to French: The king sees two red doors.", {}
    for rule, num_draft in itertools.product(("token", nothing_passes), (3, "auto")):
        options = dict(temp=1.0, seed=0, acceptance=rule, num_draft=num_draft, max_tokens=20)
        *_, last = decoder.stream_generate(prompt, **options)
        stats[rule, num_draft] = last.stats
    assert stats["token", 3].accepted > 3
    assert all(
        stats[nothing_passes, n].accepted == 0 < stats[nothing_passes, n].draft_tokens
        for n in (3, "auto")
    )


@pytest.mark.slow
def test_the_family_is_taken_and_passes_its_test(tmp_path, monkeypatch):
    """As the page has it: the module saved beside the others, the line added, the test run."""
    module, test = blocks_in(FAMILY, "python")
    (tmp_path / "gpt_neo.py").write_text(module)
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    monkeypatch.setitem(
        sys.modules, "speculative.models.gpt_neo", None
    )  # and gone again at the end
    del sys.modules["speculative.models.gpt_neo"]
    (entry,) = re.findall(r'Add `("gpt_neo": [^`]+)`', read(FAMILY))
    for name, family in eval(f"{{{entry}}}").items():
        monkeypatch.setitem(registry.FAMILIES, name, family)
    scope: dict = {"__name__": "test_gpt_neo"}
    exec(compile(test, FAMILY, "exec"), scope)
    (name,) = (name for name in scope if name.startswith("test_"))
    scope[name](tmp_path)
