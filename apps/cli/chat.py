"""main.py --chat: a conversation on the terminal."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module

from apps.cli.display import Summary
from apps.cli.session import Session
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.text.text_side import Prompt


def chat(session: Session) -> None:
    """Answer what is typed on the terminal until /q or the end of the input. With a chat template the conversation goes
    on; otherwise each prompt stands alone."""
    messages = session.prompt_format.first_messages
    for typed in _typed_lines():
        if typed == "/r":
            messages = session.prompt_format.first_messages
            continue
        messages.append({"role": "user", "content": typed})
        prompt: Prompt | str = typed
        if session.prompt_format.has_template:
            prompt = Prompt(messages, template_kwargs=session.prompt_format.template_kwargs)
        text = ""
        summary = Summary()
        try:
            for response in session.decoder.stream_generate(prompt, **vars(session.options)):
                print(session.display.text(response), end="", flush=True)
                text += response.text
            summary.add(response)
        except KeyboardInterrupt:
            pass
        except InputError as error:
            reporter.note(str(error))
            messages.pop()
            continue
        print()
        messages.append({"role": "assistant", "content": text})
        summary.print(session.decoder, session.display.verbose)


def _typed_lines() -> Iterator[str]:
    """The lines that are typed, without empty ones, until /q or the end of the input."""
    sign = ""
    if sys.stdin.isatty():
        import_module("readline")  # arrows in `input`
        sign = ">> "
        reporter.note("/r begins anew, /q ends, Ctrl-C stops an answer")
    with suppress(EOFError):
        for line in iter(lambda: input(sign).strip(), "/q"):
            if line:
                yield line
