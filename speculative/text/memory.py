"""A translation memory: earlier prompts with their texts; for a new prompt, the text of the most similar one."""

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import permutations
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree import ElementTree

import langcodes
from rapidfuzz import fuzz, process

from speculative.checkpoints.folder import json_object
from speculative.common.errors import InputError, errors_name
from speculative.common.files import naming_file
from speculative.text.languages import tag_of, title

CLOSE = 0.7  # the least similarity that counts; translators' tools use 0.7 or 0.75
XML = (".tmx", ".tbx")
TABLES = (".csv", ".tsv", ".txt")
SHOWN = 20  # lines that cannot be used and are reported one by one
_TASK = re.compile(r"\s*(?:<2(\w+)>|>>(\w+)<<|([^:\n]{1,40}:(?=\s)))\s*")

_UNITS = ("tu", "termEntry", "conceptEntry")  # of TMX and TBX
_CODES = ("bpt", "ept", "it", "ph", "ut", "note", "prop")  # elements without words
_DEPRECATED = {"deprecatedTerm-admn-sts", "supersededTerm-admn-sts"}
# OmegaT's tags, such as <a0>, </a0> and, for a line break, <br1/>
_BREAK = re.compile(r" ?<br\d+/?> ?")
_TAG = re.compile(r" (?:</?[a-z]+\d+/?>)+(?= )|</?[a-z]+\d+/?>")
_HEADER = re.compile(r"(?i)(source|term)[^\t]*\t(target|translation)")
_WORDS = {*"am an as be he hi id in is it my no or so to".split()}  # English, and languages' codes
_NOT_UTF_8 = re.compile("[\ufffd\ud800-\udfff]")  # in what was decoded
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"

Line = tuple[int, str]  # its number and text, or what is wrong with it
Skip = Callable[[Line], object]
Variant = tuple[str | None, str]  # a language and a text in it


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
    tags = [tag for tag in map(tag_of, (one, other)) if tag]
    return len(tags) == 2 and langcodes.tag_distance(tags[0], tags[1]) < 10


def load_memory(path: Path, report: Callable[[str], object]) -> Memory:
    """The memory in a file: XML (TMX, TBX), a table (CSV, or with tabs) or JSON lines (any other name). Lines
    that cannot be used are reported, and whether a first line of languages is taken for one; they count from 1.
    OSError or InputError if none can be used."""
    suffix = path.suffix.lower()
    skipped = list[Line]()
    with open(path, "rb") as file, errors_name(path):
        if suffix in XML:
            return Memory(_xml_pairs(file))
        parse = partial(_table_pairs, is_csv=suffix == ".csv") if suffix in TABLES else _json_pairs
        texts = (line.decode("utf-8-sig", "replace").rstrip("\r\n") for line in file)
        lines = [line for line in enumerate(texts, 1) if line[1].strip()]
        memory = Memory(parse(lines, skipped.append))
        if skipped and not memory.pairs:
            line, reason = skipped[0]
            raise InputError(f"none of its {len(skipped)} lines can be used; line {line}: {reason}")
    for line, reason in skipped[:SHOWN]:
        report(f"{path}, line {line}: {reason}")
    if len(skipped) > SHOWN:
        report(f"{path}: {len(skipped) - SHOWN} more such lines")
    return memory


def _json_pairs(lines: Iterable[Line], skip: Skip) -> Iterator[Pair]:
    for number, line in lines:
        try:
            value = json_object(line)
        except InputError as error:
            skip((number, f"{error} (other files have names in {', '.join(TABLES + XML)})"))
            continue
        names = "prompt text source_lang target_lang".split()
        fields: list[Any] = [value.get(name) for name in names]
        texts = [text for text in fields if text is not None]
        are_texts = all(isinstance(text, str) for text in (*fields[:2], *texts))
        if are_texts and not _NOT_UTF_8.search("".join([line, *texts])):
            yield Pair(*fields)
        else:
            skip((number, 'not a JSON object with the texts "prompt" and "text" in UTF-8'))


def _table_pairs(lines: Sequence[Line], skip: Skip, is_csv: bool) -> Iterator[Pair]:
    """The pairs of a table. A line has a text, its translation and perhaps both languages or a comment; or texts in the
    languages that the first line names. InputError for CSV with quotes at wrong places."""
    rows = [(number, text.split("\t")) for number, text in lines]
    if is_csv:
        rows = [*_csv_rows(lines)]
    rows = [(number, [cell.strip() for cell in cells]) for number, cells in rows]
    first, *below = [cells for _, cells in rows] or [[]]
    languages = _columns(first, below, lambda what: skip((rows[0][0], what)))
    if languages or _HEADER.match("\t".join(first)):
        del rows[0]
    for number, texts in rows:
        pairs = list[Pair]()
        if languages:
            pairs += _pairs_of(each for each in zip(languages, texts, strict=False) if each[0])
        elif len(texts) > 1 and all(texts[:2]):
            pairs.append(Pair(*texts[:2], *_languages(texts[2:4])))
        if pairs and not _NOT_UTF_8.search("".join(texts)):
            yield from pairs
        else:
            skip((number, "not two texts in UTF-8 separated by a tab (in .csv also ; or ,)"))


def _columns(
    first: Sequence[str], below: Sequence[Sequence[str]], tell: Callable[[str], object]
) -> list[str | None]:
    """The columns' languages, if a table's first line names them, or []. It has to have a name in full, or codes that are
    shorter than some line below and, if one is a word in English, `en` among them. tell: gets what was guessed"""
    languages = _languages(first)
    if not languages or not below or _languages(below[0]):  # or each line names its own
        return []
    cells = {cell.lower() for cell in first}
    is_longer = any(len("".join(line)) > len("".join(first)) for line in below)
    is_code = is_longer and ("en" in cells or cells.isdisjoint(_WORDS))
    named = ", ".join(map(title, filter(None, languages)))
    if is_code or any(len(cell) > 3 and tag_of(cell) for cell in first):
        fix = 'if it is a pair, put a line with "source" and "target" above it'
        tell(f"taken for the columns' languages, {named}; {fix}")
        return languages
    fix = "if it names the columns' languages, write their names in full"
    tell(f"taken for a pair, not for {named}; {fix}")
    return []


def _languages(cells: Iterable[str]) -> list[str | None]:
    """The languages that cells name, other than by three letters, which may be a word; none if they name fewer than two."""
    codes = [tag_of(re.sub("^...$", "", cell)) for cell in cells]
    if len({*codes} - {None}) < 2:
        codes.clear()
    return codes


def _csv_rows(lines: Sequence[Line]) -> Iterator[tuple[int, list[str]]]:
    """The cells of CSV, whose delimiter the most lines have equally often, since texts may have some of the others."""

    def regular(delimiter: str) -> int:
        counts = Counter(text.count(delimiter) for _, text in lines)
        del counts[0]
        return max(counts.values(), default=0)

    delimiter = max("\t;,", key=regular)
    reader = csv.reader((f"{text}\n" for _, text in lines), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            yield lines[reader.line_num - 1][0], cells
    except csv.Error as error:
        raise InputError(f"not CSV: line {lines[reader.line_num - 1][0]}: {error}") from None


def _xml_pairs(file: BinaryIO) -> list[Pair]:
    """The pairs of two languages in each unit of TMX 1.4 or concept of TBX, in both directions. InputError if there are none."""
    pairs = list[Pair]()
    units = 0
    try:
        for _, element in ElementTree.iterparse(file):
            tag = element.tag.rpartition("}")[2]
            if tag in _UNITS:
                units += 1
                pairs += _pairs_of(_variants(element))
            if tag in _UNITS or tag in _CODES:
                tail = element.tail  # the text after it
                element.clear()
                element.tail = tail
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise InputError(f"not valid XML: {error}") from None
    if not pairs:
        raise InputError(f"none of its {units} units has texts in two languages")
    return pairs


def _variants(unit: ElementTree.Element) -> Iterator[Variant]:
    """The texts of a unit in each language, and the terms of a concept that are not deprecated."""
    for variant in unit:
        language = variant.get(_LANGUAGE) or variant.get("lang")
        for part in variant:
            if _DEPRECATED.isdisjoint(part.itertext()):
                for element in part.iter():
                    if element.tag.endswith(("seg", "term")):
                        text = _BREAK.sub(" ", "".join(element.itertext()))
                        yield language, _TAG.sub("", text)


def _pairs_of(variants: Iterable[Variant]) -> Iterator[Pair]:
    """The pairs of texts in two languages, in both directions."""
    texts = [(language, text.strip()) for language, text in variants if text.strip()]
    for (source_lang, source), (target_lang, target) in permutations(texts, 2):
        if source_lang != target_lang:
            yield Pair(source, target, source_lang, target_lang)


class MemoryFile:
    """A JSON-lines memory that grows. Each pair is appended by one write, so a crash damages one line at most and
    several processes may add to the same file."""

    def __init__(self, path: Path):
        """Creates the file if needed. InputError for a name of XML or a table."""
        if path.suffix.lower() in (*XML, *TABLES):
            raise InputError(f"{path}: pairs can be added to JSON lines (.jsonl) only")
        self._path = path
        self._file = path.open("a+b", buffering=0)
        self._appended = set[int]()  # hashes

    def append(self, pair: Pair) -> None:
        if hash(pair) in self._appended:
            return
        self._appended.add(hash(pair))
        fields = {name: value for name, value in asdict(pair).items() if value is not None}
        line = json.dumps(fields, ensure_ascii=False).encode() + b"\n"
        size = os.fstat(self._file.fileno()).st_size
        last = os.pread(self._file.fileno(), 1, size - 1) if size else b"\n"
        if last != b"\n":  # a crash cut the last line off
            line = b"\n" + line
        with naming_file(self._path, self._path):
            while line:  # a full disk takes a part of it, and then raises
                line = line[self._file.write(line) :]
