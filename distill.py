"""Make a draft model of an encoder-decoder model, from the model itself and texts that it has written.

python distill.py --model google/madlad400-3b-mt --memory memory.jsonl
python distill.py --model google/madlad400-3b-mt --prompt-file sentences.txt --target-lang de
python distill.py --model google/madlad400-3b-mt --document book.docx manual.md --to German
python distill.py --model openai/whisper-large-v3 talks/*.mp3
"""

import terminal  # noqa: F401 (first: it checks Python and the packages)

# isort: split
from common import blas  # noqa: F401 (before mlx: see there)

# isort: split
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from checkpoints.folder import converted_path, read_json
from checkpoints.weights import DTYPES
from common.errors import InputError, naming
from common.reporting import reporter
from decoder import BATCH_SIZE, Content, Options, SpeculativeDecoder, load
from demo.pair import demo_model
from distillation.texts import Text, read_texts
from distillation.training import Look, check_target, distill
from documents import read as read_document
from documents.document import Document
from documents.translator import Translator
from families.distilled import KIND, save, type_of
from speculative.row import Row
from speech import audio
from speech.options import TranscribeOptions
from speech.transcriber import Transcriber, is_speech
from terminal import cli, flags
from terminal.prompt_files import PromptFile, progress
from text.languages import tag_of
from text.memory import MemoryFile, Pair, load_memory
from text.text_side import Prompt, check_prompt

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
             help="of the texts, for a model that translates")
    flag("--batch-size", type=cli.positive, default=BATCH_SIZE, metavar="N",
         help="prompts to decode in one batch (default: %(default)s)")
    flag("--layers", type=cli.positive, default=1, metavar="N",
         help="decoder layers of the draft model (default: %(default)s)")
    flag("--minutes", type=cli.number, default=30, metavar="X",
         help="how long to train at most; it stops earlier once it gains nothing (default: %(default)s)")
    flag("--steps", type=cli.positive, metavar="N", help="train so many steps instead")
    flag("--dtype", choices=DTYPES, help="type of the draft model's weights (default: the model's)")
    flag("--output", type=cli.path, metavar="FOLDER",
         help="where to write; a draft model that is there is trained further (default: mlx_models/MODEL-draft)")
    # fmt: on
    args = parser.parse_intermixed_args(argv)
    if not (args.audio or args.memory or args.prompt_file or args.document):
        parser.error("--memory, --prompt-file, --document or sound is needed: what to learn from")
    if not args.minutes:
        parser.error("--minutes is 0")
    return args


def main() -> None:
    args = parse_args()
    name = str(args.model or demo_model("speech/target" if args.audio else "target"))
    converted = converted_path(name)
    folder = args.output or converted.with_name(f"{converted.name}-draft")
    if folder.name in ("", ".."):
        folder = folder.resolve()
    grows = args.prompt_file or args.document
    memory = args.memory or folder.with_name(f"{folder.name}.jsonl")
    flags.check_apart(args, [("--output", folder), ("--memory", memory if grows else None)])
    if is_speech(name) != bool(args.audio):
        raise InputError("a speech model learns from sound, others from --memory and the like")
    transcriber = Transcriber(name) if args.audio else None
    model, tokenizer = (transcriber.model, transcriber.tokenizer) if transcriber else load(name)
    check_target(model, args.layers)
    start = earlier(folder, model, args.layers)
    if transcriber:
        texts = hear(transcriber, args)
    else:
        texts = read(SpeculativeDecoder(model, tokenizer), memory, args)
    cli.note_types(model)
    if 1 < len(texts) < FEW:
        reporter.note(
            f"only {len(texts)} texts: expect few tokens a call; a thousand or more do far better"
        )
    with reporter.bar("training", 1000, "", 0) as advance:
        done = 0

        def on_look(look: Look, draft: Any) -> None:
            nonlocal done
            advance(int(1000 * look.share) - done)
            done = int(1000 * look.share)
            cli.write(describe(look), sys.stderr)
            if look.best:
                save(draft, model, converted.name, folder, args.dtype or type_of(model))

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


def read(decoder: SpeculativeDecoder, memory: Path, args) -> list[Text]:
    """The texts of these languages in the memory, and those of the prompt file and the documents, which the model writes
    where they are missing."""
    named = args.source_lang, args.target_lang
    if args.prompt_file or args.document:
        languages = decoder.text.resolve_languages(*named)
        write(decoder, memory, languages, args)
    else:  # a model need not be told the languages of pairs
        languages = tuple(name and (tag_of(name) or name) for name in named)
    known = flags.read_memory(memory)
    pairs = known.fitting(*languages)
    if len(pairs) < len(known.pairs):
        reporter.note(f"{memory}: {len(pairs)} of {len(known.pairs)} pairs are in these languages")
    return read_texts(decoder.model, decoder.tokenizer, pairs)


def write(decoder: SpeculativeDecoder, memory: Path, languages: Sequence[str | None], args) -> None:
    """Add to the memory what the model writes for the prompts and sentences that are not in it."""
    documents = dict[str, Document]()
    for name in args.document:
        with naming(Path(name)):
            documents[name] = read_document(Path(name), Path(name).read_bytes())
    memory.parent.mkdir(parents=True, exist_ok=True)
    writer = MemoryFile(memory)
    options = Options(source_lang=languages[0], target_lang=languages[1])
    pairs = load_memory(memory, lambda line, reason: None).pairs
    texts = {p.prompt: p.text for p in pairs if (p.source_lang, p.target_lang) == languages}
    if args.prompt_file:
        asked = {*texts}

        def new(prompt: Content) -> Content | None:
            checked = check_prompt(prompt)
            text = decoder.text.encode(checked, *languages).text
            if text in asked:
                return None
            asked.add(text)
            return Prompt(text, checked.reference)

        report = partial(skipped, args.prompt_file)
        file = PromptFile(
            args.prompt_file, report, make=new, check=partial(decoder.check, options=options)
        )
        with progress(args.prompt_file, 0, False) as show:
            for _, response in file.answers(decoder, args.batch_size, options):
                if response.finish_reason == "stop":
                    writer.append(Pair(response.prompt, response.text, *languages))
                show(file.lines)
    if documents:
        translator = Translator(decoder, options, args.batch_size, memory_file=writer, texts=texts)
        for name, document in documents.items():
            translator.translate(document, name)


def skipped(name: str, line: int, reason: str) -> None:
    cli.write(f"{cli.one_line(name)}, line {line + 1}: {reason}", sys.stderr)


def hear(transcriber: Transcriber, args) -> list[Text]:
    """What a speech model writes for windows of the sounds."""
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
    return texts


def earlier(folder: Path, model: Any, layers: int) -> Any:
    """The draft model in the folder, to go on with; None if there is none."""
    if not folder.exists() or not any(folder.iterdir()):
        return None
    config = folder / "config.json"
    if not config.exists() or read_json(config).get("model_type") != KIND:
        raise InputError(f"{folder} is something else: remove it, or choose another --output")
    draft, _ = load(folder)
    own = len(draft.layers)
    if own != layers:
        raise InputError(f"{folder} has --layers {own}: say so, or choose another --output")
    return draft.for_target(model)


if __name__ == "__main__":
    cli.run(main)
