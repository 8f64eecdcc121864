"""Generate text for prompts, speculatively if there is a draft model or something to copy.

python main.py --prompt "translate number to German: 1284"
python main.py --model t5-11b --draft-model t5-small --prompt "summarize: ..."
"""

import terminal  # noqa: F401 (first: it checks Python and the packages)

# isort: split
import argparse
import functools
import json
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from decoder import BATCH_SIZE, Options, Response, SpeculativeDecoder, load
from demo.pair import demo_model
from distributed.ranks import ALONE, Ranks, session
from errors import InputError
from families.causal_loading import encode_prompt
from speculative.options import FORMS, MAX_TOKENS
from terminal import cli
from terminal.chat import chat
from terminal.colours import coloured, legend, painted
from terminal.flags import (
    add_decoding_options,
    add_keep_read,
    add_memory,
    add_models,
    check_models,
    json_of,
    options_of,
    read_draft_vocabulary,
    read_memory,
)
from terminal.prompt_files import InOrder, PromptFile, answered
from terminal.reports import report_alone, report_generation
from terminal.summary import Summary
from text.languages import chosen
from text.memory import MemoryFile, Pair
from text.prompts import check_prompt

Done = Callable[[Response], None]
# Have no effect with beam search, nor with --num-draft 0
DRAFTING = "draft_model draft_vocabulary lookup delta reference memory".split()
# Of drafts; a prompt file's lines may have references
SOURCES = ["draft_model", "lookup", "reference", "memory", "prompt_file", *FORMS]
TOLD = 10  # seconds after which --verbose says again how far a file is, without a terminal
BEAMS = ("length_penalty", "early_stopping")  # have no effect without beam search
SAMPLING = ("top_k", "top_p", "min_p", "seed", "acceptance")  # have no effect on greedy decoding
TEMPLATE = ("system_prompt", "ignore_chat_template", "chat_template_config")
WITHOUT_PROMPT = """\
main.py needs a prompt (--prompt) or a file of prompts (--prompt-file). With the demo models, which are included:
  python main.py --prompt "translate number to German: 1284"
With a model from the Hugging Face hub, downloaded and converted on first use (docs/models.md lists models):
  python main.py --model google/flan-t5-base --prompt "Why is the sky blue?"
All options: python main.py --help; explained in docs/using.md
"""


def parse_args(argv: list[str] | None = None):
    what = "Generate text speculatively: the target's own output, in fewer passes through it."
    parser = cli.Parser(prog="main.py", description=what)
    flag = parser.add_argument
    add_models(parser)
    flag("--prompt", "-p", help="the prompt; - reads it from standard input")
    text = (
        "a file of prompts, one per line; - reads standard input; JSON lines with a field prompt if the "
        "name ends in .jsonl or the first line is one; or a JSON array of prompts"
    )
    flag("--prompt-file", type=cli.name, metavar="FILE", help=text)
    text = "write the outputs of the prompt file here; if it holds some already, go on after them"
    flag("--output", "-o", type=cli.path, metavar="FILE", help=text)
    text = f"prompts of the file to decode in one batch (default: {BATCH_SIZE})"
    flag("--batch-size", type=cli.count, default=argparse.SUPPRESS, help=text)
    text = (
        "answer prompts typed on the terminal; a model with a chat template keeps the conversation"
    )
    flag("--chat", action="store_true", help=text)
    add_memory(parser, grows=True)
    add_keep_read(parser)
    add_decoding_options(parser)
    flag("--system-prompt", metavar="TEXT", help="system prompt, for a model with a chat template")
    text = "do not put the prompt into the model's chat template"
    flag("--ignore-chat-template", action="store_true", help=text)
    text = 'arguments for the chat template: {"enable_thinking": false}'
    flag("--chat-template-config", type=json_of(dict, str), metavar="JSON", help=text)
    text = "further tokens that end an output, by name: </answer>"
    flag("--extra-eos-token", nargs="+", default=(), metavar="TOKEN", help=text)
    text = "print each output as a JSON object instead of text"
    flag("--json", action="store_true", help=text)
    flag("--verbose", action="store_true", help="print statistics to stderr at the end")
    text = (
        "on a terminal, colour each token by its origin: a form, prompt lookup, the draft model, the target in place of a "
        "rejected token, or the target's own"
    )
    flag("--show-draft", action="store_true", help=text)
    args = parser.parse_args(argv)
    if not (sys.argv[1:] if argv is None else argv):
        parser.exit(cli.USAGE_ERROR, WITHOUT_PROMPT)
    if [args.prompt is not None, args.prompt_file is not None, args.chat].count(True) != 1:
        parser.error("give one of --prompt, --prompt-file and --chat")
    check_models(args, parser)
    if args.output and args.prompt_file in (None, "-"):
        parser.error("--output is for the outputs of a --prompt-file")
    if args.chat and (args.json or args.memory_append):
        parser.error("--chat goes with neither --json nor --memory-append")
    if args.show_draft and args.json:
        parser.error("--show-draft colours text; with --json, read the field origins instead")
    return args


def read_prompt(argument: str) -> str:
    if argument != "-":
        return argument
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")  # drops a byte-order mark
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8 text") from None


def as_json(index: int, response: Response) -> str:
    """The response as a JSON object on one line."""
    names = "target_calls draft_tokens accepted accepted_lengths seconds preparing_seconds".split()
    stats = {name: getattr(response.stats, name) for name in names}
    stats["accepted_lengths"] = response.stats.histogram()
    fields = {"index": index, **vars(response), "stats": stats, "from_draft": response.from_draft}
    fields["mean_logprob"] = response.mean_logprob
    left_out = {name for name in ("score", "seed") if fields[name] is None}
    if response.logprobs is None:
        left_out |= {"logprobs", "top_logprobs", "mean_logprob"}
    return json.dumps({k: v for k, v in fields.items() if k not in left_out}, ensure_ascii=False)


def in_template(args, model) -> Callable[[str], list[int]] | None:
    """A function that puts a prompt into the model's chat template, as mlx-lm does; None if there is no template."""
    given = {name: value for name, value in vars(args).items() if name in TEMPLATE}
    if getattr(model, "chat", None) is None:
        if any(value not in (None, False) for value in given.values()):
            raise InputError("this model has no chat template")
        return None
    return lambda prompt: encode_prompt(model, prompt, **given)


def show_draft(args) -> Callable[[Response], str]:
    """A function from a response to the text to show. With --show-draft on a terminal, says what the colours mean."""
    if not (args.show_draft and coloured(sys.stdout)):
        return lambda response: response.text
    cli.write(legend(sys.stderr), sys.stderr)
    return painted


def print_summary(args, decoder, options: Options, summary: Summary, began: float) -> None:
    """Say on stderr which limit cut texts off; with --verbose, print statistics."""
    if summary.cut:
        texts = f"{summary.cut} of {summary.texts} texts" if args.prompt_file else "the text"
        taken = decoder.model.generation.taken(options)
        setting = next((name for name in ("max_new_tokens", "max_length") if name in taken), None)
        limit = options.max_tokens or MAX_TOKENS
        reason = f"--max-tokens {limit} cut {texts} short; raise it for the rest"
        if setting:
            limit = taken[setting]
            reason = f"the checkpoint's {setting}={limit} cut {texts} short; see --max-tokens"
        elif summary.longest_cut < limit:
            reason = f"the model's maximum length cut {texts} short"
        print(reason, file=sys.stderr)
    if summary.failed:
        print(
            f"{summary.failed} of {summary.texts} outputs could not keep to their form",
            file=sys.stderr,
        )
    if args.verbose:
        summary.pairs = len(decoder.memory.pairs) if decoder.memory else 0
        print("\n".join(summary.lines(time.perf_counter() - began)), file=sys.stderr)
        if decoder.draft_vocabulary:
            print(decoder.draft_vocabulary, file=sys.stderr)


def answer_prompt(args, decoder: SpeculativeDecoder, options: Options, remember: Done) -> None:
    """Decode the one prompt, streaming its text to stdout."""
    prompt = read_prompt(args.prompt)
    summary, began = Summary(), time.perf_counter()
    shown = show_draft(args)
    if args.json or options.num_samples > 1:
        for response in decoder.batch_generate([prompt], **vars(options)):
            print(as_json(0, response) if args.json else shown(response))
            summary.add(response)
            remember(response)
    else:
        text = ""
        for response in decoder.stream_generate(prompt, **vars(options)):
            print(shown(response), end="", flush=True)
            text += response.text
        print()
        summary.add(response)
        remember(replace(response, text=text))
    print_summary(args, decoder, options, summary, began)
    if summary.failed:
        sys.exit(cli.INPUT_ERROR)


def answer_file(
    args,
    decoder: SpeculativeDecoder,
    options: Options,
    ranks: Ranks,
    remember: Done = lambda response: None,
) -> None:
    """Decode the prompts of a file. Report lines without a usable prompt; they make the exit code 1."""

    from tqdm import tqdm

    def report(line: int, reason: str) -> None:
        cli.write(f"{file.name}, line {line + 1}: {reason}", sys.stderr)
        for sample in range(samples):
            output.put(line * samples + sample, "" if args.json else "\n")

    def finish(text: str) -> None:
        if response := finished.pop(output.reached, None):  # else the line has no prompt
            remember(response)
        cli.write(text, kept, end="")

    # A prompt that is too long for the model is a bad line too.
    unlimited = decoder.model.config.max_prompt_tokens is None
    check = check_prompt if unlimited else functools.partial(decoder.check, options=options)
    size, samples = vars(args).get("batch_size", BATCH_SIZE), options.num_samples
    kept, done = sys.stdout, 0
    if args.output:
        done = answered(args.output, samples, args.json)
        kept = open(args.output, "a", encoding="utf-8")  # noqa: SIM115 (it lives as long as we do)
    file = PromptFile(args.prompt_file, report, ranks, check, done)
    output, finished = InOrder(finish, done * samples), dict[int, Response]()
    shown = show_draft(args)
    summary, began = Summary(), time.perf_counter()
    regular = args.prompt_file != "-" and Path(args.prompt_file).is_file()
    lines = len(Path(args.prompt_file).read_bytes().splitlines()) if regular else None
    told = began
    with tqdm(desc="prompts", unit="", total=lines, initial=done, disable=None) as progress:
        try:
            for line, response in file.answers(decoder, size, options):
                text = as_json(line, response) if args.json else cli.one_line(shown(response))
                number = line * samples + response.sample
                finished[number] = response
                output.put(number, f"{text}\n")
                progress.update(response.sample == 0)
                summary.add(response)
                if args.verbose and progress.disable and time.perf_counter() - told >= TOLD:
                    told = time.perf_counter()
                    print(f"{done + summary.texts // samples}/{lines or '?'}", file=sys.stderr)
        except (Exception, KeyboardInterrupt) as error:
            if output.reached >= samples and not isinstance(error, BrokenPipeError):
                n = output.reached // samples
                line = f"{file.name}: answered up to line {n}; resume at line {n + 1}"
                cli.write(line, sys.stderr)
            raise
    print_summary(args, decoder, options, summary, began)
    if args.output:
        print(args.output)
    if file.bad_lines:
        raise InputError(f"{file.name}: {file.bad_lines} of {file.lines} lines have no answer")
    if summary.failed:
        sys.exit(cli.INPUT_ERROR)


def report_unused(given: dict, options: Options) -> None:
    """Say on stderr which of the given flags have no effect."""
    beams = options.num_beams > 1
    drafting = [name for name in DRAFTING if name != "memory" or not given["memory_append"]]
    alone = given["model"] and not any(given.get(name) for name in SOURCES)
    for names, unused, reason in (
        (("batch_size",), given["prompt_file"] is None, "without --prompt-file"),
        (SAMPLING, options.temp == 0, "at temperature 0; see --temp"),
        (("logprobs",), not given["json"], "without --json"),
        (("num_draft", *drafting), beams, "with --num-beams, which does not draft"),
        (drafting, not (beams or options.num_draft), "with --num-draft 0"),
        (
            ("num_draft",),
            alone and options.num_draft,
            "without a draft model, --lookup or a reference",
        ),
        (BEAMS, not beams, "without --num-beams"),
    ):
        for name in names:
            if unused and given.get(name) is not None:
                print(f"--{name.replace('_', '-')} has no effect {reason}", file=sys.stderr)


def open_decoder(
    args, options: Options, ranks: Ranks = ALONE, beams: bool = True
) -> SpeculativeDecoder:
    """The models that the command line names, or the demo models, with the memory and what else they need.
    beams: whether the command has --num-beams."""
    if args.model is None:
        args.model = ranks.together(lambda: demo_model("target"))
        args.draft_model = ranks.together(lambda: demo_model("draft"))
    model, tokenizer = load(args.model, ranks.group)
    for name in vars(args).get("extra_eos_token", ()):
        if (token := tokenizer.token_to_id(name)) is None:
            raise InputError(f"--extra-eos-token: {name[:50]!r} is not a token of this model")
        model.config = replace(model.config, eos_token_ids=(*model.config.eos_token_ids, token))
    draft_model = None
    if args.draft_model and options.num_draft and options.num_beams == 1:
        draft_model, _ = load(args.draft_model, ranks.group, split=False)
    cli.note_types(model, draft_model)
    report_generation(model, options, args.verbose, beams)
    memory = read_memory(args.memory) if args.memory else None
    tokens = read_draft_vocabulary(args.draft_vocabulary, tokenizer) if draft_model else None
    encode, keep_read = in_template(args, model), vars(args).get("keep_read")
    return SpeculativeDecoder(model, tokenizer, draft_model, encode, memory, tokens, keep_read)


def check_ranks(args, ranks: Ranks) -> None:
    """InputError unless all ranks were started with the same arguments, program and memory."""
    if args.chat or args.output:
        raise InputError("--chat and --output are for one process, not for mlx.launch")
    if "-" in (args.prompt, args.prompt_file):
        raise InputError(
            "mlx.launch does not pass on the end of standard input; use --prompt-file with a file"
        )
    # Paths may differ; the files behind them are compared or shared
    own = {"model", "draft_model", "draft_vocabulary", "prompt_file", "memory"}
    asked = {name: value for name, value in vars(args).items() if name not in own}
    root = Path(__file__).resolve().parent
    program = b"".join(f.read_bytes() for f in sorted([*root.glob("*.py"), *root.glob("*/*.py")]))
    memory = args.memory.read_bytes() if args.memory and args.memory.exists() else b""
    ranks.check_same(
        memory=f"{zlib.crc32(memory):08x}",
        set_of_arguments=json.dumps(asked, sort_keys=True),
        version_of_this_program=f"{zlib.crc32(program):08x}",
    )


def main() -> None:
    with session() as ranks:
        answer(parse_args(), ranks)


def answer(args, ranks: Ranks) -> None:
    """Do what the command line asks for."""
    options = options_of(args)
    report_unused(vars(args), options)
    if ranks.size > 1:
        check_ranks(args, ranks)
    elif args.prompt_file not in (None, "-"):
        Path(args.prompt_file).stat()  # report a missing file before models are loaded
    growing = MemoryFile(args.memory) if args.memory_append else None  # creates the file if needed
    decoder = open_decoder(args, options, ranks)
    model, memory = decoder.model, decoder.memory
    languages = None, None
    if decoder.encode is None:
        languages = chosen(model, options.source_lang, options.target_lang)

    def remember(response: Response) -> None:
        """Add the text to the memory if it is finished and new."""
        pair = Pair(response.prompt, response.text, *languages)
        whole = response.finish_reason == "stop" and response.sample == ranks.rank == 0
        if growing and memory and whole and pair not in memory:
            growing.append(pair)

    if args.chat:
        report = functools.partial(print_summary, args, decoder, options)
        system = args.system_prompt
        first = [{"role": "system", "content": system}] if system else []
        chat(decoder, options, first, args.chat_template_config or {}, show_draft(args), report)
    elif args.prompt_file is None:
        answer_prompt(args, decoder, options, remember)
    else:
        report_alone(decoder)
        answer_file(args, decoder, options, ranks, remember)


if __name__ == "__main__":
    cli.run(main)
