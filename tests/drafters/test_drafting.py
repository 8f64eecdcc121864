"""Drafters: what is proposed, and when the draft model is asked. That none of them changes the text is shown
in test_decoder.py and test_sampling.py."""

import pytest
from helpers.decoding import Stopping, decode_with, new_driver, new_rows, start
from helpers.scripted import EOS, START, ScriptedModel

from speculative.drafters.draft_model import ModelDrafter
from speculative.drafters.prompt_lookup import LONG, PromptLookup, PromptMatcher
from speculative.step.draft import Step, no_draft
from speculative.step.options import Options
from speculative.step.row import Row
from speculative.step.schedule import Schedule, hindsight

# ---------------------------------------------------------------------------------------------
# What is proposed


class Words:
    """Texts as tokens of one word or word part ("+ing") each."""

    def __init__(self):
        self.words: list[str] = []

    def ids(self, text: str) -> list[int]:
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
        return [self.words.index(word) for word in text.split()]

    def piece(self, token: int) -> str:
        word = self.words[token]
        return word[1:] if word.startswith("+") else "▁" + word


@pytest.mark.parametrize(
    ("source", "output", "proposed"),
    [
        ("fix: a b c", "", "a b c"),  # the start, after the task's prefix
        ("a b c", "", "a b c"),
        ("a b c d", "a", "b c d"),
        ("fix: a b c d", "a b", "c d"),
        ("a b c d e", "a X", "c d e"),  # a word replaced
        ("a b +ing c d", "a X", "c d"),  # a word of two parts by one
        ("a b c d", "a X +ing", "c d"),  # a word by one of two parts
        ("a b c d e", "a X Y", "d e"),  # two words
        ("a b c d", "a X b", "c d"),  # a word put in
        ("a b b c d", "a b c", "d"),  # a word left out
        ("a b c d e f g", "a e", "f g"),  # several
        ("a b . c d", "a X .", "c d"),
        ("the a the b the c", "the a the", "b the c"),  # in order, though the word recurs
        ("the a . the b . the c d", "the X . the", "b . the c d"),
        ("m n o p q r s t u a b c d e f", "X a b c d", "e f"),  # far, and long enough to be meant
        ("x: a b c d 1 b c d 2 c d 3", "Q Q Q Q Q a b c d", "1 b c d 2 c d 3"),  # the longest match
        ("p q r s 1", "p q r s 2 X Y Z V W p q r s", "1"),  # the source before an output as long
        ("a b c", "X Y Z V W", None),  # nothing of the source for a while
        ("a b c", "X Y Z V W p q r s t p q r s", "t p q r s t p q"),  # the text so far repeats
    ],
)
def test_what_is_proposed_first(source, output, proposed):
    words = Words()
    matcher = PromptMatcher(words.ids(source), words.piece)
    texts = [c.copy(min(c.max_length, 8)) for c in matcher.candidates(words.ids(output))]
    assert texts[:1] == ([words.ids(proposed)] if proposed else [])


def test_a_match_ends_where_the_text_departs():
    words = Words()
    matcher = PromptMatcher(words.ids("a b c d e f"), words.piece)
    assert matcher.candidates(words.ids("a b c d"))[0].state == f"match {LONG}+"
    assert matcher.candidates(words.ids("a b c d X"))[0].state == "correction"
    assert matcher.candidates(words.ids("a b c d X f")) == []  # the source is used up


@pytest.mark.parametrize(
    ("source", "gained", "passed", "rejected"),
    [
        ([5, 6, 7], [5, 6, 9], 2, True),
        ([5, 6, 7], [9], 0, True),
        ([5, 6, 7], [5, 6], 2, False),  # of the third it cannot be told
        ([5, 6], [5, 6, EOS], 2, False),  # there was no third
    ],
)
def test_what_a_copy_would_have_given_is_seen_in_the_text(source, gained, passed, rejected):
    def seen(candidates, num_draft, gained):
        plan = Schedule(100).plan(candidates, [100, -1], [num_draft] * 2)
        step = Step(plan, no_draft(2), offered=candidates, gained=[gained, []])
        return list(hindsight(step))

    lookup = PromptLookup()
    lookup.admit([Row(source, prefix_size=1), Row(source, prefix_size=1)], [0, 1])
    first, nothing = lookup.candidates([[START], []])
    assert nothing == []
    assert seen([first, []], 0, gained) == [(first[0], passed, rejected)]
    assert seen([first, []], 2, gained) == []
    second = lookup.candidates([[START, *gained], []])[0]
    assert [c for c, _, _ in seen([second, []], 0, [8])] == second


# ---------------------------------------------------------------------------------------------
# The draft model's part


def test_the_draft_model_is_not_asked_where_all_rows_copy():
    source = list(range(3, 40))
    target = ScriptedModel(lambda source, prefix: source[min(len(prefix), 38) - 1])
    draft = ScriptedModel(lambda source, prefix: 4)
    drafter = ModelDrafter(draft, lookup=PromptLookup())
    (row,) = decode_with(target, drafter, [[*source, EOS]], 1, num_draft=8)
    assert row.tokens == [START, *source, EOS]
    assert draft.calls == 0
    assert row.stats.target_calls == -(-38 // 9)


def test_a_row_s_candidates_tell_how_its_last_draft_fared():
    """Drafts of 3: the first is right, the second half right, the third wrong."""
    target = ScriptedModel(lambda source, prefix: 3 + len(prefix))
    right = {*range(1, 6)}
    draft = ScriptedModel(lambda source, prefix: 3 + len(prefix) if len(prefix) in right else 4)
    drafter, states = ModelDrafter(draft), []
    driver = start(target, drafter, [[5]], num_draft=3, max_tokens=12)
    while not driver.batch.rows[0].finish_reason:
        states.append(drafter.candidates([driver.batch.rows[0].tokens])[0][0].state)
        driver.advance()
    assert states[:4] == ["new", "whole", "part", "none"]


@pytest.mark.usefixtures("cpu")
def test_a_row_whose_draft_ends_waits_for_others_that_do_not():
    def next_token(source, prefix):
        return EOS if source == (5,) and len(prefix) == 2 else 7

    models = ScriptedModel(next_token), ModelDrafter(ScriptedModel(next_token))
    options = Options(max_tokens=6)
    driver = new_driver(*models, options, Stopping(5, least=-1.0))
    driver.admit(new_rows(models[0], [[5], [6]], options))
    step = driver.batch.step()
    assert step.draft.lengths.tolist() == step.accepted == [2, 5]
    confidence = step.draft.confidence
    assert (confidence[0] > 0).tolist() == [True, False, False, False]  # the end, and nothing
    assert confidence[0, 1] < 0 and (confidence[1] > 0).all()
