"""OpenAI's answers: turns rows into bodies, whole or in the events of a stream."""

import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping
from itertools import accumulate, count
from typing import Any

from tokenizers import Tokenizer

from serving.engine import START, Progress
from serving.requests import Chat, Fields
from serving.transport import RowStep, event_of
from speculative.row import Row, Stats
from text.tokenizer import token_bytes

Piece = Callable[[int, bool], tuple[str, bytes]]
Bodies = Iterator[dict[str, Any]]
DONE = "data: [DONE]\n\n"
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


class Call:
    """Splits the call of a function that a row writes, {"name": ..., "arguments": ...}, as its text arrives."""

    def __init__(self) -> None:
        self.id = f"call_{uuid.uuid4().hex}"
        self._text = ""
        self._sent = 0  # characters; 0: not even the name

    def push(self, text: str, finish_reason: str | None) -> tuple[str | None, str]:
        """Add the text's next piece. Returns the function's name, once it is complete, and more of its arguments."""
        self._text += text
        head = _NAMED.match(self._text)
        if head is None:
            return None, ""
        name = None if self._sent else json.loads(head[1])
        end = len(self._text)
        if self._text.endswith("}") and finish_reason != "length":  # the call's, or sent later
            end -= 1
        arguments = self._text[max(self._sent, head.end()) : end]
        self._sent = end
        return name, arguments


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
        is_call = isinstance(request, Chat) and request.callable_tools
        self._calls = {row: Call() for row in rows} if is_call else {}
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
        thought, text = self._split(step)
        choice: dict[str, Any] = {"index": self.rows.index(step.row)}
        if not self._chat:
            choice["text"] = text
        else:
            message = self._call(step, text) if self._calls else {"content": text}
            if thought:
                message["reasoning_content"] = thought
            if self._request.stream:
                choice["delta"] = message
            else:
                choice["message"] = {"role": "assistant", "refusal": None, **message}
        choice["logprobs"] = self._scored(step.row, step.new)
        is_call = self._calls and finish_reason == "stop"
        choice["finish_reason"] = "tool_calls" if is_call else finish_reason
        if self._request.origins:
            choice |= step.drafts()
        return choice

    def _split(self, step: RowStep) -> tuple[str, str]:
        """The thoughts and the text that a row has gained."""
        text = "".join(step.row.texts[step.new])
        return self._thinking[step.row].push(text, bool(step.now.finish_reason))

    def _call(self, step: RowStep, text: str) -> dict[str, Any]:
        """The fields that a piece of a row's text adds to its message, which is a tool's call."""
        name, arguments = self._calls[step.row].push(text, step.now.finish_reason)
        call: dict[str, Any] = {"function": {"arguments": arguments}}
        if name is not None:
            call |= {"id": self._calls[step.row].id, "type": "function"}
            call["function"]["name"] = name
        elif not arguments:
            return {"content": None}
        if self._request.stream:
            call["index"] = 0
        return {"content": None, "tool_calls": [call]}

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
    """Writes the answer of /v1/responses, of one row: a message, after the reasoning of a model that thinks, or a call."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        (self._row,) = self.rows
        more = dict(object="response", created_at=self._head["created"], parallel_tool_calls=False)
        self._head |= self._request.model_dump(include={"tools", "tool_choice"}) | more
        self._items = [] if self._calls else [_item("message", "output_text", role="assistant")]
        if self._thinking[self._row].marks:
            self._items.insert(0, _item("reasoning", "reasoning_text", summary=[]))
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
        *_, last = [*self._grow(RowStep(self._row, START, ends[self._row])), *self._end()]
        return last["response"]

    def _numbered(self, body: dict[str, Any]) -> str:
        numbered = {**body, "sequence_number": next(self._numbers)}
        return f"event: {body['type']}\n{event_of(numbered)}"

    def _begin(self) -> Bodies:
        yield {"type": "response.created", "response": self._response("in_progress", [])}
        for index, item in enumerate(self._items):
            yield self._about(index, "output_item.added", item=item | {"content": []})
            yield self._about(index, "content_part.added", part=item["content"][0])

    def _grow(self, step: RowStep) -> Bodies:
        self._ends[step.row] = step.now
        thought, answer = self._split(step)
        if self._calls:
            yield from self._called(*self._calls[step.row].push(answer, step.now.finish_reason))
            return
        for index, item in enumerate(self._items):
            text = answer if item["type"] == "message" else thought
            part = item["content"][0]
            part["text"] += text
            if text:
                yield self._about(index, f"{part['type']}.delta", delta=text, logprobs=[])

    def _called(self, name: str | None, arguments: str) -> Bodies:
        """The events of a piece of a function's call."""
        if name is not None:
            call = {"call_id": self._calls[self._row].id, "name": name, "arguments": ""}
            self._items.append(_item("function_call", **call))
            yield self._about(0, "output_item.added", item={**self._items[0]})
        if arguments:
            self._items[0]["arguments"] += arguments
            yield self._about(0, "function_call_arguments.delta", delta=arguments)

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
