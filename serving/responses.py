"""Answers in OpenAI's newer protocol, /v1/responses: a message and, of a model that thinks, its reasoning before it; or a
function's call."""

import json
import uuid
from collections.abc import Mapping
from itertools import count
from typing import Any

from serving.answers import Bodies, Writer
from serving.engine import START, Progress
from serving.transport import RowStep
from speculative.row import Row


class ResponseWriter(Writer):
    """Writes a response of one row: the events that build up its items, each with one part, or what the last event holds."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        (self._row,) = self.rows
        self._head |= self._request.model_dump(include={"tools", "tool_choice"})
        self._items = [] if self._calls else [_item("message", "output_text", role="assistant")]
        if self._thinking[self._row].marks:
            self._items.insert(0, _item("reasoning", "reasoning_text", summary=[]))
        self._numbers = count()

    def event(self, body: dict[str, Any]) -> str:
        numbered = {**body, "sequence_number": next(self._numbers)}
        return f"event: {body['type']}\ndata: {json.dumps(numbered, ensure_ascii=False)}\n\n"

    def whole(self, ends: Mapping[Row, Progress]) -> dict[str, Any]:
        step = RowStep(self._row, START, ends[self._row])
        *_, last = [*self.chunks(step), *self.end()]
        return last["response"]

    def begin(self) -> Bodies:
        yield {"type": "response.created", "response": self._response("in_progress", [])}
        for index, item in enumerate(self._items):
            yield self._event(index, "output_item.added", item=item | {"content": []})
            yield self._event(index, "content_part.added", part=item["content"][0])

    def chunks(self, step: RowStep) -> Bodies:
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
                yield self._event(index, f"{part['type']}.delta", delta=text, logprobs=[])

    def _called(self, name: str | None, arguments: str) -> Bodies:
        """The events of a piece of a function's call."""
        if name is not None:
            call = {"call_id": self._calls[self._row].id, "name": name, "arguments": ""}
            self._items.append(_item("function_call", **call))
            yield self._event(0, "output_item.added", item={**self._items[0]})
        if arguments:
            self._items[0]["arguments"] += arguments
            yield self._event(0, "function_call_arguments.delta", delta=arguments)

    def end(self) -> Bodies:
        is_cut = self._ends[self._row].finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        for index, item in enumerate(self._items):
            item["status"] = status
            if item["type"] == "function_call":
                arguments = item["arguments"]
                yield self._event(index, "function_call_arguments.done", arguments=arguments)
            else:
                part = item["content"][0]
                yield self._event(index, f"{part['type']}.done", text=part["text"], logprobs=[])
                yield self._event(index, "content_part.done", part=part)
            yield self._event(index, "output_item.done", item=item)
        response = self._response(status, self._items) | {"usage": self._usage()}
        if is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        yield {"type": f"response.{status}", "response": response}

    def _event(self, index: int, kind: str, **more: Any) -> dict[str, Any]:
        """An event about an item or its part."""
        fields = {"item_id": self._items[index]["id"], "output_index": index}
        if "content" in self._items[index]:
            fields["content_index"] = 0
        return {"type": f"response.{kind}", **fields, **more}

    def _response(self, status: str, items: list[dict[str, Any]]) -> dict[str, Any]:
        head = {**self._head, "object": "response", "created_at": self._head["created"]}
        head["parallel_tool_calls"] = False
        return {**head, "status": status, "output": items, "error": None}

    def _usage(self) -> dict[str, Any]:
        usage = super()._usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        }


def _item(kind: str, kind_of_part: str | None = None, **more: Any) -> dict[str, Any]:
    """An item, with one part if it has parts."""
    if kind_of_part:
        more["content"] = [{"type": kind_of_part, "text": "", "annotations": []}]
    return {"id": f"item_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **more}
