"""Corrected sentences: decoded by the engine as documents' sentences are, and remembered while somebody types."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import regex
from rapidfuzz import fuzz, process
from starlette.concurrency import run_in_threadpool

from apps.documents.document import Document, Passage, Written
from apps.documents.translator import Memories, Service, Translator
from apps.serving.engine import Engine
from apps.serving.translation import steps_of_document, translation_of
from speculative.common.errors import InputError
from speculative.text.memory import CLOSE

_REMEMBERED = 10_000  # sentences; with more, the older half is forgotten
_SEARCHED = 500  # the latest, for what a sentence was before the last key
# Names in capitals, numbers
_KEPT = regex.compile(r"\b\p{Lu}[\p{Lu}\p{N}]+\b|\p{N}+(?:[.,:/]\p{N}+)*")


@dataclass
class Corrections:
    """Corrects sentences with one model, prompt template and options, and remembers them, in memory only."""

    engine: Engine
    template: str | None  # with {text}; None: the model is not known to correct texts

    def __post_init__(self):
        options = replace(self.engine.options, source_lang=None, target_lang=None)
        self._options = replace(options, prompt_template=self.template)
        self._texts = dict[str, str]()  # by sentence, the latest last
        self._cut = set[str]()  # sentences whose texts are not whole

    async def correct(self, sentences: Sequence[str], language: str) -> list[str]:
        """The correction of each sentence, or itself if the correction is not whole, or lost a name in capitals, a
        number or what is not prose. language: a tag. InputError if the model has no prompt for it."""
        if self.template is None:
            example = 'serve.py --prompt-template "Fix the grammar: {text}"'
            raise InputError(f"this model is not known to correct texts. If it does: {example}")
        if len(self._texts) > _REMEMBERED:  # running requests keep the old ones
            self._texts = dict([*self._texts.items()][_REMEMBERED // 2 :])
            self._cut = self._cut & self._texts.keys()
        memories = Memories(texts=self._texts, cut=self._cut, reference=self._reference)
        about: dict[str, Any] = dict(memories=memories, service=Service(assumed_source=language))
        decoder = self.engine.decoder
        translator = await run_in_threadpool(
            Translator, decoder, self._options, whole=True, **about
        )
        passages = [Passage(each, ((0, 0),)) for each in sentences]
        document = Document(passages, lambda *_: Written(b""))
        result = await translation_of(steps_of_document(self.engine, translator, document))
        return [
            line.source if line.problems or _lost(line.source, line.text) else line.text
            for line in result.lines
        ]

    def _reference(self, sentence: str) -> str | None:
        """The correction of that of the latest sentences that resembles this one most."""
        latest = [*self._texts][: -_SEARCHED - 1 : -1]
        close = process.extractOne(sentence, latest, scorer=fuzz.ratio, score_cutoff=100 * CLOSE)
        return self._texts.get(close[0]) if close else None


def _lost(sentence: str, text: str) -> bool:
    return not Counter(_KEPT.findall(sentence)) <= Counter(_KEPT.findall(text))
