"""References: texts that are nearly there are copied from, and never change what is written."""

import json
import random
from operator import itemgetter

import pytest
from helpers.decoding import (
    Waiting,
    decode_with,
    drafters,
    new_driver,
    new_rows,
    ragged_prompts,
    total,
)
from helpers.programs import call
from helpers.scripted import Clock, agreeing, plain

from decoder import Options, SpeculativeDecoder, batch_generate, generate
from speculative.drafters.draft_model import ModelDrafter
from speculative.drafters.prompt_lookup import PromptLookup
from speculative.text.memory import Memory, Pair
from speculative.text.text_side import Prompt

PROMPT = "translate English to French: The old king sees two red doors behind the church."


def changed(tokens: list[int], share: float, rng: random.Random) -> list[int]:
    """A text of which about this share is replaced, left out or new."""
    reference = []
    for token in tokens:
        if rng.random() >= share:
            reference.append(token)
        elif rng.random() < 0.7:
            reference += [rng.randrange(3, 50) for _ in range(rng.randint(1, 2))]
    return reference


@pytest.mark.parametrize("num_draft", [1, 5, "auto"])
@pytest.mark.parametrize("kind", ["lookup", "references alone", "both"])
def test_rows_with_references_are_plain_rows(kind, num_draft):
    """Right, half right and wrong ones, longer than the text, and none, side by side."""
    target, draft = agreeing(ends=0.03, copies=0.3)
    rng, prompts = random.Random(1), ragged_prompts(20, 50, 30)
    expected = [plain(target, prompt, 60) for prompt in prompts]
    drafter = drafters(draft).get(kind) or PromptLookup(to_target=None)
    options = Options(num_draft=num_draft, max_tokens=60)
    rows = new_rows(target, prompts, options)
    for row, text, share in zip(rows, expected, (0, 0.1, 0.5, 1, 0) * 4, strict=True):
        row.reference = changed([*text, 9, 9, 9], share, rng) if row is not rows[4] else []
    list(new_driver(target, drafter, options).decode(Waiting(rows), 3))
    assert [row.generated for row in rows] == expected
    right = total(rows[::5])
    assert right.accepted > right.draft_tokens / 2 > 0


def test_a_right_reference_is_copied_to_the_end_and_goes_on_after_a_change():
    target, _ = agreeing(ends=0.01, copies=0.0)
    prompt = next(p for p in ragged_prompts(50, 50) if len(plain(target, p, 60)) > 30)
    text = plain(target, prompt, 60)

    def calls(reference: list[int]) -> int:
        options = Options(num_draft=10, max_tokens=60)
        (row,) = rows = new_rows(target, [prompt], options)
        row.reference = reference
        driver = new_driver(target, PromptLookup(to_target=None), options)
        list(driver.decode(Waiting(rows), 1))
        assert row.generated == text
        return row.stats.target_calls

    size = len(text)
    assert calls(text) == -(-size // 11)
    for wrong in ([], [48], [48, 47]):  # a word left out, replaced, put in
        assert calls([*text[:15], *wrong, *text[16:]]) <= -(-size // 11) + 4
    assert calls([48, 47, 46]) == size


def test_auto_stops_copying_from_a_bad_reference_and_keeps_to_a_good_one(monkeypatch):
    clock, (target, draft) = Clock(monkeypatch), agreeing(ends=0.0, copies=0.0)
    clock.charge(target, 1, 0.1)
    clock.charge(draft, 0.2, 0)
    prompts, rng = ragged_prompts(12, 50), random.Random(0)
    drafter = ModelDrafter(draft, lookup=PromptLookup())
    stats = {}
    for name in ("good", "bad"):
        options = Options(max_tokens=50)
        rows = new_rows(target, prompts, options)
        for row in rows:
            text = plain(target, row.prompt, 50)
            row.reference = text if name == "good" else changed(text, 1, rng)
        list(new_driver(target, drafter, options).decode(Waiting(rows), 1))
        stats[name] = total(rows)
    assert stats["good"].tokens_per_call > 5
    copied = decode_with(target, drafters(draft)["both"], prompts, 1, max_tokens=50)
    assert stats["bad"].draft_tokens - stats["bad"].accepted < 1.5 * (
        total(copied).draft_tokens + 20
    )


@pytest.mark.parametrize(
    "options", [{}, dict(temp=1.0, seed=3), dict(num_draft=4), dict(lookup=False)]
)
def test_texts_are_those_without_a_reference(demo_pair, options):
    model, tokenizer, draft = demo_pair
    plain_text = generate(model, tokenizer, PROMPT, **options | dict(num_draft=0))
    references = [plain_text, plain_text[:20], "quite another text", "老房子", " ", plain_text * 9]
    prompts = [Prompt(PROMPT, reference) for reference in references]
    for draft_model in (None, draft):
        responses = batch_generate(model, tokenizer, prompts, draft_model, **options)
        # A prompt that the list has had before draws other random numbers.
        same = responses[:1] if options.get("temp") else responses
        assert all(response.text == plain_text for response in same)
    alone = generate(model, tokenizer, PROMPT, reference=plain_text, **options)
    assert alone == plain_text


def test_a_reference_is_counted_as_copied_and_a_memory_gives_it(demo_pair):
    model, tokenizer, _ = demo_pair
    (earlier,) = batch_generate(model, tokenizer, [PROMPT])
    assert "lookup" not in earlier.origins
    memory = Memory([Pair(PROMPT.replace("red", "green"), earlier.text), Pair("other", "text")])
    decoder = SpeculativeDecoder(model, tokenizer, memory=memory)
    (response,) = decoder.batch_generate([PROMPT], num_draft=8)
    assert response.tokens == earlier.tokens
    assert response.stats.target_calls <= 0.4 * earlier.stats.target_calls
    assert response.origins.count("lookup") == response.stats.accepted > 8
    assert generate(model, tokenizer, PROMPT, memory=memory) == earlier.text
    # A reference of one's own comes first.
    (response,) = decoder.batch_generate([Prompt(PROMPT, "quite another")], num_draft=8)
    assert response.tokens == earlier.tokens and response.stats.accepted < 3


def test_the_command_line_takes_references_and_keeps_a_memory(demo_folders):
    """A file translated twice: the second run copies from the first, whose texts were added to the memory."""
    sentences = [f"The old king sees {n} red doors." for n in ("two", "three", "four", "five")]
    prompts = [f"translate English to French: {sentence}" for sentence in sentences]
    (demo_folders / "texts.txt").write_text("\n".join(prompts))
    arguments = ("--prompt-file", "texts.txt", "--json", "--no-lookup", "--num-draft", "8")
    arguments += ("--model", "demo-target", "--memory", "m.jsonl", "--memory-append")
    runs = [call(*arguments, cwd=demo_folders) for _ in range(2)]
    for result in runs:
        assert (result.returncode, result.stderr) == (0, "")
    first, second = (
        sorted(map(json.loads, r.stdout.splitlines()), key=itemgetter("index")) for r in runs
    )
    assert [r["text"] for r in first] == [r["text"] for r in second]
    assert [r["prompt"] for r in first] == prompts
    calls = [sum(r["stats"]["target_calls"] for r in of_run) for of_run in (first, second)]
    assert calls[1] < 0.4 * calls[0]
    pairs = [json.loads(line) for line in (demo_folders / "m.jsonl").read_text().splitlines()]
    assert {pair["prompt"]: pair["text"] for pair in pairs} == {
        r["prompt"]: r["text"] for r in first
    }
    assert len(pairs) == 4  # none twice
    tokens = sum(r["stats"]["accepted"] for r in second)
    summary = f"4 pairs, 4 of 4 prompts found one like it, {tokens} tokens came from there"
    assert tokens > 20 and summary in call(*arguments, "--verbose", cwd=demo_folders).stderr


def test_json_lines_and_flags_have_references(demo_folders):
    text = call("-p", PROMPT, cwd=demo_folders).stdout.strip()
    (demo_folders / "earlier.txt").write_text(text)
    lines = [{"prompt": PROMPT, "reference": text}, {"prompt": PROMPT, "reference": 3}]
    (demo_folders / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    alone = ("--model", "demo-target", "--num-draft", "8", "--json")
    for arguments in (("-p", PROMPT, "--reference", "@earlier.txt"), ("--prompt-file", "p.jsonl")):
        result = call(*alone, *arguments, cwd=demo_folders)
        (answer,) = map(json.loads, result.stdout.splitlines())
        assert answer["text"] == text and answer["stats"]["target_calls"] <= 4
    assert "line 2: the reference is int, not text" in result.stderr
    missing = call("-p", PROMPT, "--reference", "@no.txt", cwd=demo_folders)
    assert missing.returncode == 1 and "no.txt: No such file or directory" in missing.stderr


def test_damaged_lines_of_a_memory_are_named_and_the_rest_is_used(demo_folders):
    (demo_folders / "m.tsv").write_text("no tab\n" * 23 + "a\tb\n")
    result = call("-p", PROMPT, "--memory", "m.tsv", cwd=demo_folders)
    assert result.returncode == 0
    assert (
        result.stderr.splitlines()[0]
        == "m.tsv, line 1: not two texts in UTF-8 separated by a tab (in .csv also ; or ,)"
    )
    assert result.stderr.splitlines()[20:] == ["m.tsv: 3 more such lines"]
    result = call("-p", PROMPT, "--memory", "m.tsv", "--memory-append", cwd=demo_folders)
    assert result.returncode == 1 and "JSON lines (.jsonl) only" in result.stderr
