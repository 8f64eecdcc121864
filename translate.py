"""Translate documents, sentence by sentence, and keep all that is not text.

python translate.py chapter.docx --model facebook/nllb-200-3.3B --draft-model facebook/nllb-200-distilled-600M --to German
python translate.py film.srt --to fr -o film.fr.srt
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import apps.cli  # noqa: F401 (first: it checks Python and the packages)
from apps.cli import cli, flags
from apps.cli.display import Summary
from apps.cli.models import Models, open_decoder
from apps.documents import FORMATS
from apps.documents.files import (
    REPORT_HEAD,
    File,
    FileTranslator,
    load_all,
    report_of,
    with_outputs,
)
from apps.documents.translator import Line, Memories, Translator, length
from decoder import BATCH_SIZE
from speculative.common.errors import InputError
from speculative.common.files import check_free, replacing
from speculative.common.reporting import reporter
from speculative.models.ranks import session
from speculative.text.languages import title
from speculative.text.memory import TABLES, XML, MemoryFile, load_memory


def parse_args(argv: list[str] | None = None):
    parser = cli.Parser(
        prog="translate.py", description="Translate documents, sentence by sentence."
    )
    flag = parser.add_argument
    # fmt: off
    flag("documents", nargs="+", metavar="FILE", type=cli.name,
         help=f"a document ({', '.join(FORMATS)}), or a folder with some; - reads standard input and prints")
    flags.add_shared(parser, *flags.MODELS, "--distill")
    flag("--output", "-o", type=cli.path, metavar="FILE",
         help="the file to write, or a folder for the same names (default: names with the language: a.de.txt)")
    flag("--encoding", metavar="NAME", help="of documents of text, such as windows-1250 (default: UTF-8, or else a guess)")
    flag("--bilingual", action="store_true", help="keep the source, with its translation below")
    flag("--cue-by-cue", action="store_true", help="subtitles: join no cues into sentences")
    flag("--no-fuzzy", dest="fuzzy", action="store_false", help=".po: do not mark texts as fuzzy")
    flag("--report", type=cli.path, metavar="FILE", help="write sources beside texts with what to check, tab-separated")
    flag("--force", action="store_true", help="replace files that exist")
    flag("--whole", action=argparse.BooleanOptionalAction,
         help="translate paragraphs as a whole, for a model that reads more than a sentence (default: those with a chat template)")
    flag("--terms", type=cli.path, metavar="FILE",
         help=f"a glossary ({', '.join(TABLES + XML)}): list where a term's translation is missing")
    flag("--batch-size", type=cli.positive, default=BATCH_SIZE, metavar="N",
         help="sentences to decode in one batch (default: %(default)s)")
    flags.add_shared(parser, "--memory", "--memory-append")
    flag("--memory-exact", action="store_true", help="use the memory's text of the same sentence or passage as it is")
    flags.add_options(parser, without=("logprobs", "num_samples", "reference", "stop"))
    flag("--verbose", action="store_true", help="print statistics to stderr at the end")
    # fmt: on
    args = parser.parse_with_files(argv)
    flags.check_models(args, parser)
    is_one = len(args.documents) == 1 and not Path(args.documents[0]).is_dir()
    if args.output and not is_one:
        if args.output.is_file() or args.output.suffix in FORMATS:
            parser.error("--output is one file, for one document, or a folder")
        args.output.mkdir(parents=True, exist_ok=True)
    if args.memory_exact and not args.memory:
        parser.error("--memory-exact needs --memory")
    return args


def report_languages(translator: Translator) -> None:
    """Name on stderr the model's own languages that it uses because none were given."""
    codes = translator.source_lang, translator.target_lang
    for flag, given, code in zip(("from", "to"), translator.languages, codes, strict=True):
        if code and not given:
            reporter.note(f"translating {flag} {title(code)}; --{flag} changes that")


def run_command(args) -> None:
    options = flags.options_of(args)
    settings = dict(bilingual=args.bilingual, cue_by_cue=args.cue_by_cue, fuzzy=args.fuzzy)
    files, failures = load_all(args.documents, args.output, args.encoding, **settings)
    if args.report:
        check_free(args.report, args.force)
    glossary = load_memory(args.terms, reporter.note) if args.terms else None
    memory_file = MemoryFile(args.memory) if args.memory_append else None  # created if needed
    models = Models.of(args)
    decoder = open_decoder(models, options)
    summary = Summary()
    translator = Translator(
        decoder, options, args.batch_size, args.whole,
        Memories(glossary, args.memory_exact, memory_file), on_response=summary.add,
    )  # fmt: skip
    report_languages(translator)
    languages = translator.source_lang, translator.target_lang
    if glossary and not glossary.fitting(*languages):
        raise InputError(f"{args.terms}: none of {len(glossary.pairs)} pairs is in these languages")
    files = with_outputs(files, args.output, languages)
    flags.check_apart(args, [(file.name, file.output) for file in files])
    seeded = options.seed is not None
    runner = FileTranslator(translator, models.stamp(), seeded, args.force)
    files, unwritable = runner.check(files)
    failures += unwritable
    if decoder.learner:
        decoder.learner.total = sum(length(file.document) for file in files)
    translate(runner, files, failures, args.report)
    summary.print(decoder, args.verbose)


def translate(
    runner: FileTranslator, files: Sequence[File], unread: Sequence[InputError], report: Path | None
) -> None:
    """Translate files and say what a reader should know. InputError at the end if some could not be read or translated."""
    failures = [*unread]
    lines = dict[str, Sequence[Line]]()
    for file, result in runner.run(files):
        if isinstance(result, InputError):
            failures.append(InputError(f"{file.name}: {result}"))
            continue
        for problem in result.problems:
            reporter.note(f"{file.name}, {problem}")
        for note in result.notes:
            reporter.note(f"{file.name}: {note}")
        if file.output:
            cli.write(str(file.output))
        else:
            sys.stdout.buffer.write(result.data)
        lines[file.name] = result.lines
    if report:
        with replacing(report, runner.force) as partial:
            rows = [report_of(file.name, lines.get(file.name, ())) for file in files]
            partial.write_text("".join([REPORT_HEAD, *rows]), encoding="utf-8")
    for failure in failures[:-1]:
        reporter.note(str(failure))
    if failures:
        raise failures[-1]


def main() -> None:
    with session() as ranks:
        if ranks.size > 1:
            raise InputError("translate.py runs as one process, not under mlx.launch")
        run_command(parse_args())


if __name__ == "__main__":
    cli.run(main)
