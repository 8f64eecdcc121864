"""main.py --prompt: one prompt, whose text appears as it is written."""

import sys
from collections.abc import Callable
from dataclasses import replace

from apps.cli import cli
from apps.cli.display import Display, Summary, to_json
from decoder import Content, Options, Response, SpeculativeDecoder
from speculative.common.errors import InputError


def read_prompt(argument: str) -> str:
    if argument != "-":
        return argument
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")  # drops a byte-order mark
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8 text") from None


def decode_prompt(
    prompt: Content,
    decoder: SpeculativeDecoder,
    options: Options,
    display: Display,
    remember: Callable[[Response], None],
) -> None:
    summary = Summary()
    if display.as_json or options.num_samples > 1:
        for response in decoder.batch_generate([prompt], **vars(options)):
            print(to_json(0, response) if display.as_json else display.text(response))
            summary.add(response)
            remember(response)
    else:
        text = ""
        for response in decoder.stream_generate(prompt, **vars(options)):
            print(display.text(response), end="", flush=True)
            text += response.text
        print()
        summary.add(response)
        remember(replace(response, text=text))
    summary.print(decoder, display.verbose)
    if summary.failed:
        sys.exit(cli.INPUT_ERROR)
