"""Markdown: CommonMark with GitHub's tables and alerts, and the dialects of front matter, containers, admonitions,
footnotes, definitions and math. Code, HTML, links' targets and tables stay."""

import re
from collections.abc import Iterator

from documents.document import Document, Passage, Span, by_length, in_text, passage
from documents.sentences import runs_on

_FRONT = re.compile(
    r"\A\ufeff?(---|\+\+\+)[ \t]*\r?\n.*?^(?:\1|\.\.\.)[ \t]*$", re.DOTALL | re.MULTILINE
)
_MARKS = (
    r"(?P<tick>`+)(?:(?!`).)+?(?P=tick)(?!`)|!\[[^\]]*\]\([^()]*\)|\]\([^()]*\)|\]\[[^\]]*\]|\[\^[^\]]+\]|\*\*|\["
    r"|\$\$[^$]+\$\$|(?<![\\\w$])\$(?![\s$])(?:\\.|[^$\\])+?(?<!\s)\$(?!\w)|\\\|"
)
# A line that would begin something else than text
_BLOCK = re.compile(
    r"(?:[-+*]|\d{1,9}[.)]|#{1,6}|:)(?=\s|$)|>|`{3}|~{3}|:::|=+\s*$|-{2,}\s*$|([-*_])(?:[ \t]*\1){2,}\s*$|\[[^\]]+\]:"
)
_ALERT = re.compile(r"\[!\w+\][+-]?(?:\s+|$)")
_HARD_BREAK = re.compile(r" {2,}$|(?<!\\)(?:\\\\)*(\\)$")


def parse(data: bytes) -> Document:
    lines = dict[Passage, list[str]]()

    def find(source: str) -> Iterator[Passage]:
        for each in _passages(source):
            lines[each] = [source[start:stop] for start, stop in each.spans]
            yield each

    def fit(passage: Passage, text: str) -> list[str]:
        return lines[passage] if text == passage.text else _fit(passage, text)

    return in_text(data, find, fit, marks=_MARKS)


def _parser():
    from markdown_it import MarkdownIt
    from mdit_py_plugins.admon import admon_plugin
    from mdit_py_plugins.amsmath import amsmath_plugin
    from mdit_py_plugins.container import container_plugin
    from mdit_py_plugins.deflist import deflist_plugin
    from mdit_py_plugins.dollarmath import dollarmath_plugin
    from mdit_py_plugins.footnote import footnote_plugin

    parser = MarkdownIt("commonmark", {"alerts": True, "tasklists": True}).enable("table")
    for plugin in (admon_plugin, amsmath_plugin, deflist_plugin, footnote_plugin):
        parser.use(plugin)
    parser.use(dollarmath_plugin, allow_space=False, allow_digits=False)
    parser.use(container_plugin, "any", validate=lambda *_: True)
    return parser.disable("footnote_tail")  # which leaves notes out that nothing refers to


def _passages(source: str) -> Iterator[Passage]:
    front = _FRONT.match(source)
    hidden = re.sub(r"[^\r\n]", " ", front[0]) if front else ""
    shown = hidden + source[len(hidden) :].replace("\ufeff", " ")
    begins = [0, *(match.end() for match in re.finditer(r"\r\n?|\n", source)), len(source)]
    end = 0  # of the last span: a table's cells share a line
    parent = ""
    for token in _parser().parse(shown):
        if token.type != "inline" or not token.map:
            parent = token.type
            continue
        groups = [list[Span]()]  # of lines, one for each passage
        before = ""  # the line of a hard break
        for number, line in enumerate(token.content.split("\n"), token.map[0]):
            hard_break = _HARD_BREAK.search(line)
            words = line[: hard_break.start() if hard_break else None].strip()
            span = _find(source, words, max(begins[number], end), begins[number + 1], parent)
            if not span:
                continue
            end = span[1]
            if before and not runs_on(before, words):
                groups.append([])
            before = words if hard_break else ""
            alert = None if any(groups) else _ALERT.match(words)
            if alert and alert.end() < len(words):
                yield passage(source, [(span[0] + alert.end(), span[1])])
            elif not alert:
                groups[-1].append(span)
        yield from (passage(source, group) for group in groups if group)


def _find(source: str, words: str, start: int, stop: int, parent: str) -> Span | None:
    """Where a line's words are; behind its other marks, or in the next cell of a table."""
    if parent == "admonition_title_open":  # a title that is not given is the admonition's kind
        start = source.find('"', start, stop) if '"' in source[start:stop] else stop
    pattern = re.compile(re.escape(words).replace(r"\|", r"\\?\|"))
    spans = [match.span() for match in pattern.finditer(source, start, stop)]
    is_cell = parent in ("th_open", "td_open")
    return spans[0 if is_cell else -1] if words and spans else None


def _fit(passage: Passage, text: str) -> list[str]:
    """The text spread over the lines, none of which begins something else, such as a list."""
    if "|" not in re.sub(r"\\\|", "", passage.text):
        text = re.sub(r"(?<!\\)\|", r"\|", text)  # which would end a table's cell
    lines = by_length(passage, text)
    for i, line in enumerate(lines):
        while i and _BLOCK.match(line) and " " in line:
            word, line = line.split(" ", 1)
            lines[i - 1] += f" {word}"
        if _BLOCK.match(line) and not _BLOCK.match(passage.text):
            line = re.sub(r"^\d*", r"\g<0>\\", line)
        lines[i] = line
    return lines
