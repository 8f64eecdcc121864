"""main.py --chat: answers what is typed on the terminal."""

import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from decoder import Options, Response, SpeculativeDecoder
from errors import InputError
from families.causal_loading import encode_messages
from terminal.summary import Summary


def chat(
    decoder: SpeculativeDecoder,
    options: Options,
    first: list[dict[str, Any]],
    settings: dict[str, Any],
    shown: Callable[[Response], str],
    report: Callable[[Summary, float], None],
) -> None:
    """Answer until /q or the end of the input. With a chat template the conversation goes on; other models get each
    prompt alone. first: the first messages; settings: the template's; report: called after each answer."""
    messages, prompt = first[:], ""
    if sys.stdin.isatty():
        import_module("readline")  # arrows in `input`
        prompt = ">> "
        print("/r begins anew, /q ends, Ctrl-C stops an answer", file=sys.stderr)
    if decoder.encode:  # with a chat template
        decoder.encode = lambda _: encode_messages(decoder.model, messages, **settings)
    while (typed := _line(prompt)) != "/q":
        if typed in ("", "/r"):
            messages[:] = first if typed else messages
            continue
        messages.append({"role": "user", "content": typed})
        text, summary, began = "", Summary(), time.perf_counter()
        try:
            for response in decoder.stream_generate(typed, **vars(options)):
                print(shown(response), end="", flush=True)
                text += response.text
            summary.add(response)
        except KeyboardInterrupt:
            pass
        except InputError as error:
            print(error, file=sys.stderr)
            messages.pop()
            continue
        print()
        messages.append({"role": "assistant", "content": text})
        report(summary, began)


def _line(prompt: str) -> str:
    try:
        return input(prompt).strip()
    except EOFError:
        return "/q"
