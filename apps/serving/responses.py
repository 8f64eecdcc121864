"""The answer of /v1/responses: whole, or in the events of a stream."""

import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import count
from typing import Any

from apps.serving.answers import DONE, Answer, head_of, usage_of
from apps.serving.engine import START, Progress
from apps.serving.requests import ResponseRequest
from apps.serving.transport import RowStep, event_of
from speculative.step.row import Row

Bodies = Iterator[dict[str, Any]]


class ResponseWriter:
    """Writes one answer: after the reasoning of a model that thinks a message, calls, or both."""

    def __init__(self, request: ResponseRequest, answer: Answer, model: str):
        self.rows = [answer.row]
        self._answer = answer
        names = {"tools", "tool_choice", "parallel_tool_calls"}
        self._head = head_of(answer.row, "response", "chatcmpl", model)
        self._head |= request.model_dump(include=names)
        self._head["created_at"] = self._head["created"]
        self._items: list[dict[str, Any]] = []
        self._numbers = count()

    async def events(self, steps: AsyncIterator[RowStep]) -> AsyncIterator[str]:
        """The events of a stream."""
        for body in self._begin():
            yield self._numbered(body)
        async for step in steps:
            for body in self._grow(step):
                yield self._numbered(body)
        for body in self._end():
            yield self._numbered(body)
        yield DONE

    def whole(self, ends: Mapping[Row, Progress]) -> dict[str, Any]:
        """The whole answer, once its row has ended."""
        (row,) = self.rows
        *_, last = [*self._begin(), *self._grow(RowStep(row, START, ends[row])), *self._end()]
        return last["response"]

    def _numbered(self, body: dict[str, Any]) -> str:
        numbered = {**body, "sequence_number": next(self._numbers)}
        return f"event: {body['type']}\n{event_of(numbered)}"

    def _begin(self) -> Bodies:
        yield {"type": "response.created", "response": self._response("in_progress", [])}
        if self._answer.thinking.marks:
            yield from self._added(_item("reasoning", "reasoning_text", summary=[]))
        if not self._answer.calls:
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
        thought, answer, calls = self._answer.take(step)
        kinds = [item["type"] for item in self._items]
        if answer and "message" not in kinds:
            yield from self._added(_item("message", "output_text", role="assistant"))
            kinds.append("message")
        for kind, text in (("reasoning", thought), ("message", answer)):
            if text:
                index = kinds.index(kind)
                part = self._items[index]["content"][0]
                part["text"] += text
                yield self._about(index, f"{part['type']}.delta", delta=text, logprobs=[])
        for i, name, arguments in calls:
            if name is not None:
                call = {"call_id": self._answer.call_ids[i], "name": name, "arguments": ""}
                yield from self._added(_item("function_call", **call))
            index = len(self._items) - 1
            if arguments:
                self._items[index]["arguments"] += arguments
                yield self._about(index, "function_call_arguments.delta", delta=arguments)

    def _end(self) -> Bodies:
        status = "completed"
        more: dict[str, Any] = {}
        if self._answer.now.finish_reason == "length":
            status = "incomplete"
            more["incomplete_details"] = {"reason": "max_output_tokens"}
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
        usage = {_renamed(name): count for name, count in usage_of([self._answer]).items()}
        response = self._response(status, self._items) | {"usage": usage, **more}
        yield {"type": f"response.{status}", "response": response}

    def _about(self, index: int, kind: str, **more: Any) -> dict[str, Any]:
        """An event about an item or its part."""
        fields = {"item_id": self._items[index]["id"], "output_index": index}
        if "content" in self._items[index]:
            fields["content_index"] = 0
        return {"type": f"response.{kind}", **fields, **more}

    def _response(self, status: str, items: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "status": status, "output": items, "error": None}


def _renamed(count: str) -> str:
    """A count's name in this protocol."""
    return count.replace("prompt", "input").replace("completion", "output")


def _item(kind: str, kind_of_part: str | None = None, **more: Any) -> dict[str, Any]:
    """An item, with one part if it has parts."""
    if kind_of_part:
        more["content"] = [{"type": kind_of_part, "text": "", "annotations": []}]
    return {"id": f"item_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **more}
