"""Generate text for prompts, speculatively if there is a draft model or something to copy.

python main.py --prompt "translate number to German: 1284"
python main.py --model google-t5/t5-11b --draft-model google-t5/t5-small --prompt "summarize: ..."
"""

import json
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import apps.cli  # noqa: F401 (first: it checks Python and the packages)
from apps.cli import cli, flags
from apps.cli.chat import chat
from apps.cli.display import Display, show_legend
from apps.cli.models import Models, note_alone, open_decoder
from apps.cli.prompt import decode_prompt, read_prompt
from apps.cli.prompt_files import FileTask, decode_file
from apps.cli.session import Session
from decoder import BATCH_SIZE, Options, Response, SpeculativeDecoder
from speculative.common.errors import InputError
from speculative.models.ranks import Ranks, session
from speculative.step.options import FORMS
from speculative.text.memory import MemoryFile, Pair

# Flags that give the drafter something to draft from; a prompt file's lines may have references
SOURCES = ("draft_model", "lookup", "reference", "memory", "prompt_file", *FORMS)
SAMPLING = ("top_k", "top_p", "min_p", "seed", "acceptance")  # do nothing in greedy decoding
WITHOUT_PROMPT = """\
main.py needs a prompt (--prompt) or a file of prompts (--prompt-file). With the demo models, which are included:
  python main.py --prompt "translate number to German: 1284"
With a model from the Hugging Face hub, downloaded and converted on first use (docs/models.md lists models):
  python main.py --model google/flan-t5-base --prompt "Why is the sky blue?"
All options: python main.py --help; explained in docs/using.md
"""


def parse_args(argv: list[str] | None = None):
    parser = cli.Parser(
        prog="main.py",
        description="Generate text speculatively: the target's own output, in fewer passes through it.",
    )
    add_flags(parser)
    args = parser.parse_args(argv)
    if not (sys.argv[1:] if argv is None else argv):
        parser.exit(cli.USAGE_ERROR, WITHOUT_PROMPT)
    check(args, parser)
    return args


def add_flags(parser: cli.Parser) -> None:
    flag = parser.add_argument
    flags.add_shared(parser, *flags.MODELS, "--distill")
    # fmt: off
    flag("--prompt", "-p", help="the prompt; - reads it from standard input")
    flag("--prompt-file", type=cli.name, metavar="FILE",
         help="a file of prompts, one per line; - reads standard input; JSON lines with a field prompt if the "
         "name ends in .jsonl or the first line is one; or a JSON array of prompts")
    flag("--output", "-o", type=cli.path, metavar="FILE",
         help="write the outputs of the prompt file here; if that is interrupted, the same command goes on")
    flag("--force", action="store_true", default=None, help="replace an output that exists")
    flag("--batch-size", type=cli.positive, help=f"prompts of the file to decode in one batch (default: {BATCH_SIZE})")
    flag("--chat", action="store_true",
         help="answer prompts typed on the terminal; a model with a chat template keeps the conversation")
    flags.add_shared(parser, "--memory", "--memory-append", "--prefix-cache")
    flags.add_options(parser)
    flag("--system-prompt", metavar="TEXT", help="system prompt, for a model with a chat template")
    flag("--ignore-chat-template", action="store_true", help="do not put the prompt into the model's chat template")
    flag("--prefill-response", metavar="TEXT", help="the output's beginning, which is not printed")
    flags.add_shared(parser, "--chat-template-config", "--extra-eos-token")
    flag("--json", action="store_true", help="print each output as a JSON object instead of text")
    flag("--verbose", action="store_true", help="print statistics to stderr at the end")
    flag("--show-draft", action="store_true",
         help="on a terminal, colour each token by its origin: a form, prompt lookup, the draft model, the target in "
         "place of a rejected token, or the target's own")
    # fmt: on


def check(args, parser: cli.Parser) -> None:
    if [args.prompt is not None, args.prompt_file is not None, args.chat].count(True) != 1:
        parser.error("give one of --prompt, --prompt-file and --chat")
    flags.check_models(args, parser)
    if args.distill is not None and args.prompt_file is None:
        parser.error("--distill is for a --prompt-file")
    if args.output and args.prompt_file in (None, "-"):
        parser.error("--output is for the outputs of a --prompt-file")
    if args.chat and (args.json or args.memory_append):
        parser.error("--chat goes with neither --json nor --memory-append")
    if args.prefill_response and (args.chat or args.memory_append):
        parser.error("--prefill-response goes with neither --chat nor --memory-append")
    if args.show_draft and args.json:
        parser.error("--show-draft colours text; with --json, read the field origins instead")


def unused(given: dict, options: Options) -> list[tuple[Sequence[str], str]]:
    """Flags that have no effect, and why."""
    searches = options.num_beams > 1
    drafting = ["draft_model", "draft_vocabulary", "lookup", "delta", "reference"]
    if not given["memory_append"]:
        drafting.append("memory")
    no_source = given["model"] and not any(given.get(name) for name in SOURCES)
    drafts = not searches and options.num_draft != 0
    rules: list[tuple[bool, Sequence[str], str]] = [
        (given["prompt_file"] is None, ["batch_size"], "without --prompt-file"),
        (given["output"] is None, ["force"], "without --output"),
        (options.temp == 0, SAMPLING, "at temperature 0; see --temp"),
        (not given["json"], ["logprobs"], "without --json"),
        (searches, ["num_draft", *drafting], "with --num-beams, which does not draft"),
        (not (searches or drafts), drafting, "with --num-draft 0"),
        (drafts and no_source, ["num_draft"], "without a draft model, --lookup or a reference"),
        (not searches, ["length_penalty", "early_stopping"], "without --num-beams"),
    ]
    return [(names, reason) for applies, names, reason in rules if applies]


def check_ranks(args, ranks: Ranks) -> None:
    """InputError unless all ranks were started with the same arguments, program and memory."""
    if args.chat or args.output or "-" in (args.prompt, args.prompt_file):
        raise InputError("--chat, --output and standard input are not for mlx.launch")
    # Paths may differ; the files behind them are compared or shared
    own = {"model", "draft_model", "draft_vocabulary", "prompt_file", "memory"}
    arguments = {name: value for name, value in vars(args).items() if name not in own}
    root = Path(__file__).resolve().parent
    kinds = ("*.py", "demo/*.py", "apps/**/*.py", "speculative/**/*.py")
    files = sorted(file for kind in kinds for file in root.glob(kind))
    program = b"".join(file.read_bytes() for file in files)
    memory = args.memory.read_bytes() if args.memory and args.memory.exists() else b""
    ranks.check_same(
        memory=f"{zlib.crc32(memory):08x}",
        set_of_arguments=json.dumps(arguments, sort_keys=True),
        version_of_this_program=f"{zlib.crc32(program):08x}",
    )


def remembering(
    file: MemoryFile | None, decoder: SpeculativeDecoder, options: Options, ranks: Ranks
) -> Callable[[Response], None]:
    """A function that adds a text to the file if it is finished and new."""
    if file is None or ranks.rank:
        return lambda response: None
    asked = options.source_lang, options.target_lang, options.prompt_template
    languages = decoder.text.resolve_languages(*asked)

    def remember(response: Response) -> None:
        pair = Pair(response.prompt, response.text, *languages)
        is_whole = response.finish_reason == "stop" and response.sample == 0
        if is_whole and decoder.memory and pair not in decoder.memory:
            file.append(pair)

    return remember


def run_command(args, ranks: Ranks) -> None:
    options = flags.options_of(args)
    flags.note_unused(vars(args), unused(vars(args), options))
    if ranks.size > 1:
        check_ranks(args, ranks)
    elif args.prompt_file not in (None, "-"):
        Path(args.prompt_file).stat()  # report a missing file before models are loaded
    flags.check_apart(args, [("--output", args.output)])
    memory_file = MemoryFile(args.memory) if args.memory_append else None  # created if needed
    models = Models.of(args)
    decoder = open_decoder(models, options, ranks)
    prompt_format = decoder.text.prompt_format(
        args.system_prompt, args.chat_template_config, args.ignore_chat_template, args.prefill_response
    )  # fmt: skip
    display = Display(args.json, args.verbose, args.show_draft and show_legend())
    remember = remembering(memory_file, decoder, options, ranks)
    session = Session(decoder, options, prompt_format, display, remember, ranks)
    if args.chat:
        chat(session)
    elif args.prompt_file is None:
        decode_prompt(session, prompt_format.prompt(read_prompt(args.prompt)))
    else:
        note_alone(decoder)
        stamp = models.stamp() if args.output else ""
        batch_size = args.batch_size or BATCH_SIZE
        task = FileTask(args.prompt_file, args.output, batch_size, stamp, args.force)
        decode_file(session, task)


def main() -> None:
    with session() as ranks:
        run_command(parse_args(), ranks)


if __name__ == "__main__":
    cli.run(main)
