"""The forms of audio requests: every option of a transcript is a field, and clients' other fields are taken as their servers do."""

import asyncio

import pytest
from helpers.serving import form
from starlette.requests import Request

from apps.serving.gate import Limits
from apps.serving.sound_requests import OPTIONS, Asr, Inference, SoundRequest, sound_request
from speculative.common.errors import InputError

OF_WHISPER_CPP = """offset_t offset_n duration max_context max_len beam_size audio_ctx word_thold entropy_thold debug_mode
diarize tinydiarize split_on_word token_timestamps detect_language suppress_non_speech suppress_nst vad_threshold
vad_min_speech_duration_ms vad_min_silence_duration_ms vad_max_speech_duration_s vad_speech_pad_ms vad_samples_overlap
no_language_probabilities""".split()  # in its server.cpp


def asked(fields, kind=SoundRequest, query=b""):
    body, headers = form(fields)
    kinds = [(b"content-type", headers["content-type"].encode())]
    scope = {"type": "http", "method": "POST", "query_string": query, "headers": kinds}

    async def receive():
        return {"type": "http.request", "body": body}

    limits = Limits(1, 1, 9, 1 << 20, 9)
    return asyncio.run(sound_request(Request(scope, receive), limits, kind))


def options(request):
    return vars(request.layout) | vars(request.options(None, "auto"))


@pytest.mark.parametrize("kind", [SoundRequest, Inference, Asr])
def test_every_option_is_a_field(kind):
    default = options(asked({}))
    texts, values = {}, {}
    for name, declared in OPTIONS.items():
        for text in ("3", "0.5", "translate", "false", "true"):
            value = declared.values.parse(text)
            if declared.values.accepts(value) and value != default[name]:
                texts[name], values[name] = text, value
    found = options(asked(texts, kind))
    assert {name: found[name] for name in OPTIONS} == values and len(values) > 20


@pytest.mark.parametrize("values", [['["word", "segment"]'], ["word,segment"], ["word", "segment"]])
def test_lists_come_as_json_with_commas_or_one_by_one(values):
    for name in ("timestamp_granularities", "timestamp_granularities[]"):
        found = asked([*((name, value) for value in values), ("suppress_tokens[0]", "[-1, 5]")])
        assert found.timestamp_granularities == ["word", "segment"]
        assert options(found)["word_timestamps"] and options(found)["suppress_tokens"] == (-1, 5)


def test_whisper_cpps_fields_are_taken_there_only():
    used = dict(no_timestamps="true", prompt="Ann", model="ggml.bin", logprob_thold="-2")
    found = asked(dict.fromkeys(OF_WHISPER_CPP, "x") | used, Inference, b"language=de&seed=7")
    known = dict(without_timestamps=True, initial_prompt="Ann", logprob_threshold=-2.0)
    assert (known | dict(language="de", seed=7)).items() <= options(found).items()
    assert found.model is None and options(asked({}, query=b"language=de"))["language"] is None
    for name in OF_WHISPER_CPP:
        with pytest.raises(InputError, match=f"there is no field '{name}'"):
            asked({name: "1"})
