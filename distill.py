"""Make a draft model of an encoder-decoder model, from the model itself and texts that it has written.

python distill.py --model google/madlad400-3b-mt --memory memory.jsonl
python distill.py --model google/madlad400-3b-mt --prompt-file sentences.txt --target-lang de
python distill.py --model google/madlad400-3b-mt --document book.docx manual.md --to German
python distill.py --model openai/whisper-large-v3 talks/*.mp3
"""

from collections.abc import Sequence
from pathlib import Path

import apps.cli  # noqa: F401 (first: it checks Python and the packages)
from apps.cli import cli, flags
from apps.cli.models import draft_folder, merge_adapter, note_types
from apps.cli.prompt_files import PromptFile, progress
from apps.distillation.folder import run, trained_draft
from apps.distillation.texts import TrainingText, texts_in_memory
from apps.distillation.training import Training, new_draft
from apps.documents.files import load as load_document
from apps.documents.translator import Memories, Translator
from apps.speech import audio
from apps.speech.options import TranscribeOptions
from apps.speech.transcriber import Transcriber, is_speech
from decoder import BATCH_SIZE, Content, Options, SpeculativeDecoder, load
from demo.pair import demo_model
from speculative.checkpoints.folder import converted_path
from speculative.checkpoints.weights import DTYPES
from speculative.common.errors import InputError
from speculative.common.files import locked
from speculative.common.reporting import reporter
from speculative.models.distilled import type_of
from speculative.step.driver import Task
from speculative.step.row import Row
from speculative.text.languages import tag_of
from speculative.text.memory import MemoryFile, Pair, load_memory
from speculative.text.text_side import Prompt, check_prompt


def parse_args(argv: list[str] | None = None):
    parser = cli.Parser(
        prog="distill.py",
        description="Make a draft model of a model, from the model itself and texts that it has written.",
    )
    flag = parser.add_argument
    flags.add_shared(parser, "--model", "--adapter-path")
    # fmt: off
    flag("audio", nargs="*", metavar="FILE", help="for a speech model: sound to transcribe and learn from")
    flag("--memory", type=cli.path, metavar="FILE",
         help="texts that the model has written: a translation memory, as other commands' --memory-append makes it")
    flag("--prompt-file", type=cli.name, metavar="FILE",
         help="prompts whose texts the model writes first, and adds to --memory (default: OUTPUT.jsonl); a prompt that is "
         "there already is not written again")
    flag("--document", nargs="+", default=[], metavar="FILE",
         help="documents, of the formats of translate.py, whose sentences it translates first and adds in the same way")
    flags.add_languages(parser)
    flag("--batch-size", type=cli.positive, default=BATCH_SIZE, metavar="N",
         help="prompts to decode in one batch (default: %(default)s)")
    flag("--layers", type=cli.positive, default=1, metavar="N", help="decoder layers of the draft model (default: %(default)s)")
    flag("--minutes", type=cli.number, default=30, metavar="X",
         help="how long to train at most; it stops earlier once it gains nothing (default: %(default)s)")
    flag("--steps", type=cli.positive, metavar="N", help="train so many steps instead")
    flag("--dtype", choices=DTYPES, help="type of the draft model's weights (default: the model's)")
    flag("--output", type=cli.folder, metavar="FOLDER",
         help="where to write; a draft model that is there is trained further (default: mlx_models/MODEL-draft)")
    # fmt: on
    args = parser.parse_intermixed_args(argv)
    if not (args.audio or args.memory or args.prompt_file or args.document):
        parser.error("--memory, --prompt-file, --document or sound is needed: what to learn from")
    flags.check_models(args, parser)
    if not args.minutes:
        parser.error("--minutes is 0")
    return args


def main() -> None:
    args = parse_args()
    merge_adapter(args)
    name = str(args.model or demo_model("speech/target" if args.audio else "target"))
    converted = converted_path(name)
    folder = args.output or draft_folder(converted)
    if folder.name in ("", ".."):
        folder = folder.resolve()
    memory = args.memory or folder.with_name(f"{folder.name}.jsonl")
    grows = args.prompt_file or args.document
    flags.check_apart(args, [("--output", folder), ("--memory", memory if grows else None)])
    if is_speech(name) != bool(args.audio):
        raise InputError("a speech model learns from sound, others from --memory and the like")
    cli.at_end.enter_context(locked(folder))
    transcriber = Transcriber(name) if args.audio else None
    model, tokenizer = (transcriber.model, transcriber.tokenizer) if transcriber else load(name)
    draft = trained_draft(folder, model) or new_draft(model, args.layers)
    count = len(draft.layers)
    if count != args.layers:
        raise InputError(f"{folder} has --layers {count}: say so, or choose another --output")
    if transcriber:
        texts = texts_from_audio(transcriber, args.audio, args.batch_size)
    else:
        languages = args.source_lang, args.target_lang
        if grows:
            decoder = SpeculativeDecoder(model, tokenizer)
            languages = decoder.text.resolve_languages(*languages)
            write_texts(decoder, memory, languages, args)
        else:  # a model need not be told the languages of pairs
            languages = tuple(name and (tag_of(name) or name) for name in languages)
        texts = texts_in_memory(model, tokenizer, memory, languages)
    note_types(model)
    training = Training(model, draft, texts, args.minutes, args.steps)
    run(training, converted.name, folder, args.dtype or type_of(model))
    command = "transcribe.py FILE" if transcriber else "main.py"
    print(f"python {command} --model {name} --draft-model {folder}")


def texts_from_audio(
    transcriber: Transcriber, files: Sequence[str], batch_size: int
) -> list[TrainingText]:
    """The texts that a speech model writes for windows of sounds. A sound that cannot be read is left out, with a note."""
    options = TranscribeOptions()
    rows: list[Row] = []

    def read(file: str) -> Task:
        return (yield from transcriber.task(audio.read(file), options))

    with reporter.bar("transcribing", len(files), "file", 0) as advance:
        found = transcriber.transcribe_all(map(read, files), options, batch_size, rows.append)
        for number, result in found:
            if isinstance(result, InputError):
                reporter.note(f"{files[number]}: {result}")
            advance(1)
    kept = [row for row in rows if not row.options.temp and len(row.generated) > 1]
    return [*map(TrainingText.from_row, kept)]  # no retries, no languages to detect


def write_texts(decoder: SpeculativeDecoder, memory: Path, languages: tuple, args) -> None:
    """Add to the memory what the model writes for prompts and sentences of documents that it lacks."""
    files = [load_document(name, None) for name in args.document]
    options = Options(source_lang=languages[0], target_lang=languages[1])
    memory.parent.mkdir(parents=True, exist_ok=True)
    memory_file = MemoryFile(memory)
    texts = load_memory(memory, lambda line: None).exact(*languages)
    if args.prompt_file:
        known = {*texts}

        def prepare(content: Content) -> Content | None:  # as a memory has it; None if it is known
            checked = check_prompt(content)
            text = decoder.text.encode(checked, *languages).text
            if text in known:
                return None
            known.add(text)
            prompt = Prompt(text, checked.reference)
            decoder.maker.check(prompt, options)
            return prompt

        def report(line: int, reason: str) -> None:
            reporter.note(f"{args.prompt_file}, line {line}: {reason}")

        prompts = PromptFile(args.prompt_file, report, prepare=prepare)
        with progress(None, False) as show:
            for _, response in prompts.answers(decoder, args.batch_size, options):
                if response.finish_reason == "stop":
                    memory_file.append(Pair(response.prompt, response.text, *languages))
                show(prompts.lines)
    if files:
        memories = Memories(file=memory_file, texts=texts)
        translator = Translator(decoder, options, args.batch_size, memories=memories)
        for file in files:
            translator.translate(file.document, file.name)


if __name__ == "__main__":
    cli.run(main)
