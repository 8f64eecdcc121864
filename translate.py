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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
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
from terminal import cli
from terminal.flags import (
    add_decoding_options,
    add_growing_memory,
    add_models,
    check_models,
    options_of,
    read_memory,
)
from terminal.summary import Summary
from text.languages import chosen, defaults, short, title
from text.memory import MemoryFile, Pair, load_memory, words_of

STDIN = "-"
FORMATS = {
    ".txt": plain.read,
    ".md": markdown.read,
    ".docx": word.read,
    ".po": gettext.read,
    ".srt": subtitles.read_srt,
    ".vtt": subtitles.read_vtt,
    ".ass": subtitles.read_ass,
    ".ssa": subtitles.read_ass,
}
_FULL = 0.6  # of the longest output: longer sentences are cut


def parse_args(argv: list[str] | None = None):
    parser = cli.Parser(
        prog="translate.py", description="Translate documents, sentence by sentence."
    )
    parser.set_defaults(system_prompt=None, ignore_chat_template=False)
    flag = parser.add_argument
    text = f"a document ({', '.join(FORMATS)}); - reads standard input and prints"
    flag("documents", nargs="+", metavar="FILE", type=cli.name, help=text)
    add_models(parser)
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
    add_growing_memory(parser)
    add_decoding_options(parser, without=("logprobs", "num_samples", "reference", "stop"))
    flag("--verbose", action="store_true", help="print statistics to stderr at the end")
    args = parser.parse_intermixed_args(argv)
    check_models(args, parser)
    if args.output and len(args.documents) > 1 and not args.output.is_dir():
        parser.error("--output is one file, for one document, or a folder that exists")
    return args


class Translator:
    """Translates sentences, each distinct one once."""

    def __init__(self, args, decoder: SpeculativeDecoder, options: Options, language: str):
        """language: that of the sentences, a tag."""
        self.decoder, self.options, self.language = decoder, options, language
        self.size, self.whole = args.batch_size, args.whole
        self.growing = MemoryFile(args.memory) if args.memory_append else None
        self.texts: dict[str, str] = {}
        self.cut = set[str]()  # sentences whose texts reached the token limit
        self.summary = Summary()

    def translate(
        self, document: Document, name: str, journal: MemoryFile | None
    ) -> tuple[list[str | None], list[str]]:
        """The text of each segment, None where it should stay, and what is wrong with which."""
        pattern = kept(document.marks)
        pieces = [
            [*sentences(each.text, self.language, pattern, self.fits, self.whole)]
            for each in document.segments
        ]
        wanted = [each.strip() for of in pieces for each in of if translatable(each, pattern)]
        self.learn(wanted, journal, name)
        lost = (each for each in wanted if changed(each, self.texts[each], pattern))
        self.learn((masked(each, pattern)[0] for each in lost), journal, name)
        texts, wrong = list[str | None](), list[str]()
        for segment, of_segment in zip(document.segments, pieces, strict=True):
            text = "".join(self._text(piece, pattern) for piece in of_segment)
            lost = changed(segment.text, text, pattern)
            if lost:
                wrong.append(f"{segment.place}: check {' '.join(lost)}")
            if any(piece.strip() in self.cut for piece in of_segment):
                wrong.append(f"{segment.place}: cut short; see --max-tokens")
            texts.append(None if lost and document.strict else text)
        return texts, wrong

    def _text(self, piece: str, pattern: re.Pattern) -> str:
        """The translation of a sentence with the space around it; from plain tokens if that keeps placeholders."""
        source = piece.strip()
        if not translatable(piece, pattern):
            return piece
        text = self.texts[source]
        if changed(source, text, pattern):
            plain, restored = masked(source, pattern)
            other = restored(self.texts[plain])
            text = text if changed(source, other, pattern) else other
        return piece.replace(source, text, 1)

    def fits(self, text: str) -> bool:
        """Whether the model can read the text and write as much."""
        if not text.strip():
            return True
        try:
            row = self.decoder.row(text, self.options, RowSeeds(0))
        except InputError:  # more than it reads
            return False
        return len(row.prompt) <= _FULL * row.max_tokens

    def learn(self, wanted: Iterable[str], journal: MemoryFile | None, name: str) -> None:
        """Translate what has no text yet, and add it to the journal and the memory."""
        todo = [text for text in dict.fromkeys(wanted) if text not in self.texts]
        languages = self.options.source_lang, self.options.target_lang
        found = self.decoder.stream_batch(todo, self.size, **vars(self.options))
        for _, response in tqdm(found, name, len(todo), unit="", disable=None, leave=False):
            text = self.texts[response.prompt] = cli.one_line(response.text).strip()
            self.summary.add(response)
            if response.finish_reason != "stop":
                self.cut.add(response.prompt)
                continue
            pair = Pair(response.prompt, text, *languages)
            if journal:
                journal.append(pair)
            if self.growing and pair not in (self.decoder.memory or ()):
                self.growing.append(pair)


def read(name: str, output: Path | None) -> Document:
    """The document in a file. Standard input has the format of the output, if that is a file."""
    path = (output or Path("x.txt")) if name == STDIN else Path(name)
    form = FORMATS.get(path.suffix.lower())
    if form is None:
        raise InputError(f"{path}: translate.py reads {', '.join(FORMATS)}")
    data = sys.stdin.buffer.read() if name == STDIN else path.read_bytes()
    with naming(Path(name)):
        return form(data)


def output_of(name: str, output: Path | None, language: str | None, force: bool) -> Path | None:
    """Where a document's translation goes; None: stdout. InputError if that exists, unless `force`."""
    if STDIN in (name, str(output)) and (output is None or str(output) == STDIN):
        return None
    if output is None or output.is_dir():
        if language is None:
            raise InputError("the model does not say its language: name the file with --output")
        path = Path(name)
        output = (output or path.parent) / f"{path.stem}.{short(language)}{path.suffix}"
    if output.exists() and not force:
        raise InputError(f"{output} already exists; --force replaces it")
    return output


def with_languages(
    decoder: SpeculativeDecoder, options: Options
) -> tuple[Options, str, str | None]:
    """The options with the model's own codes, and the languages of source and output. What was not asked for is
    named on stderr."""
    asked = chosen(decoder.model, options.source_lang, options.target_lang)
    own = defaults(decoder.model, decoder.tokenizer)
    if getattr(decoder.model, "languages", None) and not (asked[1] or own[1]):
        raise InputError("translate into which language? Name it with --to")
    for word_, code, default in zip(("from", "to"), asked, own, strict=True):
        if default and not code:
            print(f"translating {word_} {title(default)}; --{word_} changes that", file=sys.stderr)
    options = replace(options, source_lang=asked[0], target_lang=asked[1])
    return options, short(asked[0] or own[0] or "en"), asked[1] or own[1]


def translate_file(
    args, translator: Translator, name: str, document: Document, output: Path | None
) -> None:
    """Translate a document; it appears whole. What was translated before an interruption is not translated again."""
    journal = None
    if output:
        how = zlib.crc32(repr((args.model, translator.options)).encode())
        part = output.with_name(f".{output.name}.{how:08x}.part")
        journal = MemoryFile(part)
        before = {pair.prompt: pair.text for pair in load_memory(part, lambda *_: None).pairs}
        if before:
            print(f"{name}: {len(before)} sentences were translated before", file=sys.stderr)
        translator.texts |= before
    texts, wrong = translator.translate(document, name, journal)
    data = document.write(texts)
    if output is None:
        sys.stdout.buffer.write(data)
    else:
        output_of(name, output, None, args.force)  # may have appeared meanwhile
        whole = part.with_suffix(".whole")
        whole.write_bytes(data)
        whole.replace(output)
        part.unlink()
    if document.dropped:
        wrong.append(f"{document.dropped} formatted words inside sentences became plain")
    for term in read_memory(args.terms).pairs if args.terms else ():
        wrong += missing(term, document.segments, texts)
    for line in wrong:
        cli.write(cli.one_line(f"{name}, {line}"), sys.stderr)


def missing(term: Pair, segments: Sequence[Segment], texts: Sequence[str | None]) -> Iterator[str]:
    """A line for each segment that has the term and whose text lacks its translation."""
    wanted = f" {' '.join(words_of(term.prompt))} "
    for segment, text in zip(segments, texts, strict=True):
        has = wanted in f" {' '.join(words_of(segment.text))} "
        if has and text is not None and term.text.lower() not in text.lower():
            yield f"{segment.place}: {term.prompt!r} is not {term.text!r}"


def answer(args, ranks: Ranks) -> None:
    """Do what the command line asks for."""
    options = options_of(args)
    documents = [read(name, args.output) for name in args.documents]
    if args.memory_append:
        MemoryFile(args.memory)  # creates the file if needed
    decoder = open_decoder(args, options, ranks)
    options, source, target = with_languages(decoder, options)
    outputs = [output_of(name, args.output, target, args.force) for name in args.documents]
    translator, began = Translator(args, decoder, options, source), time.perf_counter()
    for task in zip(args.documents, documents, outputs, strict=True):
        translate_file(args, translator, *task)
    if args.verbose:
        lines = translator.summary.lines(time.perf_counter() - began)
        print("\n".join(lines), file=sys.stderr)


def main() -> None:
    with session() as ranks:
        if ranks.size > 1:
            raise InputError("translate.py runs as one process, not under mlx.launch")
        answer(parse_args(), ranks)


if __name__ == "__main__":
    cli.run(main)
