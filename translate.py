"""Translate documents, sentence by sentence, and keep all that is not text.

python translate.py chapter.docx --model nllb-200-3.3B --draft-model nllb-200-distilled-600M --to German
python translate.py film.srt --to fr -o film.fr.srt
"""

import terminal  # noqa: F401 (first: it checks Python and the packages)

# isort: split
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from decoder import BATCH_SIZE, Options, SpeculativeDecoder
from distributed.ranks import Ranks, session
from documents import gettext, markdown, plain, subtitles, word
from documents.document import Document, Segment
from documents.sentences import changed, kept, masked, sentences, translatable
from errors import InputError, naming
from main import open_decoder
from speculative.sampling import RowSeeds
from terminal import cli, flags
from terminal.summary import Summary
from text.languages import chosen, defaults, short, title
from text.memory import MemoryFile, Pair, load_memory, words_of
from text.prompts import Prompt

STDIN = "-"
FORMATS: dict[str, Callable[[bytes], Document]] = {
    ".txt": plain.read,
    ".md": markdown.read,
    ".docx": word.read,
    ".po": gettext.read,
    ".srt": partial(subtitles.read, srt=True),
    ".vtt": subtitles.read,
}
_FULL = 0.6  # of the longest output: longer sentences are cut


def parse_args(argv: list[str] | None = None):
    parser = cli.Parser(
        prog="translate.py", description="Translate documents, sentence by sentence."
    )
    flag = parser.add_argument
    text = f"a document ({', '.join(FORMATS)}); - reads standard input and prints"
    flag("documents", nargs="+", metavar="FILE", type=cli.name, help=text)
    flags.add_models(parser)
    text = (
        "the file to write, or a folder (default: the document's name with the language: a.de.txt)"
    )
    flag("--output", "-o", type=cli.path, metavar="FILE", help=text)
    flag("--force", action="store_true", help="replace files that exist")
    text = "translate paragraphs as a whole, for a model that reads more than a sentence"
    flag("--whole", action="store_true", help=text)
    text = "a glossary, tab-separated (.tsv, .txt): list where a term's translation is missing"
    flag("--terms", type=cli.path, metavar="FILE", help=text)
    text = "sentences to decode in one batch (default: %(default)s)"
    flag("--batch-size", type=cli.positive, default=BATCH_SIZE, metavar="N", help=text)
    flags.add_memory(parser, grows=True)
    flags.add_decoding_options(parser, without=("logprobs", "num_samples", "reference", "stop"))
    flag("--verbose", action="store_true", help="print statistics to stderr at the end")
    args = parser.parse_intermixed_args(argv)
    flags.check_models(args, parser)
    if args.output and len(args.documents) > 1 and not args.output.is_dir():
        parser.error("--output is one file, for one document, or a folder that exists")
    return args


class Translator:
    """Translates sentences, each distinct one once."""

    def __init__(self, args, decoder: SpeculativeDecoder, options: Options, language: str | None):
        """language: that of the sentences."""
        self.decoder, self.language = decoder, short(language or "en")
        self.options = decoder.seeded(options)
        self.size, self.whole = args.batch_size, args.whole
        self.growing = MemoryFile(args.memory) if args.memory_append else None
        self.languages = chosen(decoder.model, options.source_lang, options.target_lang)
        self.how = zlib.crc32(repr((args.model, options)).encode())  # what texts depend on
        self.texts: dict[str, str] = {}
        self.cut = set[str]()  # sentences whose texts are not whole
        self.summary = Summary()

    def translate(self, document: Document, name: str, journal: MemoryFile | None) -> list[str]:
        """The text of each segment."""
        pattern = kept(document.marks)
        pieces = [
            [*sentences(segment.text, self.language, pattern, self.fits, self.whole)]
            for segment in document.segments
        ]
        wanted = [each.strip() for of in pieces for each in of if translatable(each, pattern)]
        self.learn(wanted, name, journal)
        lost = (each for each in wanted if changed(each, self.texts[each], pattern))
        self.learn((masked(each, pattern)[0] for each in lost), name, journal)
        return ["".join(self.text_of(each, pattern) for each in of) for of in pieces]

    def text_of(self, piece: str, pattern: re.Pattern) -> str:
        """A sentence's text with the space around it; the one from plain tokens if that alone has the placeholders."""
        source = piece.strip()
        text = self.texts.get(source, source)
        if changed(source, text, pattern):
            plain, restored = masked(source, pattern)
            other = restored(self.texts[plain])
            text = text if changed(source, other, pattern) else other
        return piece.replace(source, text, 1)

    def fits(self, text: str) -> bool:
        """Whether the model can read the text and write as much."""
        try:
            # With a reference: otherwise the memory would be searched for one.
            row = self.decoder.row(Prompt(text, "-"), self.options, RowSeeds(0))
        except InputError:  # more than it reads
            return not text.strip()
        return len(row.prompt) <= _FULL * row.max_tokens

    def learn(self, wanted: Iterable[str], name: str, journal: MemoryFile | None) -> None:
        """Translate what has no text yet, and note it in the journal and the memory."""
        todo = [text for text in dict.fromkeys(wanted) if text not in self.texts]
        found = self.decoder.stream_batch(todo, self.size, **vars(self.options))
        for _, response in tqdm(found, name, len(todo), unit="", disable=None, leave=False):
            self.summary.add(response)
            text = cli.one_line(response.text).strip()
            self.texts[response.prompt] = text or response.prompt
            if response.finish_reason != "stop" or not text:
                self.cut.add(response.prompt)
                continue
            pair = Pair(response.prompt, text, *self.languages)
            if journal:
                journal.append(pair)
            if self.growing and pair not in (self.decoder.memory or ()):
                self.growing.append(pair)


def read(name: str, output: Path | None) -> Document:
    """The document in a file. Standard input has the format of the output's name."""
    path = Path(output or name) if name == STDIN else Path(name)
    form = FORMATS.get(path.suffix.lower() or ".txt")
    if form is None:
        raise InputError(f"{path}: translate.py reads {', '.join(FORMATS)}")
    data = sys.stdin.buffer.read() if name == STDIN else path.read_bytes()
    try:
        with naming(Path(name)):
            return form(data)
    except ImportError:
        needed = f"{path.suffix} needs: pip install -r requirements-documents.txt"
        raise InputError(needed) from None


def output_of(name: str, output: Path | None, language: str | None, force: bool) -> Path | None:
    """Where a document's translation goes; None: stdout. InputError if that exists, unless `force`."""
    if str(output or name) == STDIN:
        return None
    if output is None or output.is_dir():
        if language is None:
            raise InputError("the model does not say its language: name the file with --output")
        path = Path(name)
        output = (output or path.parent) / f"{path.stem}.{short(language)}{path.suffix}"
    if output.exists() and not force:
        raise InputError(f"{output} already exists; --force replaces it")
    return output


def languages_of(decoder: SpeculativeDecoder, options: Options) -> tuple[str | None, str | None]:
    """The model's codes for source and target language. Its own are named on stderr if they were not asked for."""
    asked = chosen(decoder.model, options.source_lang, options.target_lang)
    own = defaults(decoder.model, decoder.tokenizer)
    if getattr(decoder.model, "languages", None) and not (asked[1] or own[1]):
        raise InputError("into which language? Say so with --to")
    for way, code, default in zip(("from", "to"), asked, own, strict=True):
        if default and not code:
            print(f"translating {way} {title(default)}; --{way} changes that", file=sys.stderr)
    return asked[0] or own[0], asked[1] or own[1]


def problems(
    translator: Translator, segment: Segment, text: str, pattern: re.Pattern, terms: Sequence[Pair]
) -> Iterator[str]:
    """What a reader should look at in a segment's text."""
    if lost := changed(segment.text, text, pattern):
        yield f"check {' '.join(lost)}"
    if any(sentence in segment.text for sentence in translator.cut):
        yield "a sentence was cut short; see --max-tokens"
    words = f" {' '.join(words_of(segment.text))} "
    for term in terms:
        named = f" {' '.join(words_of(term.prompt))} " in words
        if named and term.text.lower() not in text.lower():
            yield f"{term.prompt!r} is not {term.text!r}"


def translate_file(
    args, translator: Translator, name: str, document: Document, output: Path | None
) -> None:
    """Write a document's translation, whole or not at all. Sentences that a run translated before it was interrupted
    are not translated again."""
    journal = None
    if output:
        part = output.with_name(f".{output.name}.{translator.how:08x}.part")
        journal = MemoryFile(part)
        before = load_memory(part, lambda *_: None)  # passes over a line that was cut off
        translator.texts |= {pair.prompt: pair.text for pair in before.pairs}
    texts, pattern = translator.translate(document, name, journal), kept(document.marks)
    written = list[str | None]()
    for segment, text in zip(document.segments, texts, strict=True):
        for problem in problems(translator, segment, text, pattern, args.terms):
            cli.write(cli.one_line(f"{name}, {document.place(segment)}: {problem}"), sys.stderr)
        lost = document.strict and changed(segment.text, text, pattern)
        written.append(None if lost else text)
    data = document.write(written)
    if document.plain:
        cli.write(f"{name}: {len(document.plain)} formatted words became plain", sys.stderr)
    if output is None:
        sys.stdout.buffer.write(data)
        return
    output_of(name, output, None, args.force)  # it may have appeared meanwhile
    whole = part.with_suffix(".whole")
    whole.write_bytes(data)
    whole.replace(output)
    part.unlink()
    print(output)


def answer(args, ranks: Ranks) -> None:
    """Do what the command line asks for."""
    options = flags.options_of(args)
    documents = [read(name, args.output) for name in args.documents]
    args.terms = flags.read_memory(args.terms).pairs if args.terms else []
    if args.memory_append:
        MemoryFile(args.memory)  # creates the file if needed
    decoder = open_decoder(args, options, ranks)
    source, target = languages_of(decoder, options)
    outputs = [output_of(name, args.output, target, args.force) for name in args.documents]
    translator, began = Translator(args, decoder, options, source), time.perf_counter()
    for task in zip(args.documents, documents, outputs, strict=True):
        translate_file(args, translator, *task)
    if args.verbose:
        translator.summary.pairs = len(decoder.memory.pairs) if decoder.memory else 0
        lines = translator.summary.lines(time.perf_counter() - began)
        print("\n".join(lines), file=sys.stderr)


def main() -> None:
    with session() as ranks:
        if ranks.size > 1:
            raise InputError("translate.py runs as one process, not under mlx.launch")
        answer(parse_args(), ranks)


if __name__ == "__main__":
    cli.run(main)
