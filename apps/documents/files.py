"""Documents in files: where their translations go, and going on where an interrupted run stopped."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from apps.documents import FORMATS, OPTIONS, read
from apps.documents.document import Document
from apps.documents.links import anchors_in, led
from apps.documents.translator import Line, Translation, Translator, length
from speculative.common.errors import InputError, errors_name
from speculative.common.files import check_free, followed, replacing
from speculative.common.reporting import reporter
from speculative.step.driver import Task
from speculative.step.journal import RowJournal, kept
from speculative.text.languages import short, tag_of

STDIN = "-"
REPORT_HEAD = "file\tplace\tsource\ttext\tcheck\n"


class File(NamedTuple):
    """A document to translate."""

    name: str  # as it was given
    document: Document
    given: str | None = None  # the folder that it is in, if that was given
    output: Path | None = None  # where its translation goes; None: to standard output


def files_of(names: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """The files of these names, and the documents in folders, hidden ones left out, each with its folder."""
    for name in names:
        if not Path(name).is_dir():
            yield name, None
        for path in sorted(Path(name).rglob("*")):
            is_hidden = any(part.startswith(".") for part in path.relative_to(name).parts)
            if path.suffix.lower() in FORMATS and path.is_file() and not is_hidden:
                yield str(path), name


def load(name: str, output: Path | None, encoding: str | None = None, **options: Any) -> File:
    """The document in a file. Standard input has the format of the output's name. options: of `OPTIONS`."""
    path = Path(output or name) if name == STDIN else Path(name)
    suffix = path.suffix.lower() or ".txt"
    if options.get("bilingual") and suffix not in OPTIONS["bilingual"]:
        raise InputError(f"{path}: --bilingual is for {', '.join(OPTIONS['bilingual'])}")
    data = sys.stdin.buffer.read() if name == STDIN else path.read_bytes()
    with errors_name(Path(name)):
        document = read(path, data, encoding, **options)
    return File(name, document)


def load_all(
    names: Iterable[str], output: Path | None, encoding: str | None, **options: Any
) -> tuple[list[File], list[InputError]]:
    """The documents of these names and in these folders, and what is wrong with the others. An error if none can be read."""
    files = list[File]()
    failures = list[InputError]()
    named = [*files_of(names)]
    anchors = anchors_in(Path(name) for name, _ in named)
    for name, given in named:
        try:
            linked = anchors[followed(Path(name))]
            file = load(name, output, encoding, anchors=linked, **options)
            files.append(file._replace(given=given))
        except (InputError, OSError) as error:
            reason = getattr(error, "strerror", None)
            failures.append(InputError(f"{name}: {reason}" if reason else str(error)))
    if not files:
        raise failures[0] if failures else InputError(f"no documents in {', '.join(names)}")
    return files, failures


def output_of(
    name: str, output: Path | None, languages: Sequence[str | None], given: str | None = None
) -> Path | None:
    """The file of a document's translation; None: stdout. languages: source and target. given: see `File`"""
    if str(output or name) == STDIN:
        return None
    if output and not output.is_dir():
        return output
    source, target = languages
    if target is None:
        raise InputError("into which language? Name it with --to, or the file with --output")
    path = Path(name)
    suffix = ".po" if path.suffix == ".pot" else path.suffix
    root = Path(given or path.parent)
    folder = (output or root) / path.relative_to(root).parent
    is_apart = followed(folder) != followed(path.parent)
    if given and output and followed(root) in followed(output).parents:
        is_apart = _is_target(output.name, source, is_folder=True)
    return folder / f"{_in_language(path.stem, source, target, is_apart)}{suffix}"


def _is_target(name: str, source: str | None, is_folder: bool = False) -> bool:
    """Whether this is a language that one may translate into. Of folders, doc and src are languages' codes, too."""
    is_code = not is_folder or len(name) != 3
    return is_code and tag_of(name) is not None and short(name) != short(source or "")


def _in_language(stem: str, source: str | None, target: str, is_apart: bool) -> str:
    """A name with the target's language, in place of the source's: film.en, film.de. is_apart: in a folder where others stay"""
    first, *parts = stem.split(".")
    for i in reversed(range(len(parts))):
        if source and tag_of(parts[i]) and short(parts[i]) == short(source):
            return ".".join([first, *parts[:i], short(target), *parts[i + 1 :]])
    return stem if is_apart else f"{stem}.{short(target)}"


def with_outputs(
    files: Sequence[File], output: Path | None, languages: Sequence[str | None]
) -> list[File]:
    """The files with their outputs. A file of a folder is no source if, there or in a folder in it, it has the name that another
    one's translation has or, in a language's folder, its own: it is left out and named. output, languages: as for `output_of`"""
    source, target = languages
    tags = {target or "", *(Path(file.name).stem.rpartition(".")[2] for file in files)}
    tags = {tag for tag in tags if _is_target(tag, source)}
    same = {Path(file.name): file.name for file in files if file.given}
    named = {output_of(each, None, (source, tag)): each for each in same.values() for tag in tags}

    def origins(file: File) -> Iterator[str | None]:
        folders = ["", *Path(file.name).relative_to(file.given or file.name).parts]
        for i, folder in enumerate(folders[:-1], 1):
            place = Path(file.given or "", *folders[i:])
            yield named.get(place)
            if _is_target(folder, source, is_folder=True):
                yield same.get(place) or same.get(place.with_suffix(".pot"))

    sources = list[File]()
    for file in files:
        new = output_of(file.name, output, languages, file.given)
        origin = next(filter(None, origins(file)), None)
        if origin:
            reporter.note(f"{file.name} is left out: a translation of {origin}")
        else:
            sources.append(file._replace(output=new))
    return sources


@dataclass
class FileTranslator:
    """Translates files in the same batches, and goes on where an interrupted run stopped."""

    translator: Translator
    model: str  # its stamp
    seeded: bool = False  # see RowJournal
    force: bool = False  # replace files that exist

    def check(self, files: Sequence[File]) -> tuple[list[File], list[InputError]]:
        """The files whose outputs can be written, and what is wrong with the others. InputError if an output exists that this
        run may not replace: it may be an interrupted run's, where that has left a journal."""
        good = list[File]()
        failures = list[InputError]()
        for file in files:
            try:
                if file.output:
                    with self._journal(file.output) as journal:
                        check_free(file.output, self.force or journal.has_entries)
            except OSError as error:
                failures.append(InputError(f"{file.name}: {error.filename}: {error.strerror}"))
            else:
                good.append(file)
        if not good:
            raise failures[0]
        return good, failures

    def run(self, files: Sequence[File]) -> Iterator[tuple[File, Translation | InputError]]:
        """Each file with its translation or what is wrong with it, as they are finished."""
        failed = False
        (first, *others) = [file.name for file in files]
        title = f"{first} and {len(others)} more" if others else first
        characters = sum(length(file.document) for file in files)
        self.translator.sample(file.document for file in files)
        outputs = {
            followed(Path(each.name)): followed(each.output) for each in files if each.output
        }
        tasks = (self._task(file, outputs) for file in files)
        for number, result in self.translator.run(tasks, title, characters):
            failed |= isinstance(result, InputError)
            yield files[number], result
        for file in files:
            if file.output and not failed:
                with self._journal(file.output) as journal:
                    journal.remove()

    @contextmanager
    def _journal(self, output: Path) -> Iterator[RowJournal]:
        output.parent.mkdir(parents=True, exist_ok=True)
        with closing(RowJournal(output, self.model, self.seeded)) as journal:
            yield journal

    def _task(self, file: File, outputs: Mapping[Path, Path]) -> Task:
        steps = self.translator.steps(file.document)
        if file.output is None:
            return (yield from steps)
        with self._journal(file.output) as journal:
            translation: Translation = yield from kept(steps, journal)
            with replacing(file.output, self.force) as partial:
                partial.write_bytes(led(translation.data, Path(file.name), outputs))
            return translation


def report_of(name: str, lines: Sequence[Line]) -> str:
    """A document's lines of the report, tab-separated."""
    rows = [
        [name, *line[:3], "; ".join([*["from the memory"] * line.from_memory, *line.problems])]
        for line in lines
    ]
    return "".join("\t".join(" ".join(field.split()) for field in row) + "\n" for row in rows)
