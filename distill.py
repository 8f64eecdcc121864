"""Make a draft model of an encoder-decoder model, from the model itself and texts that it has written.

python distill.py --model madlad400-3b-mt --memory memory.jsonl
python distill.py --model madlad400-3b-mt --prompt-file sentences.txt --target-lang de
python distill.py --model madlad400-3b-mt --document book.docx manual.md --to German
python distill.py --model whisper-large-v3 talks/*.mp3
"""

import terminal  # noqa: F401 (first: it checks Python and the packages)

# isort: split
import blas  # noqa: F401 (before mlx: see there)

# isort: split
import sys
from functools import partial
from pathlib import Path
from typing import Any

from checkpoints.folder import MODELS, read_json
from checkpoints.weights import DTYPES
from decoder import BATCH_SIZE, Options, SpeculativeDecoder, load
from demo.pair import demo_model
from distillation.texts import Text
from distillation.training import Look, check_target, distill
from documents import read as read_document
from documents.document import Document
from documents.translator import Translator
from errors import InputError, naming
from families.distilled import Distilled, save, type_of
from reporting import reporter
from speculative.row import Row
from speech import audio
from speech.options import TranscribeOptions
from speech.transcriber import Transcriber, is_speech
from terminal import cli, flags
from terminal.prompt_files import PromptFile
from text.memory import MemoryFile, Pair, load_memory

LANGUAGES = {"source_lang": "--from", "target_lang": "--to"}
FEW = 200  # texts


def parse_args(argv: list[str] | None = None):
    parser = cli.Parser(
        prog="distill.py",
        description="Make a draft model of a model, from the model itself and texts that it has written.",
    )
    flag = parser.add_argument
    flags.add_shared(parser, "--model")
    # fmt: off
    flag("audio", nargs="*", metavar="FILE", help="for a speech model: sound to transcribe and learn from")
    flag("--memory", type=cli.path, metavar="FILE",
         help="texts that the model has written: a translation memory, as other commands' --memory-append makes it")
    flag("--prompt-file", type=cli.name, metavar="FILE",
         help="prompts whose texts the model writes first, and adds to --memory (default: OUTPUT.jsonl); a prompt that is "
         "there already is not written again")
    flag("--document", nargs="+", default=[], metavar="FILE",
         help="documents, of the formats of translate.py, whose sentences it translates first and adds in the same way")
    for name, short in LANGUAGES.items():
        flag(f"--{name.replace('_', '-')}", short, dest=name, metavar="LANG",
             help="of these prompts, for a model that translates")
    flag("--batch-size", type=cli.positive, default=BATCH_SIZE, metavar="N",
         help="prompts to decode in one batch (default: %(default)s)")
    flag("--layers", type=cli.positive, default=1, metavar="N",
         help="decoder layers of the draft model (default: %(default)s)")
    flag("--minutes", type=float, default=30, metavar="X",
         help="how long to train at most; it stops earlier once it gains nothing (default: %(default)s)")
    flag("--steps", type=cli.positive, metavar="N", help="train so many steps instead")
    flag("--dtype", choices=DTYPES, help="type of the draft model's weights (default: the model's)")
    flag("--output", type=cli.path, metavar="FOLDER",
         help="where to write; a draft model that is there is trained further (default: mlx_models/MODEL-draft)")
    # fmt: on
    args = parser.parse_intermixed_args(argv)
    if not (args.audio or args.memory or args.prompt_file or args.document):
        parser.error("--memory, --prompt-file, --document or sound is needed: what to learn from")
    if args.minutes <= 0:
        parser.error("--minutes is not above 0")
    return args


def main() -> None:
    args = parse_args()
    name = str(args.model or demo_model("speech/target" if args.audio else "target"))
    folder = args.output or MODELS / f"{Path(name).name}-draft"
    grows = args.prompt_file or args.document
    memory = args.memory or folder.with_name(f"{folder.name}.jsonl")
    flags.check_apart(args, [("--output", folder), ("--memory", memory if grows else None)])
    if is_speech(name):
        model, tokenizer, texts = hear(name, args)
    else:
        if args.audio:
            raise InputError("the model reads text: name a --memory, --prompt-file or --document")
        model, tokenizer = load(name)
        check_target(model)
        texts = read(SpeculativeDecoder(model, tokenizer), folder, args)
    cli.note_types(model)
    if 0 < len(texts) < FEW:
        print(
            f"only {len(texts)} texts: expect few tokens a call; a thousand or more do far better",
            file=sys.stderr,
        )
    start = earlier(folder, model, args.layers)
    with reporter.bar("training", 1000, "", 0) as advance:
        done = 0

        def on_look(look: Look, draft: Any) -> None:
            nonlocal done
            advance(int(1000 * look.share) - done)
            done = int(1000 * look.share)
            cli.write(describe(look), sys.stderr)
            if look.best:
                save(draft, model, Path(name).name, folder, args.dtype or type_of(model))

        distill(
            model, tokenizer, texts, args.layers, args.minutes, args.steps, start, on_look=on_look
        )
    command = "transcribe.py FILE" if is_speech(name) else "main.py"
    print(f"python {command} --model {name} --draft-model {folder}")


def describe(look: Look) -> str:
    """A line about how far training is."""
    promise = look.promise
    calls = ", ".join(f"{n:.1f} with {k} drafted" for k, n in promise.per_call.items())
    line = (
        f"step {look.step}, {look.seconds / 60:.1f} min: {promise.share:.1%} of held-out tokens right, "
        f"{calls} a call, up to {look.speedup:.2f} times plain"
    )
    if promise.agrees < 0.8:
        line += f" (the model itself would write only {promise.agrees:.0%} of these texts' tokens: they teach less)"
    return line


def read(decoder: SpeculativeDecoder, folder: Path, args) -> list[Pair]:
    """The pairs in the memory, and those of the prompt file and the documents, which the model writes where they are
    missing."""
    memory = args.memory or folder.with_name(f"{folder.name}.jsonl")
    if args.memory and not (args.prompt_file or args.document):
        return [*flags.read_memory(memory).pairs]
    memory.parent.mkdir(parents=True, exist_ok=True)
    writer = MemoryFile(memory)
    pairs = flags.read_memory(memory).pairs
    resolved = decoder.text.resolve_languages(args.source_lang, args.target_lang)
    languages = dict(zip(LANGUAGES, resolved, strict=True))
    settings = {name: value for name, value in languages.items() if value}
    texts = {p.prompt: p.text for p in pairs if (p.source_lang, p.target_lang) == resolved}
    if args.prompt_file:
        report = partial(skipped, args.prompt_file)
        prompts = [p for p in PromptFile(args.prompt_file, report) if isinstance(p, str)]
        missing = [prompt for prompt in dict.fromkeys(prompts) if prompt not in texts]
        with reporter.bar("writing texts", len(missing), "text", 0) as advance:
            for index, response in decoder.stream_batch(missing, args.batch_size, **settings):
                if response.finish_reason == "stop":
                    writer.append(Pair(missing[index], response.text, **languages))
                advance(1)
    if args.document:
        documents = dict[str, Document]()
        for name in args.document:
            with naming(Path(name)):
                documents[name] = read_document(Path(name), Path(name).read_bytes())
        translator = Translator(decoder, Options(**settings), args.batch_size, memory_file=writer)
        translator.texts = texts
        for name, document in documents.items():
            translator.translate(document, name)
    return [*load_memory(memory, lambda line, reason: None).pairs]


def skipped(name: str, line: int, reason: str) -> None:
    print(f"{cli.one_line(name)}, line {line + 1}: {reason}", file=sys.stderr)


def hear(name: str, args) -> tuple[Any, Any, list[Text]]:
    """A speech model, its tokenizer, and what it writes for windows of the sounds."""
    if not args.audio:
        raise InputError("a speech model learns from sound: name audio files")
    transcriber = Transcriber(name)
    texts: list[Text] = []

    def learn(row: Row) -> None:
        if not row.options.temp and len(row.generated) > 1:  # no retry, no language to detect
            texts.append(Text.of(row))

    sounds = [lambda file=file: (audio.read(file), lambda *_: None) for file in args.audio]
    with reporter.bar("transcribing", len(sounds), "file", 0) as advance:
        for number, result in transcriber.transcribe_all(
            sounds, TranscribeOptions(), args.batch_size, on_row=learn
        ):
            if isinstance(result, InputError):
                print(f"{args.audio[number]}: {result}", file=sys.stderr)
            advance(1)
    return transcriber.model, transcriber.tokenizer, texts


def earlier(folder: Path, model: Any, layers: int) -> Any:
    """The draft model in the folder, to go on with; None if there is none."""
    if not folder.exists():
        return None
    config = read_json(folder / "config.json")
    draft, _ = load(folder)
    if not isinstance(draft, Distilled) or len(config["layers"]) != layers:
        raise InputError(f"{folder} is something else: remove it, or choose another --output")
    return draft.for_target(model)


if __name__ == "__main__":
    cli.run(main)
