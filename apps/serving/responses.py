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
        yield self._response("created", "in_progress", [])
        if self._answer.thinking.marks:
            yield from self._add("reasoning", "reasoning_text", summary=[])
        if not self._answer.calls:
            yield from self._add("message", "output_text", role="assistant")

    def _add(self, kind: str, kind_of_part: str = "", **more: Any) -> Bodies:
        """The events of a new item. kind_of_part: if it has a text"""
        item = {"id": f"item_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **more}
        self._items.append(item)
        if kind_of_part:
            part = {"type": kind_of_part, "text": "", "annotations": []}
            item["content"] = [part]
            yield self._about(item, "output_item.added", item=item | {"content": []})
            yield self._about(item, "content_part.added", part=part)
        else:
            yield self._about(item, "output_item.added", item=item)

    def _grow(self, step: RowStep) -> Bodies:
        thought, answer, calls = self._answer.take(step)
        if answer and not any(item["type"] == "message" for item in self._items):
            yield from self._add("message", "output_text", role="assistant")
        for item in self._items:
            text = {"reasoning": thought, "message": answer}.get(item["type"])
            if text:
                part = item["content"][0]
                part["text"] += text
                yield self._about(item, f"{part['type']}.delta", delta=text, logprobs=[])
        for i, name, arguments in calls:
            if name is not None and self._answer.calls:
                call = {"call_id": self._answer.calls.ids[i], "name": name, "arguments": ""}
                yield from self._add("function_call", **call)
            if arguments:
                item = self._items[-1]
                item["arguments"] += arguments
                yield self._about(item, "function_call_arguments.delta", delta=arguments)

    def _end(self) -> Bodies:
        is_cut = self._answer.now.finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        for item in self._items:
            item["status"] = status
            if item["type"] == "function_call":
                arguments = item["arguments"]
                yield self._about(item, "function_call_arguments.done", arguments=arguments)
            else:
                part = item["content"][0]
                yield self._about(item, f"{part['type']}.done", text=part["text"], logprobs=[])
                yield self._about(item, "content_part.done", part=part)
            yield self._about(item, "output_item.done", item=item)
        ended = self._response(status, status, self._items)
        ended["response"]["usage"] = {
            name.replace("prompt", "input").replace("completion", "output"): count
            for name, count in usage_of([self._answer]).items()
        }
        if is_cut:
            ended["response"]["incomplete_details"] = {"reason": "max_output_tokens"}
        yield ended

    def _about(self, item: dict[str, Any], kind: str, /, **more: Any) -> dict[str, Any]:
        fields = {"item_id": item["id"], "output_index": self._items.index(item)}
        if "content" in item:
            fields["content_index"] = 0
        return {"type": f"response.{kind}", **fields, **more}

    def _response(self, kind: str, status: str, items: list[dict[str, Any]]) -> dict[str, Any]:
        response = {**self._head, "status": status, "output": items, "error": None}
        return {"type": f"response.{kind}", "response": response}
