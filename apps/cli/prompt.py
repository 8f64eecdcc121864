"""main.py --prompt: one prompt, whose text appears as it is written."""

import sys
from dataclasses import replace

from apps.cli import cli
from apps.cli.display import Summary, to_json
from apps.cli.session import Session
from decoder import Content
from speculative.common.errors import InputError


def read_prompt(argument: str) -> str:
    if argument != "-":
        return argument
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")  # drops a byte-order mark
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8 text") from None


def decode_prompt(session: Session, prompt: Content) -> None:
    display = session.display
    summary = Summary()
    if display.as_json or session.options.num_samples > 1:
        for response in session.decoder.batch_generate([prompt], **vars(session.options)):
            print(to_json(0, response) if display.as_json else display.text(response))
            summary.add(response)
            session.remember(response)
    else:
        text = ""
        for response in session.decoder.stream_generate(prompt, **vars(session.options)):
            print(display.text(response), end="", flush=True)
            text += response.text
        print()
        summary.add(response)
        session.remember(replace(response, text=text))
    summary.print(session.decoder, display.verbose)
    if summary.failed:
        sys.exit(cli.INPUT_ERROR)
