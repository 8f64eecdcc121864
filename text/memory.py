"""A translation memory: earlier prompts with their texts; for a new prompt, the text of the most similar one."""

import codecs
import errno
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path
from typing import BinaryIO
from xml.etree import ElementTree

import langcodes
import numpy as np
from rapidfuzz import fuzz
from tqdm import tqdm

from errors import InputError, naming

CLOSE = 0.7  # the least similarity that counts; translators' tools use 0.7 or 0.75
_SCORED = 16  # candidates, those that share most rare words, to compare in full
_LOOKED_UP = 4000  # index entries to look up per prompt, rarest words first
# Words; single characters in scripts that do not separate words.
UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"  # Thai to Han
_WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")
_TASK = re.compile(r"\s*(?:<2(\w+)>|>>(\w+)<<|([^:\n]{1,40}:(?=\s)))\s*")

_VARIANTS = 64  # the most of a TMX unit, which makes a pair of every two
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
    """Pairs, with an index of the words in their prompts.

    Two prompts are as similar as the share of their characters that need not be deleted or inserted (rapidfuzz's
    ratio). The closest pair has the most similar prompt, with a similarity of at least `CLOSE`. Its languages must
    match, if they are known, and so must its task, if both prompts name one: "<2de>", ">>deu<<", "summarize:".
    """

    def __init__(self, pairs: Iterable[Pair]):
        self.pairs = list(dict.fromkeys(pairs))
        self._same: dict[str, list[int]] = {}
        self._words: dict[str, int] = {}
        words, counts = list[int](), list[int]()
        how = dict(unit=" pairs", delay=2, leave=False, disable=None)
        for i, pair in enumerate(tqdm(self.pairs, "translation memory", **how)):
            self._same.setdefault(pair.prompt, []).append(i)
            found = {self._words.setdefault(w, len(self._words)) for w in words_of(pair.prompt)}
            words.extend(found)
            counts.append(len(found))
        of_words = np.array(words, np.int32)
        order = np.argsort(of_words, kind="stable")
        # The pairs with word w are _places[_starts[w] : _starts[w + 1]].
        self._places = np.repeat(np.arange(len(counts), dtype=np.int32), counts)[order]
        self._starts = np.searchsorted(of_words[order], np.arange(len(self._words) + 1))

    def __contains__(self, pair: Pair) -> bool:
        return any(self.pairs[i] == pair for i in self._same.get(pair.prompt, ()))

    def reference(
        self, prompt: str, source_lang: str | None = None, target_lang: str | None = None
    ) -> str | None:
        """The text of the closest pair, the latest among equals; None if no pair is close."""
        task, rest = _split(prompt)
        target_lang = target_lang or _language(task)
        best, text = 100 * CLOSE, None
        for i in self._same.get(prompt, []) or self._alike(prompt):
            pair = self.pairs[i]
            theirs = _split(pair.prompt)[0]
            if task and theirs and task != theirs:
                continue
            if not (_fit(source_lang, pair.source_lang) and _fit(target_lang, pair.target_lang)):
                continue
            score = fuzz.ratio(prompt, pair.prompt, score_cutoff=best)
            if task and not theirs:
                score = max(score, fuzz.ratio(rest, pair.prompt, score_cutoff=best))
            if score >= best:
                best, text = score, pair.text
        return text

    def _alike(self, prompt: str) -> list[int]:
        """Indices of pairs that share many of the prompt's rarest words, in order."""
        known = [self._words[w] for w in set(words_of(prompt)) if w in self._words]
        known.sort(key=lambda w: self._starts[w + 1] - self._starts[w])
        found, total = list[np.ndarray](), 0
        for w in known:
            places = self._places[self._starts[w] : self._starts[w + 1]]
            if found and total + len(places) > _LOOKED_UP:
                break
            found.append(places[-_LOOKED_UP:])
            total += len(places)
        if not found:
            return []
        pairs, shared = np.unique(np.concatenate(found), return_counts=True)
        return sorted(pairs[np.argsort(-shared, kind="stable")[:_SCORED]].tolist())


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _split(prompt: str) -> tuple[str, str]:
    """The task that a prompt begins with, or "", and the rest."""
    task = _TASK.match(prompt)
    return (task[0].strip(), prompt[task.end() :]) if task else ("", prompt)


def _language(task: str) -> str | None:
    """The language that a task's tag names."""
    tag = _TASK.match(task)
    return (tag[1] or tag[2]) if tag else None


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
    """The memory in a file: TMX (.tmx), tab-separated (.tsv, .txt) or JSON lines (any other name).

    Calls `report(line, reason)` for each line that it skips; lines count from 1. OSError or InputError if the
    whole file cannot be read.
    """
    with open(path, "rb") as file:
        if path.suffix.lower() == ".tmx":
            with naming(path):
                return Memory(_tmx_pairs(file))
        read = _tab_separated if path.suffix.lower() in (".tsv", ".txt") else _json_object
        return Memory(_line_pairs(file, read, report))


def _line_pairs(
    file: Iterable[bytes], read: Callable[[str], Pair], report: Report
) -> Iterator[Pair]:
    for number, line in enumerate(file, 1):
        try:
            text = line.removeprefix(codecs.BOM_UTF8).decode("utf-8").rstrip("\r\n")
            if text.strip():
                yield read(text)
        except InputError as error:
            report(number, str(error))
        except UnicodeDecodeError:
            report(number, "not UTF-8 text")
        except (ValueError, RecursionError):
            report(number, "not JSON (tab-separated texts have a name in .tsv or .txt)")


def _tab_separated(line: str) -> Pair:
    source, tab, text = line.partition("\t")
    if not (tab and source.strip() and text.strip()):
        raise InputError("not two texts separated by a tab")
    return Pair(source, text)


def _json_object(line: str) -> Pair:
    value = json.loads(line)
    names = ("prompt", "text", "source_lang", "target_lang")
    fields = [value.get(name) for name in names] if isinstance(value, dict) else [None]
    of_text = all(isinstance(x, str) for x in fields[:2])
    if not of_text or not all(x is None or isinstance(x, str) for x in fields):
        raise InputError('not a JSON object with the texts "prompt" and "text"')
    return Pair(*fields)


def _tmx_pairs(file: BinaryIO) -> Iterator[Pair]:
    """All pairs of two languages in each unit of a TMX 1.4 file, in both directions. InputError if it is not TMX."""
    head = file.read(200)
    file.seek(0)
    # expat knows UTF-8, UTF-16 and encodings of one byte; Python knows most others.
    found = re.match(rb"""<\?xml[^>]*?encoding\s*=\s*["']([\w.:-]+)""", head)
    utf32 = head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE))
    name = "utf-32" if utf32 else found[1].decode() if found else ""
    try:
        for _, element in ElementTree.iterparse(io.TextIOWrapper(file, name) if name else file):
            tag = element.tag.rpartition("}")[2]
            if tag == "tu":
                yield from _unit_pairs(element)
            if tag not in ("tuv", "seg", "hi"):  # such as codes of formatting
                tail = element.tail  # the text after it
                element.clear()
                element.tail = tail
    except LookupError:
        raise InputError(f"the encoding {name} is unknown; save the TMX as UTF-8") from None
    except UnicodeError:
        raise InputError(f"not text in {name}; save the TMX as UTF-8") from None
    except ElementTree.ParseError as error:
        raise InputError(f"not valid XML: {error}") from None


def _unit_pairs(unit: ElementTree.Element) -> Iterator[Pair]:
    variants = []
    for tuv in unit:
        if text := "".join(tuv.itertext()).strip():
            variants.append((tuv.get(_LANGUAGE) or tuv.get("lang"), text))
    if len(variants) > _VARIANTS:
        raise InputError(f"a unit (<tu>) has {len(variants)} variants, more than {_VARIANTS}")
    for (of_one, one), (of_other, other) in permutations(variants, 2):
        if of_one != of_other:
            yield Pair(one, other, of_one, of_other)


class MemoryFile:
    """A JSON-lines memory that grows. Each pair is appended by one write, so a crash damages one line at most and
    several processes may add to the same file."""

    def __init__(self, path: Path):
        """Creates the file if needed. InputError for a TMX or tab-separated file."""
        if path.suffix.lower() in (".tmx", ".tsv", ".txt"):
            raise InputError(f"{path}: pairs can be added to JSON lines (.jsonl) only")
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)

    def append(self, pair: Pair) -> None:
        fields = {name: value for name, value in asdict(pair).items() if value is not None}
        line = json.dumps(fields, ensure_ascii=False).encode() + b"\n"
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":  # a crash cut the last line off
            line = b"\n" + line
        if os.write(self._file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
