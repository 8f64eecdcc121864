"""Requests of OpenAI's protocols as tests write them."""

import json

from apps.serving.bodies import parse
from apps.serving.requests import Chat, Completion, ResponseRequest
from speculative.step.options import Options

CHAT = {"messages": [{"role": "user", "content": "x"}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"required": ["a"]}}}
NAMED = {"type": "function", "function": {"name": "g"}}
KINDS = (Completion, Chat, ResponseRequest)


def parsed(fields, kind=Completion) -> Completion | Chat:
    given = {Chat: CHAT, ResponseRequest: {"input": "x"}}.get(kind, {"prompt": "x"})
    return parse(json.dumps({**given, **fields}).encode(), kind)


def options_of(fields, kind=Completion, defaults=Options()) -> Options:  # noqa: B008
    return parsed(fields, kind).options(defaults)
