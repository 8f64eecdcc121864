"""OpenAI's answers: turns rows into bodies, whole or in the events of a stream."""

import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate, count
from typing import Any

from tokenizers import Tokenizer

from apps.serving.engine import START, Progress
from apps.serving.requests import Chat, Fields
from apps.serving.transport import RowStep, event_of
from speculative.step.row import Row, Stats
from speculative.text.tokenizer import token_bytes

Piece = Callable[[int, bool], tuple[str, bytes]]
CallParts = list[tuple[int, str | None, str]]
Bodies = Iterator[dict[str, Any]]
DONE = "data: [DONE]\n\n"
_DECODER = json.JSONDecoder()
_NAMED = re.compile(r'\{"name": ("(?:[^"\\]|\\.)*"), "arguments": ')


class Thinking:
    """Splits a text into what the model thinks, between two marks at the text's beginning, and its answer, as pieces
    of the text arrive. White space around the marks belongs to neither."""

    def __init__(self, marks: tuple[str, str] | None, begun: bool = False):
        """marks: None: all is answer. begun: the prompt ends with the first mark, or behind it."""
        self.marks = marks
        self._text = marks[0] if marks and begun else ""
        self._sent = (0, 0)  # characters of the parts

    def push(self, text: str, is_last: bool) -> tuple[str, str]:
        """The parts that the text's next piece adds to the thoughts and to the answer."""
        self._text += text
        thought, answer = self._parts(is_last)
        new = thought[self._sent[0] :], answer[self._sent[1] :]
        self._sent = len(thought), len(answer)
        return new

    def _parts(self, is_whole: bool) -> tuple[str, str]:
        """The text's thoughts and answer, without an ending that may be the beginning of a mark."""
        if self.marks is None:
            return "", self._text
        start, end = self.marks
        text = self._text.lstrip()
        if not text.startswith(start):
            is_open = start.startswith(text) and not is_whole
            return "", "" if is_open else self._text
        thought, mark, answer = text[len(start) :].partition(end)
        if not (mark or is_whole):
            begun = max(n for n in range(len(end)) if thought.endswith(end[:n]))
            thought = thought[: len(thought) - begun]
        return thought.strip(), answer.lstrip()


class Calls:
    """Splits a text into what is before its calls of functions, {"name": ..., "arguments": ...}, and these calls, as the
    text arrives. White space before the mark of the first call belongs to neither."""

    def __init__(self, mark: str):
        """mark: what begins the first call; "": it begins the text"""
        self.ids: list[str] = []  # of the calls that have begun
        self._mark = mark
        self._text = ""
        self._sent = [0]  # characters of the text before the calls, and of the arguments of each

    def push(self, text: str, is_last: bool) -> tuple[str, CallParts]:
        """What the text's next piece adds before the calls, and to calls: a call's number, its name if it is new, and
        more of its arguments."""
        self._text += text
        before, *rest = self._text.split(self._mark, 1) if self._mark else ("", self._text)
        if rest:
            before = before.rstrip()
        elif not is_last:  # its end may be the beginning of the mark
            begun = max(n for n in range(len(self._mark)) if before.endswith(self._mark[:n]))
            before = before[: len(before) - begun].rstrip()
        new: CallParts = []
        for i, (name, arguments) in enumerate(_calls_in("".join(rest))):
            if i == len(self.ids):
                self.ids.append(f"call_{uuid.uuid4().hex}")
                self._sent.append(0)
                new.append((i, name, self._unsent(i + 1, arguments)))
            elif len(arguments) > self._sent[i + 1]:
                new.append((i, None, self._unsent(i + 1, arguments)))
        return self._unsent(0, before), new

    def _unsent(self, part: int, text: str) -> str:
        """What a part of the text has gained."""
        begin = self._sent[part]
        self._sent[part] = len(text)
        return text[begin:]


def _calls_in(text: str) -> Iterator[tuple[str, str]]:
    """The name and the arguments of each call in a text, of the last one as far as it goes."""
    head = _NAMED.search(text)
    while head:
        end = len(text)
        with suppress(ValueError, RecursionError):  # not complete, or deeper than Python reads
            _, value_end = _DECODER.raw_decode(text, head.end())
            if text[value_end : value_end + 1] == "}":
                end = value_end
        yield json.loads(head[1]), text[head.end() : end]
        head = _NAMED.search(text, end)


class AnswerWriter:
    """Writes the bodies of a request's answers. Its rows are its prompts in order, `num_samples` of each."""

    def __init__(self, request: Fields, rows: Mapping[Row, Thinking], model: str, piece: Piece):
        """rows: with a splitter for the text of each; piece: see `pieces`."""
        self.rows = [*rows]
        self._request = request
        self._thinking = rows
        self._piece = piece
        self._ends = dict.fromkeys(rows, START)  # of what has been written
        self._has_usage = bool(request.stream_options.get("include_usage"))
        self._chat = isinstance(request, Chat)
        self._called = "tool_calls"  # the finish reason, and the field of a message
        if isinstance(request, Chat) and request.functions:  # of older clients
            self._called = "function_call"
        tools = self.rows[0].options.tools
        mark = "".join(tools["marks"][0].split()[:1]) if tools else ""
        self._calls = {row: Calls(mark) for row in rows if tools}
        kind, name = ("chat.completion", "chatcmpl") if self._chat else ("text_completion", "cmpl")
        self._head = {
            "id": f"{name}-{uuid.uuid4().hex}",
            "object": f"{kind}.chunk" if self._chat and request.stream else kind,
            "created": int(time.time()),
            "model": model,
            "seed": self.rows[0].options.seed,  # null: none was needed
        }

    async def events(self, steps: AsyncIterator[RowStep]) -> AsyncIterator[str]:
        """The events of a stream."""
        for index in range(len(self.rows) if self._chat else 0):
            delta = {"role": "assistant", "content": None if self._calls else ""}
            yield self._event({"index": index, "delta": delta, "finish_reason": None})
        async for step in steps:
            self._ends[step.row] = step.now
            yield self._event(self._choice(step))
        if self._has_usage:
            yield event_of({**self._head, "choices": [], "usage": self._usage()})
        yield DONE

    def whole(self, ends: Mapping[Row, Progress]) -> dict[str, Any]:
        """The whole answer, once all rows have ended."""
        self._ends |= ends
        choices = [self._choice(RowStep(row, START, ends[row])) for row in self.rows]
        return {**self._head, "choices": choices, "usage": self._usage()}

    def _event(self, choice: dict[str, Any]) -> str:
        usage = {"usage": None} if self._has_usage else {}
        return event_of({**self._head, "choices": [choice], **usage})

    def _choice(self, step: RowStep) -> dict[str, Any]:
        finish_reason = step.now.finish_reason
        thought, text, calls = self._split(step)
        choice: dict[str, Any] = {"index": self.rows.index(step.row)}
        if not self._chat:
            choice["text"] = text
        else:
            message = self._message(step.row, text, calls)
            if thought:
                message["reasoning_content"] = thought
            if self._request.stream:
                choice["delta"] = message
            else:
                choice["message"] = {"role": "assistant", "refusal": None, **message}
        choice["logprobs"] = self._scored(step.row, step.new)
        choice["finish_reason"] = finish_reason
        if finish_reason == "stop" and step.row in self._calls and self._calls[step.row].ids:
            choice["finish_reason"] = self._called
        if self._request.origins:
            choice |= step.drafts()
        return choice

    def _split(self, step: RowStep) -> tuple[str, str, CallParts]:
        """The thoughts, the text and the calls' parts that a row has gained."""
        is_last = bool(step.now.finish_reason)
        text = "".join(step.row.texts[step.new])
        thought, text = self._thinking[step.row].push(text, is_last)
        if step.row not in self._calls:
            return thought, text, []
        return thought, *self._calls[step.row].push(text, is_last)

    def _message(self, row: Row, text: str, calls: CallParts) -> dict[str, Any]:
        """The fields that a text and parts of calls add to a row's message."""
        if row not in self._calls:
            return {"content": text}
        listed = []
        for i, name, arguments in calls:
            call: dict[str, Any] = {"function": {"arguments": arguments}}
            if name is not None:
                call |= {"id": self._calls[row].ids[i], "type": "function"}
                call["function"]["name"] = name
            if self._request.stream:
                call["index"] = i
            listed.append(call)
        message: dict[str, Any] = {"content": text or None}
        if listed and self._called == "function_call":
            return message | {"function_call": listed[0]["function"]}
        if listed:
            message["tool_calls"] = listed
        return message

    def _scored(self, row: Row, new: slice) -> dict[str, Any] | None:
        if row.options.logprobs is None:
            return None
        tokens = row.generated
        first = next((i for i, token in enumerate(tokens) if self._piece(token, False)[1]), 0)

        def scored(i: int, token: int, score: float) -> dict[str, Any]:
            name, data = self._piece(token, i <= first)
            return {"token": name, "logprob": score, "bytes": list(data)}

        content = [
            scored(i, tokens[i], row.logprobs[i])
            | {"top_logprobs": [scored(i, *best) for best in row.best[i]]}
            for i in range(new.start, new.stop)
        ]
        if self._chat:
            return {"content": content, "refusal": None}
        return {
            "tokens": [token["token"] for token in content],
            "token_logprobs": row.logprobs[new],
            "top_logprobs": [
                {best["token"]: best["logprob"] for best in token["top_logprobs"][::-1]}
                for token in content
            ],
            "text_offset": [*accumulate(map(len, row.texts[: new.stop]), initial=0)][new],
        }

    def _usage(self) -> dict[str, Any]:
        prompts = self.rows[:: self.rows[0].options.num_samples]
        prompt_tokens = sum(len(row.prompt) for row in prompts)
        stats = sum((end.stats for end in self._ends.values()), Stats())
        cached_tokens = sum(self._ends[row].stats.cached_tokens for row in prompts)
        return {
            "prompt_tokens": prompt_tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
            "completion_tokens": stats.tokens,
            "total_tokens": prompt_tokens + stats.tokens,
            "completion_tokens_details": {
                "accepted_prediction_tokens": stats.accepted,
                "rejected_prediction_tokens": stats.draft_tokens - stats.accepted,
            },
        }


class ResponseWriter(AnswerWriter):
    """Writes the answer of /v1/responses, of one row: after the reasoning of a model that thinks a message, calls, or both."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        (self._row,) = self.rows
        more = dict(object="response", created_at=self._head["created"])
        names = {"tools", "tool_choice", "parallel_tool_calls"}
        self._head |= self._request.model_dump(include=names) | more
        self._items: list[dict[str, Any]] = []
        self._numbers = count()

    async def events(self, steps: AsyncIterator[RowStep]) -> AsyncIterator[str]:
        for body in self._begin():
            yield self._numbered(body)
        async for step in steps:
            for body in self._grow(step):
                yield self._numbered(body)
        for body in self._end():
            yield self._numbered(body)
        yield DONE

    def whole(self, ends: Mapping[Row, Progress]) -> dict[str, Any]:
        step = RowStep(self._row, START, ends[self._row])
        *_, last = [*self._begin(), *self._grow(step), *self._end()]
        return last["response"]

    def _numbered(self, body: dict[str, Any]) -> str:
        numbered = {**body, "sequence_number": next(self._numbers)}
        return f"event: {body['type']}\n{event_of(numbered)}"

    def _begin(self) -> Bodies:
        yield {"type": "response.created", "response": self._response("in_progress", [])}
        if self._thinking[self._row].marks:
            yield from self._added(_item("reasoning", "reasoning_text", summary=[]))
        if not self._calls:
            yield from self._added(_item("message", "output_text", role="assistant"))

    def _added(self, item: dict[str, Any]) -> Bodies:
        """The events of a new item."""
        self._items.append(item)
        index = len(self._items) - 1
        if "content" not in item:
            yield self._about(index, "output_item.added", item={**item})
        else:
            yield self._about(index, "output_item.added", item=item | {"content": []})
            yield self._about(index, "content_part.added", part=item["content"][0])

    def _grow(self, step: RowStep) -> Bodies:
        self._ends[step.row] = step.now
        thought, answer, calls = self._split(step)
        kinds = [item["type"] for item in self._items]
        if answer and "message" not in kinds:
            yield from self._added(_item("message", "output_text", role="assistant"))
            kinds.append("message")
        for kind, text in (("reasoning", thought), ("message", answer)):
            if text:
                part = self._items[kinds.index(kind)]["content"][0]
                part["text"] += text
                about = f"{part['type']}.delta"
                yield self._about(kinds.index(kind), about, delta=text, logprobs=[])
        for i, name, arguments in calls:
            if name is not None:
                call = {"call_id": self._calls[step.row].ids[i], "name": name, "arguments": ""}
                yield from self._added(_item("function_call", **call))
            index = len(self._items) - 1
            if arguments:
                self._items[index]["arguments"] += arguments
                yield self._about(index, "function_call_arguments.delta", delta=arguments)

    def _end(self) -> Bodies:
        is_cut = self._ends[self._row].finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        for index, item in enumerate(self._items):
            item["status"] = status
            if item["type"] == "function_call":
                arguments = item["arguments"]
                yield self._about(index, "function_call_arguments.done", arguments=arguments)
            else:
                part = item["content"][0]
                yield self._about(index, f"{part['type']}.done", text=part["text"], logprobs=[])
                yield self._about(index, "content_part.done", part=part)
            yield self._about(index, "output_item.done", item=item)
        response = self._response(status, self._items) | {"usage": self._usage()}
        if is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        yield {"type": f"response.{status}", "response": response}

    def _about(self, index: int, kind: str, **more: Any) -> dict[str, Any]:
        """An event about an item or its part."""
        fields = {"item_id": self._items[index]["id"], "output_index": index}
        if "content" in self._items[index]:
            fields["content_index"] = 0
        return {"type": f"response.{kind}", **fields, **more}

    def _response(self, status: str, items: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "status": status, "output": items, "error": None}

    def _usage(self) -> dict[str, Any]:
        usage = super()._usage()
        return {
            name.replace("prompt", "input").replace("completion", "output"): count
            for name, count in usage.items()
        }


def _item(kind: str, kind_of_part: str | None = None, **more: Any) -> dict[str, Any]:
    """An item, with one part if it has parts."""
    if kind_of_part:
        more["content"] = [{"type": kind_of_part, "text": "", "annotations": []}]
    return {"id": f"item_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **more}


def pieces(tokenizer: Tokenizer, hidden: Container[int]) -> Piece:
    """A function that gives a token's name and bytes: with the space before it, unless it is a text's first."""
    bytes_of = token_bytes(tokenizer, hidden)

    def piece(token: int, first: bool) -> tuple[str, bytes]:
        text = bytes_of(token)
        if not text:  # special: shown unless it is hidden
            name = tokenizer.id_to_token(token) or ""
            return name, b"" if token in hidden else name.encode()
        if first and not tokenizer.decode([token]).startswith(" "):
            text = text.removeprefix(b" ")
        return text.decode(errors="backslashreplace"), text

    return piece
