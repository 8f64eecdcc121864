"""Translate documents, sentence by sentence, and keep all that is not text.

python translate.py chapter.docx --model facebook/nllb-200-3.3B --draft-model facebook/nllb-200-distilled-600M --to German
python translate.py film.srt --to fr -o film.fr.srt
"""

import terminal  # noqa: F401 (first: it checks Python and the packages)

# isort: split
import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from common.errors import InputError, naming
from common.files import Journal, check_free, replacing
from decoder import BATCH_SIZE
from distributed.ranks import Ranks, session
from documents import FORMATS, OPTIONS, read
from documents.document import Document
from documents.translator import Line, Translator
from terminal import cli, flags
from terminal.models import Models, open_decoder
from terminal.summary import Summary
from text.languages import short, tag_of, title
from text.memory import MemoryFile

STDIN = "-"


def parse_args(argv: list[str] | None = None):
    parser = cli.Parser(
        prog="translate.py", description="Translate documents, sentence by sentence."
    )
    flag = parser.add_argument
    flag(
        "documents",
        nargs="+",
        metavar="FILE",
        type=cli.name,
        help=f"a document ({', '.join(FORMATS)}); - reads standard input and prints",
    )
    flags.add_shared(parser, *flags.MODELS)
    flag(
        "--output",
        "-o",
        type=cli.path,
        metavar="FILE",
        help="the file to write, or a folder (default: the document's name with the language: a.de.txt)",
    )
    flag(
        "--encoding",
        metavar="NAME",
        help="of documents of text, such as windows-1250 (default: UTF-8, or else a guess)",
    )
    flag("--bilingual", action="store_true", help="keep the source, with its translation below")
    flag("--cue-by-cue", action="store_true", help="subtitles: join no cues into sentences")
    flag("--no-fuzzy", dest="fuzzy", action="store_false", help=".po: do not mark texts as fuzzy")
    flag(
        "--report",
        type=cli.path,
        metavar="FILE",
        help="write sources beside texts with what to check, tab-separated",
    )
    flag("--force", action="store_true", help="replace files that exist")
    flag(
        "--whole",
        action=argparse.BooleanOptionalAction,
        help="translate paragraphs as a whole, for a model that reads more than a sentence (default: those with a chat template)",
    )
    flag(
        "--terms",
        type=cli.path,
        metavar="FILE",
        help="a glossary, tab-separated (.tsv, .txt): list where a term's translation is missing",
    )
    flag(
        "--batch-size",
        type=cli.positive,
        default=BATCH_SIZE,
        metavar="N",
        help="sentences to decode in one batch (default: %(default)s)",
    )
    flags.add_shared(parser, "--memory", "--memory-append")
    flag(
        "--memory-exact",
        action="store_true",
        help="use the memory's text of the same sentence or passage as it is",
    )
    flags.add_decoding_options(parser, without=("logprobs", "num_samples", "reference", "stop"))
    flag("--verbose", action="store_true", help="print statistics to stderr at the end")
    args = parser.parse_with_files(argv)
    flags.check_models(args, parser)
    if args.output and len(args.documents) > 1 and not args.output.is_dir():
        parser.error("--output is one file, for one document, or a folder that exists")
    if args.memory_exact and not args.memory:
        parser.error("--memory-exact needs --memory")
    return args


def load(name: str, output: Path | None, encoding: str | None = None, **options: bool) -> Document:
    """The document in a file. Standard input has the format of the output's name. options: of `OPTIONS`."""
    path = Path(output or name) if name == STDIN else Path(name)
    suffix = path.suffix.lower() or ".txt"
    if options.get("bilingual") and suffix not in OPTIONS["bilingual"]:
        raise InputError(f"{path}: --bilingual is for {', '.join(OPTIONS['bilingual'])}")
    data = sys.stdin.buffer.read() if name == STDIN else path.read_bytes()
    with naming(Path(name)):
        return read(path, data, encoding, **options)


def output_of(
    name: str, output: Path | None, languages: Sequence[str | None], force: bool
) -> Path | None:
    """Where a document's translation goes; None: stdout. languages: source and target. InputError if that exists, unless
    `force`."""
    if str(output or name) == STDIN:
        return None
    if output is None or output.is_dir():
        source, target = languages
        if target is None:
            raise InputError("into which language? Name it with --to, or the file with --output")
        path = Path(name)
        suffix = ".po" if path.suffix == ".pot" else path.suffix
        output = (output or path.parent) / f"{_in_language(path.stem, source, target)}{suffix}"
    check_free(output, force)
    return output


def _in_language(stem: str, source: str | None, target: str) -> str:
    """A name with the target language, in place of the source language if that is a part: film.en, film.de."""
    first, *parts = stem.split(".")
    for i in reversed(range(len(parts))):
        if source and tag_of(parts[i]) and short(parts[i]) == short(source):
            return ".".join([first, *parts[:i], short(target), *parts[i + 1 :]])
    return f"{stem}.{short(target)}"


def report_languages(translator: Translator) -> None:
    """Name on stderr the model's own languages that it uses because none were given."""
    codes = translator.source_lang, translator.target_lang
    for flag, given, code in zip(("from", "to"), translator.languages, codes, strict=True):
        if code and not given:
            print(f"translating {flag} {title(code)}; --{flag} changes that", file=sys.stderr)


def translate_file(
    translator: Translator, name: str, document: Document, journal: Journal | None = None
) -> tuple[bytes, list[Line]]:
    """A document's translation, and its lines. Sentences that are in the journal are not translated again."""
    lines = list[Line]()
    translator.on_line = lines.append
    if journal:
        translator.texts |= dict(journal.entries)
    data, problems = translator.translate(document, name, journal)
    for problem in problems:
        print(cli.one_line(f"{name}, {problem}"), file=sys.stderr)
    for note in document.notes:
        print(cli.one_line(f"{name}: {note}"), file=sys.stderr)
    from_memory = sum(line.from_memory for line in lines)
    if from_memory:
        print(f"{name}: {from_memory} of {len(lines)} texts are the memory's", file=sys.stderr)
    if document.plain:
        print(f"{name}: {len(document.plain)} formatted words became plain", file=sys.stderr)
    return data, lines


def report_of(name: str, lines: Sequence[Line]) -> str:
    """A document's lines of the report, tab-separated."""
    rows = [
        [name, *line[:3], "; ".join([*["from the memory"] * line.from_memory, *line.problems])]
        for line in lines
    ]
    return "".join("\t".join(" ".join(field.split()) for field in row) + "\n" for row in rows)


def run_command(args, ranks: Ranks) -> None:
    """Do what the command line asks for."""
    options = flags.options_of(args)
    settings = dict(bilingual=args.bilingual, cue_by_cue=args.cue_by_cue, fuzzy=args.fuzzy)
    documents = [load(name, args.output, args.encoding, **settings) for name in args.documents]
    if args.report:
        check_free(args.report, args.force)
    pairs = flags.read_memory(args.terms).pairs if args.terms else ()
    # OmegaT's glossaries have comments in a third column.
    terms = [replace(pair, text=pair.text.partition("\t")[0]) for pair in pairs]
    memory_file = MemoryFile(args.memory) if args.memory_append else None  # created if needed
    models = Models.of(args, ranks)
    decoder = open_decoder(models, options, ranks, args.verbose)
    summary = Summary()
    translator = Translator(
        decoder, options, args.batch_size, args.whole, terms, {}, memory_file, summary.add
    )
    languages = translator.source_lang, translator.target_lang
    if args.memory_exact and decoder.memory:
        translator.exact = decoder.memory.exact(*languages)
    report_languages(translator)
    outputs = [output_of(name, args.output, languages, args.force) for name in args.documents]
    flags.check_apart(args, zip(args.documents, outputs, strict=True))
    key = repr(("translate.py", models.stamp(), options))
    for output in filter(None, outputs):
        Journal(output, key, args.force).close()  # can it be used?
    began = time.perf_counter()
    report = ["file\tplace\tsource\ttext\tcheck\n"]
    for name, document, output in zip(args.documents, documents, outputs, strict=True):
        if output is None:
            data, lines = translate_file(translator, name, document)
            sys.stdout.buffer.write(data)
        else:
            with closing(Journal(output, key, args.force)) as journal:
                data, lines = translate_file(translator, name, document, journal)
                with replacing(output, args.force) as partial:
                    partial.write_bytes(data)
                journal.remove()
            print(output)
        report.append(report_of(name, lines))
    if args.report:
        with replacing(args.report, args.force) as partial:
            partial.write_text("".join(report), encoding="utf-8")
    if args.verbose:
        summary.pairs = len(decoder.memory.pairs) if decoder.memory else 0
        print("\n".join(summary.lines(time.perf_counter() - began)), file=sys.stderr)


def main() -> None:
    with session() as ranks:
        if ranks.size > 1:
            raise InputError("translate.py runs as one process, not under mlx.launch")
        run_command(parse_args(), ranks)


if __name__ == "__main__":
    cli.run(main)
