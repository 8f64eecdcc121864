"""Documents in another language, sentence by sentence."""

import re
import zlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import regex
from tokenizers import Tokenizer

from apps.documents.alignment import Aligner
from apps.documents.document import Document, Passage, Targets, spread
from apps.documents.language import LanguageChange
from apps.documents.marks import Align, Sentence, targets_of
from apps.documents.prose import FORMS, STAND_IN, changed, covered, edges, masked, translatable
from apps.documents.sentences import between, gap, is_unspaced, sentences
from decoder import BATCH_SIZE, Options, Response, SpeculativeDecoder
from speculative.common.errors import InputError
from speculative.common.reporting import reporter
from speculative.step.driver import Task, Work, result_of
from speculative.step.row import Row, respond
from speculative.step.sampling import RowSeeds
from speculative.text.languages import bcp47, short, tag_of
from speculative.text.memory import Memory, MemoryFile, Pair
from speculative.text.scripts import UNSPACED_CHARACTERS
from speculative.text.text_side import Prompt

Pairs = Sequence[Sentence]  # of a passage
Aligned = Mapping[Sentence, Align]

_FULL = 0.6  # of the longest output: longer sentences are cut
_SAMPLED = 64  # sentences that say how the model's attention is to be read
_ALIGNED = 32  # sentences whose words are aligned before a server's other requests go on
_LONG = 5  # characters of a text for one of its source, more than any language needs
_TERMS = rf"(?i)(?<![^\W{UNSPACED_CHARACTERS}])\L<phrases>(?![^\W{UNSPACED_CHARACTERS}])"
_QUOTED = re.compile(r"""["'“„«「『].*["'”“»」』]""")


class Line(NamedTuple):
    """A passage of the report."""

    location: str
    source: str
    text: str
    from_memory: bool  # a translator's
    problems: list[str]  # what a reader should check


class Translation(NamedTuple):
    """data: of the file in the other language; notes: what a reader should know of all of it"""

    data: bytes
    lines: Sequence[Line]
    notes: Sequence[str]

    @property
    def problems(self) -> list[str]:
        """The things that a reader should check, each with its place."""
        return [f"{line.location}: {problem}" for line in self.lines for problem in line.problems]


@dataclass(frozen=True)
class Memories:
    """What is translated already, and what gets more of it."""

    terms: Memory | None = None  # a glossary; the problems name where a term is missing
    exact: bool = False  # use the decoder's memory's texts of the same sentence or passage
    file: MemoryFile | None = None  # gets the sentences that the decoder's memory lacks
    texts: dict[str, str] = field(default_factory=dict)  # by sentence, known ones; gets the others
    cut: set[str] = field(default_factory=set)  # those of them whose texts are not whole
    # What a sentence's text may resemble; None: what the decoder's memory has
    reference: Callable[[str], str | None] = lambda sentence: None


@dataclass(frozen=True)
class Service:
    """What a server tells its translators, and what these share."""

    assumed_source: str | None = None  # the language if neither the options nor the model say it
    max_prompt_tokens: int | None = None  # of a sentence; None: as many as the model reads
    aligners: dict[tuple[str | None, str | None], Aligner] = field(default_factory=dict)


@dataclass
class Translator:
    """Translates documents, each distinct sentence once. InputError for languages that the model does not have."""

    decoder: SpeculativeDecoder
    options: Options
    batch_size: int = BATCH_SIZE
    whole: bool | None = None  # translate lines as a whole if they fit; None: with a chat template
    memories: Memories = field(default_factory=Memories)
    service: Service = field(default_factory=Service)
    on_response: Callable[[Response], Any] = lambda response: None  # for each finished sentence

    def __post_init__(self):
        self.options = self.decoder.seeded(self.options)
        options = self.options
        text = self.decoder.text
        self._framed = text.prompt_format().prompt
        told = options.source_lang, options.target_lang, options.prompt_template
        self.languages = text.resolve_languages(*told)
        # The languages without --from and --to; None: unknown.
        source_lang, target_lang = text.default_languages(self.decoder.model.prefix([]))
        self.source_lang = self.languages[0] or source_lang or self.service.assumed_source
        self.target_lang = self.languages[1] or target_lang
        is_told = self.target_lang or options.prompt_template
        if (text.languages or text.translation) and not is_told:
            raise InputError("into which language? Say so with --to")
        if self.whole is None:
            self.whole = text.translation is not None
        self.texts = self.memories.texts
        self.cut = self.memories.cut
        memory = self.decoder.memory if self.memories.exact else None
        self._exact = memory.exact(self.source_lang, self.target_lang) if memory else {}
        self.texts |= self._exact
        self._instruction = len(self._row("-").prompt) - 1  # tokens beside the text's
        self._terms = defaultdict[str, dict[str, None]](dict)  # with their translations
        if self.memories.terms:
            for term in self.memories.terms.fitting(self.source_lang, self.target_lang):
                self._terms[term.prompt.casefold()][term.text] = None
        self._term_pattern = regex.compile(_TERMS, phrases=[*self._terms])
        model = self.decoder.model
        aligners = self.service.aligners
        if model.attention and not model.ranks and self.languages not in aligners:
            aligners[self.languages] = Aligner(self.decoder, self.options, bool(self._exact))
        self.aligner = aligners.get(self.languages)
        # Names for stand-ins that the vocabulary has: T5's has no braces
        tokenizers = text.prompt_tokenizer, text.tokenizer
        known = [form for form in FORMS if all(_has(each, form) for each in tokenizers)]
        self._forms = known or FORMS
        self._masks = set[str]()  # sentences with such names
        self._pending = dict[str, Row]()  # that are being decoded, by sentence
        self._sample = list[str]()  # sentences

    def sample(self, documents: Iterable[Document]) -> None:
        """Let some sentences say how the model's attention is to be read: the same ones in whatever order documents come."""
        passages = {passage.text: passage for each in documents for passage in each.passages}
        for text in sorted(passages, key=lambda text: zlib.crc32(text.encode())):
            sources = _sources(self._pieces(passages[text]))
            self._sample += (masked(each, *self._forms[:1])[0] for each in sources)
            if len(self._sample) >= _SAMPLED:
                return

    def translate(self, document: Document, name: str = "") -> Translation:
        """A document's translation. name: for the progress bar."""
        return result_of(self.run([self.steps(document)], name, length(document)))

    def run(self, tasks: Iterable[Task], name: str, characters: int) -> Iterator[tuple[int, Any]]:
        """Decode several documents' tasks in the same batches; yield as `SpeculativeDecoder.run`. characters: of all."""
        with reporter.bar(name, characters, " characters", 0.1) as advance:

            def finish(row: Row) -> None:
                self.finish(row)
                advance(len(row.prompt_text))

            size = self.batch_size
            yield from self.decoder.run(tasks, self.options, size, at_once=size, on_row=finish)

    def steps(self, document: Document) -> Task:
        """Translate a document, wherever its sentences are decoded; `finish` gets their rows."""
        pieces = [*map(self._pieces, document.passages)]
        yield from self._decode([*dict.fromkeys(chain.from_iterable(map(_sources, pieces)))])
        pairs = list[Pairs]()
        lost = list[list[str]]()  # stand-ins: their passages stay in the source's words
        for passage, of_passage in zip(document.passages, pieces, strict=True):
            texts = [*self._translated(passage, of_passage)]
            lost.append(changed(passage.text, "".join(texts)))
            if lost[-1]:
                texts = of_passage
            pairs.append([*zip(of_passage, texts, strict=True)])
        aligned = yield from self._align(document.passages, pairs)
        return self._written(document, pairs, lost, aligned)

    def _decode(self, sentences: Sequence[str]) -> Iterator[Work]:
        """Decode sentences, whose stand-ins the model does not read. Those that lose some in all forms have no text."""
        for form in self._forms:
            todo = {each: masked(each, form) for each in sentences if each not in self.texts}
            self._masks |= {plain for each, (plain, _) in todo.items() if plain != each}
            yield self._rows([todo.get(each, (each,))[0] for each in sentences])
            for sentence, (plain, restored) in todo.items():
                text = restored(self.texts[plain])
                if plain in self.cut:
                    self.cut.add(sentence)
                if text is not None and sentence not in self.texts:
                    self.texts[sentence] = text
                    self._remember(sentence, text)
            sentences = [each for each in sentences if each not in self.texts]
        self.texts |= dict.fromkeys(sentences, "")

    def _written(
        self, document: Document, pairs: list[Pairs], lost: list[list[str]], aligned: Aligned
    ) -> Translation:
        """The document with the sentences' texts. pairs: the sentences of each passage; lost: its stand-ins that they lack"""
        texts = list[str | None]()
        targets = list[Targets]()
        lines = list[Line]()
        for passage, of_passage, missing in zip(document.passages, pairs, lost, strict=True):
            text = "".join(new for _, new in of_passage)
            goes = targets_of(of_passage, passage.formatting, aligned)
            flat = _flat(passage.text), _flat(text)
            problems = [*self._problems(*flat)]
            if missing:
                named = map(passage.meaning, missing)
                problems.append(f"not translated: check {' '.join(named)}")
            problems += self._lost_terms(of_passage, aligned)
            sources = [edges(_flat(piece))[1] for piece, _ in of_passage]
            if not self.cut.isdisjoint(sources):
                problems.append("a sentence was cut short; see --max-tokens")
            if any(pair in aligned for pair in of_passage):
                problems += _to_check(passage, goes)
            from_memory = all(source in self._exact for source in sources)
            lines.append(Line(passage.location, *flat, from_memory, problems))
            targets.append(goes)
            texts.append(None if missing else text)
        written = document.write(texts, targets, self._change())
        for number, more in written.problems.items():
            lines[number].problems.extend(more)
        notes = [*document.notes, *written.notes]
        from_memory = sum(line.from_memory for line in lines)
        if not any(translatable(line.source) for line in lines):
            notes.append("nothing in it was translated: it has no text")
        if from_memory:
            notes.append(f"{from_memory} of {len(lines)} texts are the memory's")
        if written.plain:
            notes.append(f"{len(written.plain)} formatted words became plain")
        return Translation(written.data, lines, notes)

    def _change(self) -> LanguageChange | None:
        """What documents say of their language, and what translations do; None: nothing else, since it is not known."""
        if self.target_lang and tag_of(self.target_lang):
            return LanguageChange(self.source_lang, bcp47(self.target_lang))
        return None

    def _pieces(self, passage: Passage) -> list[str]:
        """The sentences of a passage, with the space after them."""
        text = _flat(passage.text)
        if text in self._exact or (self.whole and text in self.texts):
            return [passage.text]
        language = short(self.source_lang or "en")
        return [*sentences(passage.text, language, STAND_IN, self._fits, bool(self.whole))]

    def _fits(self, text: str) -> bool:
        """Whether the model can read the text and write as much."""
        try:
            row = self._row(text)
        except InputError:  # more than it reads
            return not text.strip()
        return len(row.prompt) - self._instruction <= _FULL * row.max_tokens

    def _row(self, text: str) -> Row:
        # With a reference: otherwise the memory would be searched for one.
        return self.decoder.maker.row(self._framed(Prompt(text, "-")), self.options)

    def _rows(self, wanted: Sequence[str]) -> Iterator[Row]:
        """The rows of sentences without a text, the longest first, made as they are taken; documents share them."""
        seeds = RowSeeds(self.options.seed)
        for sentence in sorted(dict.fromkeys(wanted), key=len, reverse=True):
            if sentence in self.texts:
                if self.decoder.learner:
                    self.decoder.learner.total -= len(sentence)
                continue
            if sentence not in self._pending:
                prompt = self._framed(Prompt(sentence, self.memories.reference(sentence)))
                limit = self.service.max_prompt_tokens
                rows = self.decoder.maker.rows(prompt, self.options, seeds, limit)
                (self._pending[sentence],) = rows
            yield self._pending[sentence]

    def finish(self, row: Row) -> None:
        """Take a sentence's text."""
        response = respond(row)
        del self._pending[response.prompt]
        self.on_response(response)
        text = " ".join(response.text.splitlines()).strip()
        self.texts[response.prompt] = text or response.prompt
        if response.finish_reason != "stop" or not text:
            self.cut.add(response.prompt)
        elif response.prompt not in self._masks:
            self._remember(response.prompt, text)

    def _remember(self, sentence: str, text: str) -> None:
        pair = Pair(sentence, text, *self.languages)
        is_new = sentence not in self.cut and pair not in (self.decoder.memory or ())
        if self.memories.file and is_new:
            self.memories.file.append(pair)

    def _translated(self, passage: Passage, pieces: Sequence[str]) -> Iterator[str]:
        """The texts of the pieces of a passage, in lines as these."""
        edged = map(edges, map(_flat, pieces))
        texts = [f"{before}{self.texts.get(words, words)}{after}" for before, words, after in edged]
        breaks = {*passage.breaks}
        feeds = (match.end() for match in re.finditer("\n", passage.text))
        cuts = sorted({*breaks, *feeds})
        spans = pairwise(accumulate(map(len, pieces), initial=0))
        for i, (piece, text, (start, end)) in enumerate(zip(pieces, texts, spans, strict=True)):
            stop = start + len(piece.rstrip())
            space = passage.text[stop:end]
            if end in breaks:
                space = "\n"
            elif i + 1 < len(pieces) and not space.strip(" \u3000"):
                space = _space(piece, text, pieces[i + 1], texts[i + 1])
            inner = cuts[bisect_right(cuts, start) : bisect_left(cuts, stop)]
            lines = [passage.text[a:b] for a, b in pairwise([start, *inner, stop])]
            yield _in_lines(text, lines, bool(breaks)) + space

    def _problems(self, source: str, text: str) -> Iterator[str]:
        """The things that a reader should look at in a passage's text."""
        if len(text) > _LONG * (len(source) + 20):
            yield "much longer than its source: an explanation?"
        elif _QUOTED.fullmatch(text) and not _QUOTED.fullmatch(source):
            yield "in quotes, unlike its source"

    def _align(
        self, passages: Sequence[Passage], pairs: Sequence[Pairs]
    ) -> Generator[Work, Any, Aligned]:
        """The alignments of the sentences in which marks begin or end, or terms are, if the model says them."""
        todo = dict[Sentence, None]()
        for passage, of_passage in zip(passages, pairs, strict=True):
            spans = pairwise(accumulate((len(source) for source, _ in of_passage), initial=0))
            for pair, (start, end) in zip(of_passage, spans, strict=True):
                has_edge = any(
                    begin <= end and start <= stop and not begin <= start < end <= stop
                    for begin, stop in passage.formatting
                )
                if has_edge or any(self._terms_in(pair[0])):
                    todo[pair] = None
        aligned = dict[Sentence, Align]()
        if not (todo and self.aligner):
            return aligned
        if self._sample:
            yield self._rows([each for each in self._sample if each not in self.texts])
            yield partial(self.aligner.choose, [(each, self.texts[each]) for each in self._sample])
        for first in range(0, len(todo), _ALIGNED):
            some = [*todo][first : first + _ALIGNED]
            alignments = yield partial(self.aligner.align, some, self.texts.items())
            aligned |= {pair: each.span for pair, each in zip(some, alignments, strict=True)}
        return aligned

    def _lost_terms(self, pairs: Pairs, aligned: Aligned) -> list[str]:
        """The terms of whose translations none is at their own words or, if it is not sure where these are, in the sentence."""
        lost = dict[str, None]()
        for pair in pairs:
            for term in self._terms_in(pair[0]):
                span = term.span()
                texts = self._terms[term[0].casefold()]
                any_of = "|".join(map(re.escape, texts))
                matches = [*re.finditer(any_of, pair[1], re.IGNORECASE)]
                (begin, end), sure = aligned[pair](span) if pair in aligned else (span, False)
                if sure:
                    matches = [m for m in matches if m.start() < end and begin < m.end()]
                if not matches:
                    lost[f"{term[0]!r} is not {' or '.join(map(repr, texts))}"] = None
        return [*lost]

    def _terms_in(self, text: str) -> Iterator[Any]:
        """The matches of a text's terms outside of stand-ins; of those that begin together the longest."""
        matches = self._term_pattern.finditer(covered(text.replace("\n", " ")), overlapped=True)
        return (match for match in matches if match[0])


def length(document: Document) -> int:
    """The characters of a document's passages."""
    return sum(len(passage.text) for passage in document.passages)


def _to_check(passage: Passage, targets: Targets) -> Iterator[str]:
    """The words whose formatting may be at others."""
    for span, (_, sure) in zip(passage.formatting, targets or (), strict=False):
        words = passage.text[slice(*span)].strip()
        if words and sure < 1:
            yield f"check what belongs to {words!r}"


def _has(tokenizer: Tokenizer, form: str) -> bool:
    """Whether a vocabulary has all of a name for stand-ins."""
    name = form.format(1)
    return name in tokenizer.decode(tokenizer.encode(name).ids)


def _sources(pieces: Iterable[str]) -> Iterator[str]:
    """The sentences to translate in the pieces of a passage."""
    return (edges(_flat(piece))[1] for piece in pieces if translatable(piece))


def _flat(piece: str) -> str:
    """A sentence on one line."""
    lines = (line.strip() for line in piece.split("\n"))
    return " ".join(filter(None, lines))


def _space(piece: str, text: str, next_piece: str, next_text: str) -> str:
    """The space between two sentences' texts on one line."""
    after_cell = gap(piece, text, next_piece)
    if after_cell or not between(text, next_text):
        return after_cell
    space = piece[len(piece.rstrip()) :].replace("\u3000", " ")
    had_none = is_unspaced(piece[-1:]) or is_unspaced(next_piece)
    return space or (" " if had_none else "")


def _in_lines(text: str, lines: Sequence[str], with_empty: bool) -> str:
    """A sentence's text in as many lines as its source, with their indents. with_empty: also lines without a word"""
    parts = [text]
    if len(lines) > 1:
        parts = spread(text, [len(line.strip()) for line in lines])
    indents = [line[: len(line) - len(line.lstrip())] for line in lines]
    filled = (each for each in zip(indents, parts, strict=True) if each[1] or with_empty)
    return "\n".join(map("".join, filled))
