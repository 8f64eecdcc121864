"""Answers of /v1/completions and /v1/chat/completions: whole, or in the events of a stream."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from apps.serving.answers import DONE, Answer, CallParts, head_of, usage_of
from apps.serving.engine import START, Progress
from apps.serving.requests import Chat, Completion
from apps.serving.transport import RowStep, event_of
from speculative.step.row import Row


class CompletionWriter:
    """Writes the bodies of a request's answers."""

    def __init__(
        self,
        request: Completion | Chat,
        answers: Sequence[Answer],
        model: str,
        named: Callable[[int, bool], tuple[str, bytes]],
    ):
        """answers: to its prompts in order, `num_samples` to each; named: see `token_names`"""
        self.rows = [answer.row for answer in answers]
        self._answers = answers
        self._request = request
        self._named = named
        self._has_usage = bool(request.stream_options.get("include_usage"))
        self._chat = isinstance(request, Chat)
        self._called = "tool_calls"  # the finish reason, and the field of a message
        if isinstance(request, Chat) and request.functions:  # of older clients
            self._called = "function_call"
        if self._chat:
            kind = "chat.completion.chunk" if request.stream else "chat.completion"
            self._head = head_of(self.rows[0], kind, "chatcmpl", model)
        else:
            self._head = head_of(self.rows[0], "text_completion", "cmpl", model)

    async def events(self, steps: AsyncIterator[RowStep]) -> AsyncIterator[str]:
        for index, answer in enumerate(self._answers if self._chat else ()):
            delta = {"role": "assistant", "content": None if answer.calls else ""}
            yield self._event({"index": index, "delta": delta, "finish_reason": None})
        async for step in steps:
            yield self._event(self._choice(step))
        if self._has_usage:
            yield event_of({**self._head, "choices": [], "usage": usage_of(self._answers)})
        yield DONE

    def whole(self, ends: Mapping[Row, Progress]) -> dict[str, Any]:
        """The whole answer, once all rows have ended."""
        choices = [self._choice(RowStep(row, START, ends[row])) for row in self.rows]
        return {**self._head, "choices": choices, "usage": usage_of(self._answers)}

    def _event(self, choice: dict[str, Any]) -> str:
        usage = {"usage": None} if self._has_usage else {}
        return event_of({**self._head, "choices": [choice], **usage})

    def _choice(self, step: RowStep) -> dict[str, Any]:
        index = self.rows.index(step.row)
        answer = self._answers[index]
        thought, text, calls = answer.take(step)
        choice: dict[str, Any] = {"index": index}
        if not self._chat:
            choice["text"] = text
        else:
            message = self._message(answer, text, calls)
            if thought:
                message["reasoning_content"] = thought
            if self._request.stream:
                choice["delta"] = message
            else:
                choice["message"] = {"role": "assistant", "refusal": None, **message}
        choice["logprobs"] = self._scored(step.row, step.new)
        choice["finish_reason"] = step.now.finish_reason
        if step.now.finish_reason == "stop" and answer.calls and answer.calls.ids:
            choice["finish_reason"] = self._called
        if self._request.origins:
            choice |= step.drafts()
        return choice

    def _message(self, answer: Answer, text: str, calls: CallParts) -> dict[str, Any]:
        """The fields that a text and parts of calls add to a message."""
        if answer.calls is None:
            return {"content": text}
        listed = []
        for i, name, arguments in calls:
            call: dict[str, Any] = {"function": {"arguments": arguments}}
            if name is not None:
                call |= {"id": answer.calls.ids[i], "type": "function"}
                call["function"]["name"] = name
            if self._request.stream:
                call["index"] = i
            listed.append(call)
        message: dict[str, Any] = {"content": text or None}
        if listed and self._called == "function_call":
            message["function_call"] = listed[0]["function"]
        elif listed:
            message["tool_calls"] = listed
        return message

    def _scored(self, row: Row, new: slice) -> dict[str, Any] | None:
        if row.options.logprobs is None:
            return None
        tokens = row.generated
        first = next((i for i, token in enumerate(tokens) if self._named(token, False)[1]), 0)

        def scored(i: int, token: int, score: float) -> dict[str, Any]:
            name, data = self._named(token, i <= first)
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
