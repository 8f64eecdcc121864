"""A translation memory: earlier prompts with their texts; for a new prompt, the text of the most similar one."""

import codecs
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import permutations
from pathlib import Path
from typing import BinaryIO
from xml.etree import ElementTree

import langcodes
from rapidfuzz import fuzz, process

from common.errors import InputError, errors_name
from common.files import naming_file

CLOSE = 0.7  # the least similarity that counts; translators' tools use 0.7 or 0.75
_TASK = re.compile(r"\s*(?:<2(\w+)>|>>(\w+)<<|([^:\n]{1,40}:(?=\s)))\s*")

# Elements without words, or done with
_CODES = ("bpt", "ept", "it", "ph", "ut", "note", "prop", "tu")
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"

Report = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt and its text. None: the language is not known."""

    prompt: str
    text: str
    source_lang: str | None = None
    target_lang: str | None = None


class Memory:
    """Pairs, grouped by the task that their prompts name and by their languages.

    Two prompts are as similar as the share of their characters that need not be deleted or inserted (rapidfuzz's
    ratio). The closest pair has the most similar prompt, with a similarity of at least `CLOSE`. Its languages must
    match, if they are known, and so must its task, if both prompts name one: "<2de>", ">>deu<<", "summarize:".
    """

    def __init__(self, pairs: Iterable[Pair]):
        self.pairs = dict.fromkeys(pairs)  # in their order, each once
        self._texts = [pair.text for pair in self.pairs]
        # Place and prompt, the latest first: extractOne returns the first of equals.
        self._groups: dict[tuple[str, str | None, str | None], dict[int, str]] = {}
        for place, pair in reversed([*enumerate(self.pairs)]):
            task = _split(pair.prompt)[0]
            group = self._groups.setdefault((task, pair.source_lang, pair.target_lang), {})
            group[place] = pair.prompt

    def __contains__(self, pair: Pair) -> bool:
        return pair in self.pairs

    def reference(
        self, prompt: str, source_lang: str | None = None, target_lang: str | None = None
    ) -> str | None:
        """The text of the closest pair, the latest among equals; None if no pair is close."""
        task, language, rest = _split(prompt)
        target_lang = target_lang or language
        closest = 100 * CLOSE, -1  # score and place
        for (group_task, source, target), prompts in self._groups.items():
            if task and group_task and task != group_task:
                continue
            if not (_fit(source_lang, source) and _fit(target_lang, target)):
                continue
            for query in {prompt, prompt if group_task else rest}:
                cutoff = closest[0] - 0.01  # rounding drops some scores that are equal to it
                match = process.extractOne(query, prompts, scorer=fuzz.ratio, score_cutoff=cutoff)
                if match:
                    _, score, place = match
                    closest = max(closest, (score, place))
        return self._texts[closest[1]] if closest[1] >= 0 else None

    def fitting(self, source: str | None, target: str | None) -> list[Pair]:
        """The pairs in these languages, which those get that have none."""
        return [
            Pair(p.prompt, p.text, p.source_lang or source, p.target_lang or target)
            for p in self.pairs
            if _fit(source, p.source_lang) and _fit(target, p.target_lang)
        ]

    def exact(self, source_lang: str | None, target_lang: str | None) -> dict[str, str]:
        """The texts of all prompts in these languages, the latest of each."""
        return {pair.prompt: pair.text for pair in self.fitting(source_lang, target_lang)}


def _split(prompt: str) -> tuple[str, str | None, str]:
    """The task that a prompt begins with, or "", the language that its tag names, and the rest."""
    task = _TASK.match(prompt)
    if not task:
        return "", None, prompt
    return task[0].strip(), task[1] or task[2], prompt[task.end() :]


@lru_cache(1024)
def _fit(one: str | None, other: str | None) -> bool:
    """Whether two codes, such as fra_Latn and fr-CA, may name the same language; None may be any."""
    if one is None or other is None or one == other:
        return True
    try:
        return langcodes.tag_distance(one.replace("_", "-"), other.replace("_", "-")) < 10
    except ValueError:  # not a language code
        return False


# ---------------------------------------------------------------------------------------------
# Files


def load_memory(path: Path, report: Report) -> Memory:
    """The memory in a file: TMX (.tmx), tab-separated (.tsv, .txt) or JSON lines (any other name). Calls `report(line, reason)`
    for each line that it skips; lines count from 1. OSError or InputError if the whole file cannot be read."""
    with open(path, "rb") as file:
        if path.suffix.lower() == ".tmx":
            with errors_name(path):
                return Memory(_tmx_pairs(file))
        parse = _tab_separated if path.suffix.lower() in (".tsv", ".txt") else _json_object
        return Memory(_line_pairs(file, parse, report))


def _line_pairs(
    file: Iterable[bytes], parse: Callable[[str], Pair], report: Report
) -> Iterator[Pair]:
    for number, line in enumerate(file, 1):
        try:
            text = line.removeprefix(codecs.BOM_UTF8).decode("utf-8").rstrip("\r\n")
            if text.strip():
                yield parse(text)
        except (ValueError, RecursionError) as error:
            reason = "not JSON in UTF-8 (tab-separated texts have a name in .tsv or .txt)"
            report(number, str(error) if isinstance(error, InputError) else reason)


def _tab_separated(line: str) -> Pair:
    source, tab, text = line.partition("\t")
    if not (tab and source.strip() and text.strip()):
        raise InputError("not two texts separated by a tab")
    return Pair(source, text)


def _json_object(line: str) -> Pair:
    value = json.loads(line)
    names = ("prompt", "text", "source_lang", "target_lang")
    fields = [value.get(name) for name in names] if isinstance(value, dict) else [None]
    are_texts = all(isinstance(x, str) for x in fields[:2])
    if not are_texts or not all(x is None or isinstance(x, str) for x in fields):
        raise InputError('not a JSON object with the texts "prompt" and "text"')
    "".join(filter(None, fields)).encode()  # UnicodeEncodeError for half of a surrogate pair
    return Pair(*fields)


def _tmx_pairs(file: BinaryIO) -> Iterator[Pair]:
    """All pairs of two languages in each unit of a TMX 1.4 file, in both directions. InputError if it is not TMX."""
    try:
        for _, element in ElementTree.iterparse(file):
            tag = element.tag.rpartition("}")[2]
            if tag == "tu":
                yield from _unit_pairs(element)
            if tag in _CODES:
                tail = element.tail  # the text after it
                element.clear()
                element.tail = tail
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise InputError(f"not valid XML: {error}") from None


def _unit_pairs(unit: ElementTree.Element) -> Iterator[Pair]:
    variants = list[tuple[str | None, str]]()
    for tuv in unit:
        text = "".join(tuv.itertext()).strip()
        if text:
            variants.append((tuv.get(_LANGUAGE) or tuv.get("lang"), text))
    for (source_lang, source), (target_lang, target) in permutations(variants, 2):
        if source_lang != target_lang:
            yield Pair(source, target, source_lang, target_lang)


class MemoryFile:
    """A JSON-lines memory that grows. Each pair is appended by one write, so a crash damages one line at most and
    several processes may add to the same file."""

    def __init__(self, path: Path):
        """Creates the file if needed. InputError for a TMX or tab-separated file."""
        if path.suffix.lower() in (".tmx", ".tsv", ".txt"):
            raise InputError(f"{path}: pairs can be added to JSON lines (.jsonl) only")
        self._path = path
        self._file = path.open("a+b", buffering=0)

    def append(self, pair: Pair) -> None:
        fields = {name: value for name, value in asdict(pair).items() if value is not None}
        line = json.dumps(fields, ensure_ascii=False).encode() + b"\n"
        size = os.fstat(self._file.fileno()).st_size
        last = os.pread(self._file.fileno(), 1, size - 1) if size else b"\n"
        if last != b"\n":  # a crash cut the last line off
            line = b"\n" + line
        with naming_file(self._path, self._path):
            while line:  # a full disk takes a part of it, and then raises
                line = line[self._file.write(line) :]
