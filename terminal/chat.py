"""main.py --chat: prompts typed on a terminal, each answered as it comes."""

import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from decoder import Options, Response, SpeculativeDecoder
from errors import InputError
from families.causal_loading import in_template
from terminal import cli
from terminal.summary import Summary

KEYS = "/r begins anew, /q or Ctrl-D ends, Ctrl-C stops an answer"


def chat(
    decoder: SpeculativeDecoder,
    options: Options,
    first: list[dict[str, Any]],
    shown: Callable[[Response], str],
    report: Callable[[Summary, float], None],
) -> None:
    """Answer what is typed until the end. With a chat template the conversation goes on; other models get each prompt
    alone. first: the messages that every conversation begins with; report: called after each answer."""
    if sys.stdin.isatty():
        import_module("readline")  # arrows in `input`
        print(KEYS, file=sys.stderr)
    messages = first[:]
    if decoder.encode:  # with a chat template
        model = decoder.model
        encode = partial(decoder.tokenizer.encode, add_special_tokens=False)
        decoder.encode = lambda _: encode(in_template(model, messages)).ids
    while True:
        try:
            typed = input(">> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        if typed == "/q":
            return
        if typed == "/r":
            messages[:] = first
        if typed in ("", "/r"):
            continue
        messages.append({"role": "user", "content": typed})
        text, summary, began = "", Summary(), time.perf_counter()
        try:
            for response in decoder.stream_generate(typed, **vars(options)):
                print(shown(response), end="", flush=True)
                text += response.text
                last = response
            summary.add(last)
        except KeyboardInterrupt:
            pass
        except InputError as error:
            cli.write(cli.one_line(str(error)), sys.stderr)
            messages.pop()
            continue
        print()
        messages.append({"role": "assistant", "content": text})
        report(summary, began)
