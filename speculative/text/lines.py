"""Where a line of text may be cut, and how many columns it takes."""

import regex

from speculative.text.scripts import UNSPACED_CHARACTERS

_WIDE = regex.compile(r"[\p{ea=W}\p{ea=F}]")
_WIDTHLESS = regex.compile(r"[\p{Mn}\p{Me}\p{Cf}]")
_MARK = r"[^\w\s\p{Ps}\p{Pi}\p{Pd}]"
_DASH = r"(?<![\p{STerm}…]\W{0,3})\p{Pd}"  # not a speaker's, which begins a sentence
# What lines are made of: words or clusters, with opening marks, and with closing marks and vowels that may not begin a
# line (by Unicode's line breaking classes; Thai and Lao vowels stand before or after their consonant). Marks that spaces
# stand around, as in French, belong to the word before.
UNIT = regex.compile(
    r"(?:[\p{Pd}\p{Ps}\p{Pi}¿¡.…♪]+\s+)*[\p{lb=OP}\p{Pi}\u0e40-\u0e44\u0ec0-\u0ec4]*"
    rf"(?:(?=[{UNSPACED_CHARACTERS}])\X(?:(?<=[\u1039\u17d2])\X)*|[^\s{UNSPACED_CHARACTERS}]+)"
    r"(?:(?=[\p{lb=CL}\p{lb=CP}\p{lb=EX}\p{lb=IS}\p{lb=NS}\p{lb=CJ}\p{Pf}\p{M}\p{Lm}…"
    r"\u0e2f\u0e30\u0e32\u0e33\u0e45\u0eaf\u0eb0\u0eb2\u0eb3])\X)*"
    rf"(?:\s+(?:{_DASH}|{_MARK})+(?!\S))*\s*"
)


def columns(text: str) -> int:
    """The columns that a text takes on a terminal: two for each wide character, none for marks on another one."""
    return len(text) + len(_WIDE.findall(text)) - len(_WIDTHLESS.findall(text))


def wrap(text: str, width: int) -> list[str]:
    """The text in as few lines as have at most `width` columns, or one word that has more."""
    lines = [""]
    for unit in UNIT.findall(" ".join(text.split())):
        if lines[-1] and columns(lines[-1] + unit.rstrip()) > width:
            lines.append("")
        lines[-1] += unit
    return [line.rstrip() for line in lines]
