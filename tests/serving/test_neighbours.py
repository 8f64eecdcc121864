"""Whatever one request brings, in any of its fields, the rows beside it end as alone, and no step fails."""

import json
from itertools import cycle

import pytest
from helpers.programs import ANSWER, PROMPT
from helpers.serving import alone

from apps.serving.app import Api
from apps.serving.bodies import parse
from apps.serving.engine import Engine
from apps.serving.fields import OPTION_NAMES
from apps.serving.gate import Gate, Limits
from apps.serving.requests import Chat, Completion, ResponseRequest
from decoder import Options
from speculative.common.errors import InputError

CHAT = [{"role": "user", "content": PROMPT}]
REQUESTS = {
    Completion: {"prompt": PROMPT},
    Chat: {"messages": CHAT},
    ResponseRequest: {"input": "x"},
}
ODD = [0, 1, -1, 10**6, -(10**6), 0.5, 1e9, -1e9, 1e-300]
ODD += ["", "x", "é\u2028🎈\0", "x" * 600, "\n" * 99]
ODD += [[], [0], [0, 1, 1099], ["x"], [["x"]], [[5], [6, 7]], {}, {"5": 1e9}, {"1": 1e9}, True]
BEGUN = [{"role": "assistant", "content": "e" * n} for n in range(70)]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {}}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}
FORM = [{"regex": "(a|b)*c"}, {"grammar": 'start: "a" start | "b"'}, {"json": {}}]
BIAS = {str(token): -1e9 for token in range(1000)}
# field -> values that mean something in it; the odd ones are tried in all
VALUES = {
    "bad_words_ids": [[[i] for i in range(256)]],
    "chat_template_kwargs": [{"enable_thinking": True, "source_lang_code": "en"}],
    "forced_bos_token_id": [1],
    "forced_eos_token_id": [1],
    "function_call": ["none", {"name": "f"}],
    "functions": [[TOOL["function"]]],
    "frequency_penalty": [2, -2],
    "input": [CHAT + BEGUN[-1:]],
    "logit_bias": [BIAS, {"1": 1e9}],
    "logprobs": [20],
    "messages": [[*CHAT, begun] for begun in BEGUN],
    "min_p": [1.0],
    "min_tokens": [4096],
    "n": [64],
    "no_repeat_ngram_size": [64],
    "num_draft": [64, "auto"],
    "prediction": [{"type": "content", "content": text} for text in ("", "x" * 5000, ANSWER, "\0")],
    "presence_penalty": [2, -2],
    "prompt": [[5] * 400, [[1], [0, 0]], ["x", "\0"], [PROMPT] * 9],
    "reasoning": [{"effort": "none"}],
    "reasoning_effort": ["none"],
    "reference": [ANSWER * 99],
    "repetition_penalty": [1e-9],
    "response_format": [{"type": "json_object"}, {"type": "json_schema", "schema": SCHEMA}],
    "seed": [10**18, -(10**18)],
    "source_lang": ["en"],
    "stop": [["e" * 999] * 16],
    "stop_token_ids": [[*range(256)]],
    "stream_options": [{"include_usage": True}],
    "structured_outputs": FORM,
    "suppress_tokens": [[*range(1100)], [1]],
    "target_lang": ["de"],
    "temperature": [1e-9],
    "text": [{"format": {"type": "json_object"}}],
    "tool_choice": ["none", "required"],
    "tools": [[TOOL]],
    "top_logprobs": [20],
    "top_p": [1e-9],
}
OTHERS = """enable_thinking continue_final_message add_generation_prompt instructions max_completion_tokens max_output_tokens max_tokens
    model num_draft_tokens origins parallel_tool_calls repetition_context_size stream top_k"""
VALUES |= {field: [] for field in OTHERS.split()}
NORMAL = [
    {"prompt": PROMPT, "max_tokens": 8, **each}
    for each in ({}, {"temperature": 1.0, "seed": 1}, {"num_draft": 0, "logprobs": 2})
]


def fields_of(kind) -> set[str]:
    return {field.alias or name for name, field in kind.model_fields.items()}


@pytest.fixture(scope="module")
def api(decoder):
    """For a model that knows 64 positions of an answer, as BART knows 1,024."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(decoder.model.config), "max_positions", 64)
        engine = Engine(decoder, Options(num_draft=3), 8, 9999)
        texts = [alone(decoder, each) for each in NORMAL]
        yield Api(engine, Gate("m"), Limits(4096, 8, 1, 1, 1)), texts


def test_every_field_has_its_values():
    assert {*VALUES} == {*OPTION_NAMES}.union(*map(fields_of, REQUESTS))


QUICK = ("logprobs", "n", "prompt", "stop", "structured_outputs")
FIELDS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in VALUES]


@pytest.mark.parametrize("field", FIELDS)
def test_a_request_changes_nothing_beside_it(api, field):
    api, texts = api
    engine, beside = api.engine, []
    kinds = [kind for kind in REQUESTS if field in fields_of(kind) | {*OPTION_NAMES}]
    for value, kind in zip([*ODD, *VALUES[field]], cycle(kinds)):
        number = len(beside) % len(NORMAL)
        fields = REQUESTS[kind] | {"temperature": number} | {field: value}
        try:
            odd = api._writer(parse(json.dumps(fields).encode(), kind)).rows
        except InputError as error:
            assert "\n" not in str(error)
            continue
        (row,) = api._writer(parse(json.dumps(NORMAL[number]).encode(), Completion)).rows
        beside.append((row, texts[number]))
        engine.submit([row, *odd[:3]], lambda: None)
    engine._decode(engine, engine.batch_size)  # raises what a step raises
    assert not engine._waiting
    for row, text in beside:
        assert [("".join(row.texts), row.finish_reason)] == text
