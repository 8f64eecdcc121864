"""What of a text is prose: words, spaces and punctuation as people write them. Whatever else stands in it is to the model a
stand-in, which a translation must have again."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache

import regex

from speculative.text.scripts import UNSPACED_CHARACTERS

_PICTURE = r"(?!\p{P})\p{ExtPict}[\p{ExtPict}\p{EMod}\ufe0f\u200d]*"
_ADDRESS = (
    r"(?:(?<!\w)\w{2,20}://|www\.|mailto:)[^\s<>]*[^\s<>.,;:!?)\]]"
    r"|(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+"
)
_ROMAN = r"(?i:(?=[ivx]|l[ivx])(?:xc|xl|l?x{0,3})(?:ix|iv|v?i{0,3}))(?!\w)"
_LETTER = rf"[\w--[{UNSPACED_CHARACTERS}]]"  # of words that have spaces between them
_JOINED = rf"[\w@#$%\\\|=\~\^/.:+*\&\-<>--[{UNSPACED_CHARACTERS}]]"
_RAISED = r"\p{L}{4,}+[\^~]\w{1,9}[\^~](?!\w)"  # behind a word
_MARK = r"(?:\*{1,3}|_{1,3}|~~|==)"
_BEGINS = rf"(?:(?<!{_JOINED})|(?<=(?<!{_JOINED}){_MARK}))"  # also behind a mark
BRACES = r"\{[^{}]*\}"
for _ in range(2):  # within each other
    BRACES = BRACES.replace(r"[^{}]*", rf"(?:[^{{}}]|{BRACES})*+")
# What joins letters and digits into a name, a value or a path
_SIGNS = "|".join(
    (
        rf"(?<!\w)@{_LETTER}|(?<!\w)\*\.\p{{Ll}}|\w@\w\w|[#^]{_LETTER}|{_LETTER}(?:\^|=(?!=))|(?:\\|(?<!=)=){_LETTER}|(?<!\p{{L}})\$\p{{L}}|(?<!\d\s?|%)%\p{{L}}|%\w{{1,40}}%",
        r"[^\W_]_++(?!in(?:nen)?\b)[^\W_]",  # not German's Leser_innen
        r"\p{L}~\p{L}|~\w{1,20}~|\w(?:\||::|\*\*|==|[<>]|\+)\w|\+\+\w|\w\+\+",
        rf"(?<![^\s\"'“‘„«(\[])(?:~|\.\.?)?/[\w.]|\p{{L}}{{3}}/(?!{_JOINED})|/[\w/-]{{1,99}}\.\p{{Ll}}",  # noqa: RUF001
        rf"{_BEGINS}(?:(?=[\d_-]*[A-Za-z])(?:{_LETTER}|-){{2,}}+)?(?:\.[a-z][a-z\d]+)+(?!\w)",
    )
)
_ARGUMENTS = r"""\((?:[^()\s]*["'=\[{$_.,/]|[^()]*[,=]\s)[^()]*\)|\(\)|\[[^\[\]\s]*\]"""
_FORMAT = r"[-+#0']*+[\d*]*+(?:\.[\d*]+)?(?:hh?|ll?|[jqzt])?[diouxXeEfFgGaAcsrpn@]"
_VALUE = r"""(?:[^\s()\[\]"'”’“»]|[("'\[][^\s()\[\]"']*[)"'\]])+"""  # noqa: RUF001
_SWITCH = rf"(?:--(?:\[[a-z-]+\])?\d*[a-z][\w-]*+(?:={_VALUE}|\[={_VALUE}\])?|-(?:v+|\p{{Ll}})(?![\w'’-]))"  # noqa: RUF001
_STAND_INS = (
    rf"{_ADDRESS}|{_PICTURE}|&#?\w+;|</?(?:\p{{L}}|\d+/?>)[^<>]*>|<!--[^<>]*+(?<=--)>",
    # Templates and what programs fill in: {{name}}, ${name}, {% if x %}, %1$s
    rf"[$%#@!]?{BRACES}|\$\([^()\s]*\)|(?<!\w)%%[^%]+%%",
    rf"(?<!\d)(?:%(?:(?:\(\w+\)|<\w+>|\d+\$){_FORMAT}|(?=[-+#0']*+\d*+\.){_FORMAT}|{_FORMAT}(?!\p{{L}})|L?\d(?!\d)%?)|%%)",
    # Formulas and commands of TeX, escapes
    r"\\\(.{1,200}?\\\)|\$\$[^$]+\$\$|(?<!\w)\$(?![\s$])[^$\n]+(?<!\s)\$(?![\w$])",
    r"\\\p{L}+\*?(?:\[[^\[\]]*\]|\{[^{}]*\})*(?!/)|\\(?!\w)\S?",
    # Code, with its role or as a reference: :ref:`x`, `x`_
    r"(?::[\w\-.+:]{1,40}:)?(?:``(?:[^`]|`(?!`))+``|`(?!\s)[^`]+(?<!\s)`)(?::[\w-]+:|__?(?!\w))?",
    # References: [[x]], [@x], (@x), [^1], [x]_, [1], [X9X], [xii], |x|, :x:, (x)=, x::, .. x::
    r"!?\[\[[^\[\]]*\]\]|\[(?=[^\[\]]*?(?<!\w)@[\w{])[^\[\]]*\]|\(@[\w.:-]*\)|\[\^[^\[\]\s]+\]|\[[^\[\]\s]+\]__?(?!\w)",
    r"\[/\w+\]|\[\w+=[^\[\]]+\]|\[[\w -]+::[^\[\]]*\]|(?<![\w-])[\w-]++::(?=\s+\S)|\$\[[^\[\]\s]*\]",
    r"\[(?P<tag>\w+)\](?=[^\[\]]*\[/(?P=tag)\])",
    rf"\[(?:\d[\d\s,;–-]*|[A-Z]*\d+[A-Z]*|{_ROMAN})\]|\|(?=[^|\s])[^|\n]*(?<!\s)\|_{{0,2}}",  # noqa: RUF001
    r"(?<![\w:])(?::(?=[\w+-]*\p{L})[\w+-]+:)+(?!:)|\([\w:./-]+\)=(?!\S)|(?<!\S)\.\.\s[\w:-]+::(?!\w)",
    # Names, values, paths, calls, switches
    rf"(?<![^\s(\[/]){_SWITCH}|(?<=[\"'“‘„«]){_SWITCH}(?=[\"'”’“»])",  # noqa: RUF001
    r"(?<![^\n])\$ (?=[\p{Ll}./~]).+|(?<!\w)__\w+?__(?!\w)",
    rf"{_BEGINS}{_LETTER}(?:{_LETTER}|[.:])*+(?:\(\)|(?=\([^\s()])(?:{_ARGUMENTS}))",
    rf"{_BEGINS}(?![\w--[_{UNSPACED_CHARACTERS}]]++[\s,;!?]|{_RAISED})(?={_JOINED}*?(?:{_SIGNS})){_JOINED}+(?<![.:])"
    rf"(?:(?:{_ARGUMENTS}){_JOINED}*(?<![.:]))*",
    r"(?<=\p{L}{4})[\^~]\w{1,9}[\^~](?!\w)",
    # Marks beside words: **, _, [ and ](x), the & of &Open
    rf"(?<![\w*_~=]){_MARK}(?=[^\s*_~=])|(?<=[^\s*_~=]){_MARK}(?![\w*_~=])|(?<![\w&])&(?=\p{{L}})",
    r"!?\[(?=[^\[\]\n]*\][({\[])|\](?:\((?:[^()]|\([^()]*\))*\)|\{[^{}]*\}|\[[^\[\]]*\])|(?<=\w)::(?!\w)|\t+",
)
# Within a word only its signs are looked at.
STAND_IN = regex.compile(rf"(?V1)(?:(?![^\W_])|(?<!{_LETTER}))(?:{'|'.join(_STAND_INS)})++")
# Those whose order matters: marks, tags, and values that only their order tells apart
_ORDERED = regex.compile(
    r"</?\w|\A(?:[*_~=&\t:]+|!?\[[^\[\]]*)\Z|\A(?:[*_~=]+|\])|[*_~=]+\Z|%(?![\d(<%])|\{\}|\[/?\w+[=\]]"
)
_TOUCHED = regex.compile(f"(?V1){_LETTER}")
_BEGIN = regex.compile(
    rf"\A(?:(?:{_PICTURE}|[♪♫]|[(\[]?{_ROMAN}[.)\]](?=\s)|\(@[\w.:-]*\)(?=\s))\s*)+"
)
_END = regex.compile(rf"(?r)(?:\s*(?:{_PICTURE}|[♪♫]|\{{\s*[#.:][^{{}}]*\}}))+\Z")
_ALONE = regex.compile(
    rf"(?V1)[\W\d_]*(?:(?:[\p{{L}}--[{UNSPACED_CHARACTERS}]]|{_ROMAN})[)\]]?\.?\s*)?"
)
# What dialects of markup have: not code, names or marks, which are in prose, too
_DIALECT = re.compile(r"[$%#@!]?\{|!?\[[\[@^]|[:\\(]|%%|\.\.")
_FIELD = regex.compile(
    r":[\w-]+:\s+\S+|\*\[[^\[\]]+\]:\s.*|\[_?\p{Lu}{2,}_?\]|(?:</?\p{L}[^<>]*>\s*)+"
)
_HOLE = "\ufffc"  # "object replacement character"
_HOLES = re.compile(f"{_HOLE}+")
FORMS = ("{{{}}}", "X{}")  # of stand-ins; the second one, if a translation lacks some


def edges(text: str) -> tuple[str, str, str]:
    """A text without the pictures at its edges, its Roman number or its label, between what stands before and after it."""
    rest = _BEGIN.sub("", text)
    middle = _END.sub("", rest)
    return text[: len(text) - len(rest)], middle, rest[len(middle) :]


def translatable(text: str) -> bool:
    """Whether there are words: more than stand-ins, a letter or a Roman number."""
    return not _ALONE.fullmatch(STAND_IN.sub(" ", text))


@lru_cache(1 << 14)  # each line is read again for notes and titles
def is_syntax(line: str) -> bool:
    """Whether a line of markup has fewer words than pieces of a dialect, or is `:name: value`, `*[X]: x`, `[TOC]` or tags."""
    pieces = [match for match in STAND_IN.finditer(line) if _DIALECT.match(match[0])]
    words = regex.findall(r"\w*\p{L}\w*", STAND_IN.sub(" ", line))
    return len(pieces) > len(words) or _FIELD.fullmatch(line) is not None


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    """A pattern of any of these, the longest ones first."""
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")


def covered(text: str) -> str:
    """The text with holes for the characters of its stand-ins, and of what is one only beside another."""
    before = ""
    while text != before:
        before = text
        text = STAND_IN.sub(lambda match: _HOLE * len(match[0]), text)
    return text


def stand_ins(text: str) -> list[str]:
    """Those of a text, in its order."""
    return [text[slice(*match.span())] for match in _HOLES.finditer(covered(text))]


def changed(source: str, text: str) -> list[str]:
    """The stand-ins that one of the two has more often than the other, in however many lines."""
    source, text = (re.sub(r"\s*\n\s*", " ", each) for each in (source, text))
    known = any_of(stand_ins(source))

    def found(text: str) -> Counter[str]:
        others = filter(lambda each: each.strip(_HOLE), stand_ins(known.sub(_HOLE, text)))
        return Counter([*known.findall(text), *others])

    wanted, present = map(found, (source, text))
    return [*((wanted - present) + (present - wanted))]


def masked(text: str, form: str = FORMS[0]) -> tuple[str, Callable[[str], str | None]]:
    """The text with names of this form for stand-ins, and a function that puts them back; None: a text does not have each
    once, or not in the order or beside the words that they must have."""
    holed = covered(text)
    kept = {form.format(i): match for i, match in enumerate(_HOLES.finditer(holed), 1)}
    values = {name: text[slice(*match.span())] for name, match in kept.items()}
    ordered = [name for name, value in values.items() if _ORDERED.search(value)]
    tokens = any_of(kept)
    names = iter(kept)

    def restored(new: str) -> str | None:
        found = {match[0]: match for match in tokens.finditer(new)}
        is_whole = sorted(tokens.findall(new)) == sorted(kept)
        if not is_whole or [name for name in found if name in ordered] != ordered:
            return None
        if any(_is_torn(kept[name], found[name]) for name in ordered):
            return None
        return tokens.sub(lambda match: values[match[0]], new)

    return _HOLES.sub(lambda _: next(names), holed), restored


def _is_torn(source: re.Match[str], new: re.Match[str]) -> bool:
    """Whether a mark touched a word in the source and does not any more."""
    sides = (
        (each.string[each.start() - 1 : each.start()], each.string[each.end() : each.end() + 1])
        for each in (source, new)
    )
    return any(_TOUCHED.match(was) and not now.strip() for was, now in zip(*sides, strict=True))
