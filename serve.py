"""Serve a model over HTTP with OpenAI's, LibreTranslate's, DeepL's and LanguageTool's protocols: drafts in continuous batches.

python serve.py
python serve.py --model google-t5/t5-11b --draft-model google-t5/t5-small --port 8080
"""

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import apps.cli  # noqa: F401 (first: it checks Python and the packages)
from apps.cli import cli
from apps.cli.flags import MODELS, add_options, add_shared, check_models, options_of
from apps.cli.models import Models, merged_from, note_alone, open_decoder
from apps.cli.transcripts import open_transcriber
from apps.speech.transcriber import is_speech
from decoder import BATCH_SIZE, Options, SpeculativeDecoder
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.step.options import DECLARED

try:
    import uvicorn

    from apps.serving.app import Api
    from apps.serving.audio import OPENAI_NAMES
    from apps.serving.engine import Engine
    from apps.serving.gate import Gate, Limits, allowed_hosts, in_url
except ImportError as error:
    sys.exit(f"serve.py needs more packages ({error}): pip install -r requirements-apps.txt")

MAX_TOKENS = 4096  # of a prompt and of an answer, where the model has no limit
OF_TEXT = {
    *(DECLARED.keys() - {"num_draft", "acceptance", "delta"}),
    *("memory", "draft_vocabulary", "prefix_cache", "chat_template_config", "extra_eos_token"),
}
DEFAULT_NAME = "default_model"  # mlx-lm's, for the model that is served
UVICORN: dict[str, Any] = dict(
    log_config=None, server_header=False, timeout_graceful_shutdown=10, ws_ping_timeout=None
)


def split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def parse_args(argv: list[str] | None = None):
    parser = cli.Parser(
        prog="serve.py",
        description="Serve a model over HTTP with OpenAI's, LibreTranslate's, DeepL's and LanguageTool's protocols.",
        epilog="The decoding options are defaults; a request may set its own. No beam search.",
    )
    add_flags(parser)
    args = parser.parse_args(argv)
    check(args, parser)
    return args


def add_flags(parser: cli.Parser) -> None:
    limit = f"(default: the model's limit, or {MAX_TOKENS})"
    flag = parser.add_argument
    count = partial(flag, type=cli.positive, metavar="N")
    add_shared(parser, *MODELS, "--distill")
    # fmt: off
    flag("--host", type=cli.name, default="127.0.0.1",
         help="address to listen on; 0.0.0.0: all of this machine's (default: %(default)s)")
    flag("--port", type=int, metavar="PORT", default=8080, help="port to listen on; 0: any free one (default: %(default)s)")
    flag("--api-key", type=cli.name, metavar="KEY", help="answer only clients that send this key (default: no key)")
    flag("--allowed-hosts", type=split, metavar="NAMES", default=(),
         help="more names, with commas, by which requests may address the server; *: any (default: none)")
    flag("--allowed-origins", type=split, metavar="ORIGINS", default=(),
         help="web pages and browser extensions, with commas, that may send requests (CORS), or patterns of them such as "
         "moz-extension://*; *: any (default: only the server's)")
    flag("--served-model-name", type=cli.name, metavar="NAME",
         help="the model's name in /v1/models and in answers (default: the last part of --model)")
    count("--batch-size", default=BATCH_SIZE, help="prompts to decode in one batch (default: %(default)s)")
    count("--queue", default=256, help="prompts or files that may wait: raise it if clients get 503 (default: %(default)s)")
    count("--max-prompt-tokens", help=f"longest prompt to accept, in tokens {limit}")
    count("--max-request-tokens", help=f"longest answer, in tokens {limit}")
    count("--max-seconds", default=3600, help="longest audio to accept, in seconds (default: %(default)s)")
    count("--max-upload", default=25, help="largest audio file or document to accept, in MB (default: %(default)s)")
    count("--upload-seconds", default=30, help="seconds in which such a file must arrive (default: %(default)s)")
    add_shared(parser, "--prefix-cache", "--chat-template-config", "--extra-eos-token")
    flag("--verbose", action="store_true", help="log requests to stderr")
    # fmt: on
    add_shared(parser, "--memory")
    add_options(parser)


def check(args, parser: cli.Parser) -> None:
    """Exit with a message, or raise InputError, if the flags do not fit together."""
    check_models(args, parser)
    if args.max_request_tokens and vars(args).get("max_tokens", 0) > args.max_request_tokens:
        parser.error("--max-tokens is more than --max-request-tokens")
    beams = [name for name, declared in DECLARED.items() if declared.group == "beams"]
    refuse(args, beams, "the server does not search with beams")
    replace(options_of(args), temp=1.0)  # InputError if no request could sample


def refuse(args, names: Iterable[str], why: str) -> None:
    """Raise InputError if one of these options is given."""
    for name in sorted(names):
        if getattr(args, name, None) is not None:
            raise InputError(f"--{name.replace('_', '-')}: {why}")


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host.strip("[]"), port), family=family, backlog=1024)
        # For its connections, too: otherwise a body waits 40 ms for the client to acknowledge the head.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, OverflowError, UnicodeError, TypeError) as error:
        reason = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        message = f"cannot listen on port {port} of {host}: {reason} (see --port, --host)"
        raise InputError(message) from None


def model_id(model: str | Path) -> str:
    """The last part of a model's name or of its folder's path, such as of "." and ".."."""
    return Path(model).resolve().name or DEFAULT_NAME


def model_names(model: str | Path, given: Iterable[str | None]) -> list[str]:
    """The names that a user could call a model by: as it is given, and, if an adapter is merged into it, that and its base,
    each also by the last part of its name. given: the flags for it."""
    named = [str(name) for name in (model, *given, *merged_from(model)) if name]
    return [DEFAULT_NAME, *named, *map(model_id, named)]


def text_decoder(models: Models, options: Options) -> SpeculativeDecoder:
    decoder = open_decoder(models, options, serves=True)
    note_alone(decoder)
    with suppress(InputError):  # without llguidance, only what asks for it is refused
        _ = decoder.maker.grammars.ready
    decoder.maker.check("a", options)  # such as a language that the model does not know
    return decoder


def make_api(args, options: Options, address: str) -> Api:
    given = args.model, args.adapter_path
    models = Models.of(args)
    names = model_names(models.model, given)
    transcriber = None
    if args.model and is_speech(args.model):
        refuse(args, OF_TEXT, "the model transcribes audio; this is for texts")
        transcriber = open_transcriber(models, bool(options.num_draft), serves=True)
        decoder = transcriber.decoder
        names += OPENAI_NAMES
        options = replace(options, lookup=False)
    else:
        decoder = text_decoder(models, options)
    prompt_format = decoder.text.prompt_format(template_kwargs=args.chat_template_config)
    hosts = allowed_hosts(args.host, address, args.allowed_hosts)
    name = args.served_model_name or model_id(models.model)
    gate = Gate(name, names, args.api_key, hosts, args.allowed_origins)
    config = decoder.model.config
    limits = Limits(
        args.max_prompt_tokens or config.max_prompt_tokens or MAX_TOKENS,
        args.max_request_tokens or max(config.max_positions or MAX_TOKENS, options.max_tokens or 0),
        args.max_seconds,
        args.max_upload << 20,
        args.upload_seconds,
    )
    draft_model = model_id(models.draft_model or "") if decoder.draft_model else None
    engine = Engine(decoder, options, args.batch_size, args.queue)
    return Api(engine, gate, limits, draft_model, transcriber, prompt_format.template_kwargs)


def main() -> None:
    args = parse_args()
    listener = listen(args.host, args.port)
    address, port = listener.getsockname()[:2]
    api = make_api(args, options_of(args), address)
    logging.basicConfig(format="%(message)s", level=logging.INFO if args.verbose else logging.ERROR)
    server = uvicorn.Server(uvicorn.Config(api.app(), access_log=args.verbose, **UVICORN))
    serve(server, listener, api.engine, f"{api.gate.name} at http://{in_url(address)}:{port}")


def serve(server, listener: socket.socket, engine, name: str) -> None:
    """Decode here and answer in another thread. A signal lets running requests finish, a second one aborts them."""

    def stop(*_) -> None:
        # In a thread: the interrupted engine may hold its lock.
        end = engine.abort if engine.closed else engine.close
        threading.Thread(target=end).start()

    def serve_http() -> None:
        try:
            server.run(sockets=[listener])
        finally:
            engine.close()

    cli.on_signals(stop, signal.SIGINT, signal.SIGTERM)
    http_thread = threading.Thread(target=serve_http)
    http_thread.start()
    reporter.note(f"serving {name}")
    try:
        engine.run()
    finally:
        engine.close()
        server.should_exit = True
        http_thread.join(2 * UVICORN["timeout_graceful_shutdown"])
        if http_thread.is_alive():
            os._exit(0)  # it waits for a thread, such as one that cuts a book into sentences


if __name__ == "__main__":
    cli.run(main)
