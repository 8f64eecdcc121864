"""Links between the files of a run lead to their translations, and nothing else changes."""

from pathlib import Path

import pytest

from apps.documents.links import led

KING, DOOR, PAGE = Path("/x/king.md"), Path("/x/part/b c.md"), Path("/x/part/a.html")
BESIDE = {file: file.with_suffix(f".de{file.suffix}") for file in (KING, DOOR, PAGE)}
APART = {file: Path("/out", file.relative_to("/x")) for file in BESIDE}
FLAT = {file: Path("/out", file.name) for file in BESIDE}


@pytest.mark.parametrize(
    "file, source, beside, flat",
    [
        (KING, "[1](king.md#a 'king.md')", "[1](king.de.md#a 'king.md')", None),
        (KING, "[1](./part/b%20c.md?d)", "[1](part/b%20c.de.md?d)", "[1](b%20c.md?d)"),
        (KING, "[b]: <part/b c.md> 'c'", "[b]: <part/b%20c.de.md> 'c'", "[b]: <b%20c.md> 'c'"),
        (KING, "<a class='b' href='part/a.html'>", *(f"<a class='b' href='{page}'>" for page in ("part/a.de.html", "a.html"))),
        (DOOR, "[1](../king.md) [2](a.html#b)", "[1](../king.de.md) [2](a.de.html#b)", "[1](king.md) [2](a.html#b)"),
        (PAGE, '<a href=a.html>1</a> <p title="a.html">', '<a href=a.de.html>1</a> <p title="a.html">', None),
        (PAGE, '<a title="1 > 0"\nHREF = "../king.md#&amp;">\xfc', '<a title="1 > 0"\nHREF = "../king.de.md#&amp;">\xfc', '<a title="1 > 0"\nHREF = "king.md#&amp;">\xfc'),
        (KING, "[1](x.md) [2](http://x.y/king.md) [3](/king.md) ![4](king.png) king.md", None, None),
        (KING, "`[1](king.md)` ``a` [2](king.md)``\n- ~~~\n  [3](king.md)\n  ~~~\n[4](http://[)", None, None),
    ],
)  # fmt: skip
def test_links_lead_to_translations(file, source, beside, flat):
    for encoding in ("utf-8", "latin-1"):
        for outputs, new in ((BESIDE, beside), (APART, None), (FLAT, flat)):
            assert led(source.encode(encoding), file, outputs) == (new or source).encode(encoding)
