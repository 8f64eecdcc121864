"""Markdown's dialects: what CommonMark's parser does not know is kept from it, written as something that it knows, or read by
a rule of our own."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import regex

from apps.documents.inline import UNIT
from apps.documents.prose import BRACES

# What has no words: code as an element or with a role, an address, a link that shows its target's title, a call such as
# \@ref(x); a raised number; attributes of what they stand behind; or what other programs read, in which no marks are: in
# braces, [[x]]
_APART = regex.compile(
    r"(?P<kept><(code|kbd|samp|tt|var)\b[^<>]*>[^<>`]*</\2\s*>|<(?:[A-Za-z][\w+.-]+:|[^\s<>@:/]+@)[^\s<>]*>"
    r"|\[\]\((?:[^()\n]|\([^()\n]*\))*\)|\\@\w+\([^()\s]*\)"
    r"|(?:\{[\w:.+-]+\}|(?<!\w):[\w:.+-]{1,40}:)`[^`\n]+`)"
    rf"|(?P<raised>(?<!{UNIT})<(su[bp])\b[^<>]*>[^<>\p{{L}}]{{1,40}}</\4\s*>(?!\p{{L}}))"
    r"|(?P<attributes>(?<=[)\]*_~=`])\{[ :.#\w][^{}\n]*\})"
    rf"|(?!\{{(?:==|\+\+|--)){BRACES}|\$\{{[\w.]+\}}(?![_^$])|(?P<page>\[\[[^\[\]]*\]\](?!\(|\[[^^]))"
)
# Marks that CommonMark does not know: [x]{.y} and [x][y] without a target, ==x==, ^^x^^, {++x++}
_SPAN = regex.compile(
    r"(?P<opens>\[)(?P<words>(?:[^\[\]\\]|\\.|\[[^\[\]]*+\])++)(?P<closes>\](?:\{[^{}\n]*\}|\[[^\[\]\n^][^\[\]\n]*\]))"
    r"|(?P<opens>==|\^\^)(?P<words>(?=[^\s=^]).{1,999}?(?<=[^\s=^]))(?P<closes>\1)"
    r"|(?P<opens>\{(==|\+\+|--))(?P<words>[^{}]+?)(?P<closes>\4\})",
    regex.DOTALL,
)
# Front matter; templates' blocks of code; pandoc's fences whose attributes have backquotes, and its tables, multiline and simple;
# raw TeX; metadata between slides; equations and their labels; comments, MyST's if they are no line that goes on behind a
# number; MyST's names
_OF_EQUATION = r"(?!\$\$|`{3}|~{3})."
_VERBATIM = r"highlight|raw|verbatim|comment|code\w*|math\w*|mermaid|plantuml|graphviz"
_STAYS = re.compile(
    r"\A ?(?P<front>---|\+\+\+)[ \t]*\n(?:.*\n)*?(?:(?P=front)|\.\.\.)[ \t]*$"
    rf"|^[ \t>]*\{{[{{%][-<%]?\s*(?P<block>{_VERBATIM})\b.*\n(?:.*\n){{0,999}}?.*\{{[{{%][-<%]?\s*(?:end|/)\s*(?P=block)\b"
    r"|^[ \t>]*(?P<fence>`{3,})[ \t]*\{.*`.*\}[ \t]*\n(?:.*\n){0,999}?[ \t>]*(?P=fence)`*[ \t]*$"
    r"|^[ >]*-{3,} *\n(?:(?![\s>]*$).*\n){1,9}?[ >]*--+(?: +--+)+ *\n(?:.*\n){0,999}?[ >]*--[- ]*$"
    r"|^(?:(?![\s>]*$).*\n)?[ >]*--+(?: +--+)+ *\n(?:(?![\s>]*$).*\n?)+"
    r"|^[ \t>]*\\begin\{(?P<name>\w+\*?)\}(?:.*\n){0,999}?.*\\end\{(?P=name)\}.*$"
    r"|^---[ \t]*\n(?:[a-z_][\w-]*:(?:[ \t].*)?\n|[ \t]+\S.*\n|-[ \t].*\n)+(?:---|\.\.\.)[ \t]*$"
    rf"|^[ \t>]*\$\$(?:{_OF_EQUATION})*(?:\n(?!\s*$)(?:{_OF_EQUATION})*){{0,99}}?\$\$[ \t]*$"
    r"|(?<=\$\$)[ \t]*\{#[^{}\n]*\}[ \t]*$|^[ \t]*%%[ \t]*\n[^%]*%%[ \t]*$"
    r"|(?<!\d\n)^[ \t>]*%(?:[ \t].*)?$|^[ \t>]*\([\w:./-]+\)=[ \t]*$",
    re.MULTILINE,
)
# Other blocks that stay: MDX's import and export, a tag that its line does not end, pandoc's grids
WHOLE = re.compile(
    r"\A(?:import\s(?:.*\sfrom\s)?[\"'{*]|export\s+(?:default|const|let|var|function|async|class|[{*])"
    r"|<[A-Za-z][\w.]*(?=\s|$)(?![^<>\n{}]*/?>))|^\+[-=:]{2,}[-=+:]*$",
    re.MULTILINE,
)
# The line of a box that has a title: :::note The king, :::note[The king], ```{note} The king, /// note | The king
_BOXES = r"\{(?:admonition|attention|caution|card|danger|dropdown|error|hint|important|note|seealso|sidebar|tab-item|tip|topic|warning)\}"
BOX = regex.compile(
    rf"(?::{{3,}}\s*(?!\{{)[\w-]+(?:\[|[ \t]+)|/{{3,}}[ \t]*(?!html\b)[\w-]+[ \t]*\|[ \t]*|(?::{{3,}}|`{{3,}}|~{{3,}}){_BOXES}[ \t]+)"
    r"(?P<title>[^\[\]{}:\r\n]*\p{L}[^\[\]{}:\r\n]*)"
)
# What begins a box, a box's part or an alert, with a text of its own behind it, and captions of pandoc's tables, as the
# parser knows them
_WRITTEN = {
    r"^[ \t]*\K\+{3}(?=\s)": ">",
    r"^[ \t>]*>[ \t]*\K\[!\w+\][+-]?": "#",
    r"(?<=\n\n)Table:(?=\s+\S)": ">",
    r'^[ \t>]*\K===[!+]? (?=")': "!!! tab ",
    r"^[ \t>]*\K/{3,}(?=[ \t]+[\w-]+[ \t]*(?:\|.*)?$|[ \t]*$)": ":::",
    rf"^([ \t>]*)(`{{3,}}|~{{3,}})({_BOXES}.*\n(?:.*\n){{0,999}}?)\1\2[ \t]*$": r"\1:::\3\1:::",
}


def shown(source: str) -> str:
    """The source as the parser reads it, in as many lines: without what stays whole, other dialects' boxes as those it knows."""
    source = re.sub(r"\r\n?", "\n", source.replace("\ufeff", " "))
    source = _STAYS.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)
    for pattern, written in _WRITTEN.items():
        source = regex.sub(pattern, written, source, flags=regex.MULTILINE)
    return source


def parser():
    """A parser of CommonMark and of these dialects."""
    from markdown_it import MarkdownIt
    from mdit_py_plugins.admon import admon_plugin
    from mdit_py_plugins.container import container_plugin
    from mdit_py_plugins.deflist import deflist_plugin
    from mdit_py_plugins.dollarmath import dollarmath_plugin
    from mdit_py_plugins.footnote import footnote_plugin

    new = MarkdownIt("commonmark", {"tasklists": True}).enable(["table", "strikethrough"])
    for plugin in (admon_plugin, deflist_plugin, footnote_plugin):
        new.use(plugin)
    new.use(dollarmath_plugin, allow_space=False, allow_digits=False, double_inline=True)
    new.use(container_plugin, "any", validate=lambda *_: True)
    # Rules: they read what begins at a place or, to be skipped within other markup, silently
    new.inline.ruler.before("math_inline", "apart", _apart)
    new.inline.ruler.after("link", "span", _span)
    for rule in new.inline.ruler.__rules__:
        rule.fn = partial(_recorded, rule.fn)
    # Which leaves notes out that nothing refers to, and which hides how characters are escaped
    return new.disable(["footnote_tail", "text_join"])


def _recorded(rule: Callable[[Any, bool], bool], state: Any, silent: bool) -> bool:
    """A rule of markdown-it, whose tokens know where what they stand for ends."""
    first = len(state.tokens)
    is_read = rule(state, silent)
    for token in state.tokens[first:]:
        token.meta.setdefault("end", state.pos)
    return is_read


def _apart(state: Any, silent: bool) -> bool:
    match = _APART.match(state.src, state.pos)
    if not match or (silent and match["page"]):  # which may stand in a link's words
        return False
    is_behind = match["attributes"] and state.tokens and not state.pending  # of a token
    if not silent and (match["kept"] or match["raised"] or is_behind):
        state.push(match.lastgroup, "", 0).content = match[0]
    elif not silent:
        state.pending += match[0]
    state.pos = match.end()
    return True


def _span(state: Any, silent: bool) -> bool:
    match = _SPAN.match(state.src, state.pos, state.posMax)
    if silent or not match:
        return False
    token = state.push("span_open", "", 1)
    token.markup = match["opens"]
    token.content = match["closes"]
    end = state.posMax
    state.pos, state.posMax = match.span("words")
    state.md.inline.tokenize(state)
    state.push("span_close", "", -1).markup = match["closes"]
    state.posMax = end
    state.pos = match.end()
    return True
