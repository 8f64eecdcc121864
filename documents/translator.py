"""Documents in another language, sentence by sentence."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from decoder import BATCH_SIZE, Options, Response, SpeculativeDecoder
from documents.document import Document, Passage
from documents.marks import places
from documents.sentences import changed, keep_pattern, masked, sentences, translatable, words_of
from errors import InputError
from reporting import reporter
from speculative.sampling import RowSeeds
from text.languages import short
from text.memory import MemoryFile, Pair
from text.text_side import Conversation, Prompt

_FULL = 0.6  # of the longest output: longer sentences are cut


class Translation(NamedTuple):
    data: bytes  # of the file in the other language
    problems: list[str]  # what a reader should check, each with its place


@dataclass
class Translator:
    """Translates documents, each distinct sentence once. InputError for languages that the model does not have.

    whole:       translate a line as a whole if the model can read it at once
    terms:       a glossary; the problems name where a term's translation is missing
    memory_file: gets the sentences that the decoder's memory lacks
    on_response: called as each sentence is finished
    """

    decoder: SpeculativeDecoder
    options: Options
    batch_size: int = BATCH_SIZE
    whole: bool = False
    terms: Sequence[Pair] = ()
    memory_file: MemoryFile | None = None
    on_response: Callable[[Response], Any] = lambda response: None

    def __post_init__(self):
        self.options = self.decoder.seeded(self.options)
        text = self.decoder.text
        self._framed = Conversation.of(text).prompt
        self.languages = text.resolve_languages(self.options.source_lang, self.options.target_lang)
        # The languages without --from and --to; None: unknown.
        source_lang, target_lang = text.default_languages(self.decoder.model.prefix([]))
        self.source_lang = self.languages[0] or source_lang
        self.target_lang = self.languages[1] or target_lang
        if text.languages and not self.target_lang:
            raise InputError("into which language? Say so with --to (target_lang)")
        self.texts: dict[str, str] = {}  # translations by sentence
        self._cut = set[str]()  # sentences whose translations are not whole

    def translate(
        self, document: Document, name: str = "", journal: MemoryFile | None = None
    ) -> Translation:
        """A document's translation. name: for the progress bar. journal: gets each sentence as it is finished."""
        pattern = keep_pattern(document.marks)
        language = short(self.source_lang or "en")
        pieces = [
            [*sentences(passage.text, language, pattern, self._fits, self.whole)]
            for passage in document.passages
        ]
        stripped = [piece.strip() for of_passage in pieces for piece in of_passage]
        wanted = [sentence for sentence in stripped if translatable(sentence, pattern)]
        self._decode(wanted, name, journal)
        lost = [each for each in wanted if changed(each, self.texts[each], pattern)]
        if lost:
            self._decode([masked(each, pattern)[0] for each in lost], name, journal)
        texts = list[str | None]()
        problems = list[str]()
        for passage, of_passage in zip(document.passages, pieces, strict=True):
            new_pieces = [self._text(piece, pattern) for piece in of_passage]
            text = "".join(new_pieces)
            if passage.marked:
                document.places[passage] = places(of_passage, new_pieces, passage.marked)
            place = document.place(passage)
            problems += [f"{place}: {each}" for each in self._problems(passage, text, pattern)]
            is_lost = document.strict and changed(passage.text, text, pattern)
            texts.append(None if is_lost else text)
        data = document.write(texts)
        return Translation(data, problems + document.notes)

    def _fits(self, text: str) -> bool:
        """Whether the model can read the text and write as much."""
        try:
            # With a reference: otherwise the memory would be searched for one.
            row = self.decoder.row(self._framed(Prompt(text, "-")), self.options, RowSeeds(0))
        except InputError:  # more than it reads
            return not text.strip()
        return len(row.prompt) <= _FULL * row.max_tokens

    def _decode(self, wanted: Sequence[str], name: str, journal: MemoryFile | None) -> None:
        """Translate the sentences that have no text yet."""
        todo = [sentence for sentence in dict.fromkeys(wanted) if sentence not in self.texts]
        prompts = map(self._framed, todo)
        responses = self.decoder.stream_batch(prompts, self.batch_size, **vars(self.options))
        with reporter.bar(name, len(todo), "", 0.1) as advance:
            for _, response in responses:
                self.on_response(response)
                text = " ".join(response.text.splitlines()).strip()
                self.texts[response.prompt] = text or response.prompt
                advance(1)
                if response.finish_reason != "stop" or not text:
                    self._cut.add(response.prompt)
                    continue
                pair = Pair(response.prompt, text, *self.languages)
                if journal:
                    journal.append(pair)
                if self.memory_file and pair not in (self.decoder.memory or ()):
                    self.memory_file.append(pair)

    def _text(self, piece: str, pattern: re.Pattern) -> str:
        """A sentence's text with the space around it; the one from plain tokens if that alone has the placeholders."""
        source = piece.strip()
        text = self.texts.get(source, source)
        if changed(source, text, pattern):
            plain, restored = masked(source, pattern)
            from_plain = restored(self.texts[plain])
            if not changed(source, from_plain, pattern):
                text = from_plain
        return piece.replace(source, text, 1)

    def _problems(self, passage: Passage, text: str, pattern: re.Pattern) -> Iterator[str]:
        """What a reader should look at in a passage's text."""
        lost = changed(passage.text, text, pattern)
        if lost:
            yield f"check {' '.join(lost)}"
        if any(sentence in passage.text for sentence in self._cut):
            yield "a sentence was cut short; see --max-tokens"
        words = f" {' '.join(words_of(passage.text))} "
        for term in self.terms:
            is_named = f" {' '.join(words_of(term.prompt))} " in words
            if is_named and term.text.lower() not in text.lower():
                yield f"{term.prompt!r} is not {term.text!r}"
