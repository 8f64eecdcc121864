"""The forms of audio requests: every option of a transcript is a field, and clients' other fields are taken as their servers do."""

import asyncio

import pytest
from helpers.serving import form
from starlette.requests import Request

import transcribe
from apps.serving.gate import Limits
from apps.serving.sound_requests import OPTIONS, Asr, Inference, SoundRequest, sound_request
from speculative.common.errors import InputError

OF_WHISPER_CPP = (  # the fields that its server.cpp reads, without those that are checked here
    "offset_t offset_n duration max_context max_len beam_size audio_ctx word_thold entropy_thold"
    " debug_mode diarize tinydiarize split_on_word token_timestamps detect_language temperature_inc suppress_non_speech"
    " suppress_nst vad_threshold vad_min_speech_duration_ms vad_min_silence_duration_ms vad_max_speech_duration_s"
    " vad_speech_pad_ms vad_samples_overlap no_language_probabilities"
).split()


def asked(fields, kind=SoundRequest, query=b""):
    body, headers = form(fields)
    named = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "query_string": query, "headers": named}

    async def receive():
        return {"type": "http.request", "body": body}

    limits = Limits(1, 1, 9, 1 << 20, 9)
    return asyncio.run(sound_request(Request(scope, receive), limits, kind))


def options(request):
    return vars(request.layout) | vars(request.options(None, "auto"))


@pytest.mark.parametrize("kind", [SoundRequest, Inference, Asr])
def test_every_option_is_a_field_and_means_what_its_flag_does(kind):
    default = options(asked({}))
    texts, flags = {}, ["a.wav"]
    for name, declared in OPTIONS.items():
        flag = name.replace("_", "-")
        accepts = declared.values.accepts
        if declared.values.kind is bool:
            texts[name] = str(not default[name])
            flags.append(f"--no-{flag}" if default[name] else f"--{flag}")
        else:
            values = {text: declared.values.parse(text) for text in ("3", "0.5", "translate")}
            texts[name] = next(t for t, x in values.items() if accepts(x) and x != default[name])
            flags.append(f"--{flag}={texts[name]}")
    given = vars(transcribe.parse_args(flags))
    found = options(asked(texts, kind))
    assert {name: found[name] for name in OPTIONS} == {name: given[name] for name in OPTIONS}
    assert not [name for name in OPTIONS if found[name] == default[name]]


@pytest.mark.parametrize("name", ["timestamp_granularities", "timestamp_granularities[]"])
@pytest.mark.parametrize("values", [['["word", "segment"]'], ["word,segment"], ["word", "segment"]])
def test_lists_come_as_json_with_commas_or_one_by_one(name, values):
    found = asked([*((name, value) for value in values), ("suppress_tokens[0]", "[-1, 5]")])
    assert found.timestamp_granularities == ["word", "segment"]
    assert options(found)["word_timestamps"] and options(found)["suppress_tokens"] == (-1, 5)


def test_whisper_cpps_fields_are_taken_there_only():
    used = dict(no_timestamps="true", vad="true", translate="true", prompt="Ann", model="ggml.bin")
    used |= dict(no_speech_thold="0.5", logprob_thold="-2")
    found = asked(dict.fromkeys(OF_WHISPER_CPP, "x") | used, Inference, b"language=de&seed=7")
    assert found.model is None
    known = dict(without_timestamps=True, vad=True, task="translate", initial_prompt="Ann")
    known |= dict(no_speech_threshold=0.5, logprob_threshold=-2.0, language="de", seed=7)
    assert known.items() <= options(found).items()
    for name in OF_WHISPER_CPP:
        if name != "temperature_inc":
            with pytest.raises(InputError, match=f"there is no field '{name}'"):
                asked({name: "1"})
    assert options(asked({}, query=b"language=de"))["language"] is None


@pytest.mark.parametrize(
    "field, text, error",
    [
        ("clip_timestamps", "x", "clip_timestamps is 'x', not seconds"),
        ("reading_speed", "fast", "reading_speed is 'fast', not a number above 0"),
        ("logprob_threshold", "hot", "logprob_threshold is 'hot', not a number, or none"),
        ("vad_filter", "perhaps", "vad is 'perhaps', not True or False"),
        ("given", "x", "given: "),
        ("layout", "x", "layout: "),
    ],
)
def test_what_no_option_takes_is_one_line(field, text, error):
    with pytest.raises(InputError, match=error):
        options(asked({field: text}))
