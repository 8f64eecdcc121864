"""A reference is followed through a sound, and changes no text."""

import json

import pytest
from helpers import whisper_models as wm

from apps.speech.formats import FORMATS
from apps.speech.options import Layout
from apps.speech.reference import Reference, parse
from apps.speech.segments import Segment, Transcript
from speculative.common.errors import InputError

SPECIAL = wm.special()
TEXTS = (" The farmer & <his> dog.", " Came home", " too late.")


def encode(text):
    return wm.tokenizer().encode(f" {text}").ids


def test_every_format_of_ours_is_one():
    values = dict(seek=0, tokens=[], temperature=0.0, avg_logprob=0.0, compression_ratio=1.0)
    segments = [
        Segment(i, start=3600.0 + i, end=3600.5 + i, text=t, **values) for i, t in enumerate(TEXTS)
    ]
    transcript = Transcript("".join(TEXTS), tuple(segments), "en", 9.0)
    for format in ("srt", "vtt", "json"):
        parts = parse(FORMATS[format](transcript, Layout()))
        assert [part[:2] for part in parts] == [(s.start, s.end) for s in segments]
        expected = [text.strip() for text in TEXTS]
        expected[0] = expected[0].replace("<his>", "") if format == "srt" else expected[0]
        assert [part[2].strip() for part in parts] == expected
    script = parse(FORMATS["txt"](transcript, Layout()))
    assert script == ((None, None, TEXTS[0].strip()), (None, None, "Came home\ntoo late."))
    assert parse(json.dumps({"type": "content", "content": "So. It is."})) == parse("So. It is.")
    with pytest.raises(InputError, match="has no segments, text or content"):
        parse('{"words": []}')


def test_a_reference_goes_on_where_the_text_is_in_it():
    parts = [(1.0, 1.2, "one two three"), (1.2, 1.4, "four five"), (None, None, "six seven")]
    reference = Reference(parts, encode, SPECIAL, 40)
    at = [SPECIAL.first_timestamp + i for i in range(40)]
    one, two, six = map(encode, ("one two three", "four five", "six seven"))
    assert reference.draft(1.0, []) == [at[0], *one, at[10], at[10], *two, at[20], at[0], *six]
    reference.follow([*one[:8], 1, 2, 3, 4, 5, 6])  # as long as the part that it resembles
    assert reference.draft(1.2, [])[:3] == [at[0], *two[:2]]
    reference.follow(encode("another text altogether")[9:])
    assert reference.draft(1.3, [at[0], *two[:5]])[6:] == [*two[5:], at[5], at[0], *six]
    reference.follow([*two, *six[:4]])
    assert reference.draft(2.0, []) == [at[0], *six[4:]]
    reference.follow(one)  # again
    assert reference.draft(1.2, [])[:3] == [at[0], *two[:2]]


def test_times_beyond_the_window_are_no_tokens_beyond_the_vocabulary():
    reference = Reference([(0.0, 9.0, "one"), (9.0, 99.0, "two")], encode, SPECIAL, 40)
    assert max(reference.draft(0.0, [])) == wm.VOCAB - 1


SEGMENT = '{"segments": [{"start": %s, "end": 2, "text": %s}]}'
WORDS = '"one two three"'


@pytest.mark.parametrize(
    "wrong",
    [
        *(SEGMENT % (start, WORDS) for start in ("1e999", "-Infinity", "NaN", '"1e999"', '"x"')),
        *(
            SEGMENT % (start, WORDS)
            for start in ("null", "true", "[1]", "{}", "9" * 400, "9" * 9000)
        ),
        *(SEGMENT % (1, text) for text in ("null", "5", '["a"]', r'"\ud800"')),
        *('{"text": 5}', '{"content": null}', r'{"text": "\ud800"}', '{"segments": {"a": 1}}'),
        *('{"segments": ' * 9000, "[" * 9000),
    ],
)
def test_a_reference_of_wrong_json_is_one_line(wrong):
    with pytest.raises(InputError, match=r"^the reference's JSON .*$"):
        parse(wrong)


@pytest.mark.parametrize("start", ["-5", "3", "1e300", '"1.5"'])
def test_a_time_that_is_no_such_time_is_no_more_than_a_bad_draft(start):
    reference = Reference(parse(SEGMENT % (start, WORDS)), encode, SPECIAL, 40)
    draft = reference.draft(0.0, [])
    assert draft[1:-1] == encode("one two three") and max(draft) < wm.VOCAB
