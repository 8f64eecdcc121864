"""What documents say of their language becomes true of their translations."""

import io
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from apps.documents import read
from apps.documents.language import LanguageChange
from apps.documents.translator import Translator
from decoder import Options

WORD = ' xmlns:w="urn:w"'
TYPES = "".join(
    f'<Override PartName="/word/{name}.xml" ContentType="x.{name.replace("document", "main")}+xml"/>'
    for name in ("document", "styles", "settings")
)
RUNS = "<w:p><w:pPr>{}</w:pPr><w:r><w:rPr>{}</w:rPr><w:t>a b</w:t></w:r></w:p>"
BOOK = '<package xmlns:dc="urn:dc" version="3.0">{}<item href="a.xhtml" media-type="application/xhtml+xml"/><item href="b.ncx" media-type="application/x-dtbncx+xml"/>{}</package>'
CHAPTER = "<html{}><p>a b</p></html>"
NCX = "<ncx{}><text>a b</text></ncx>"
PO = 'msgid ""\nmsgstr ""\n"Language:{}\\n"\n\n{}msgid "a b"\nmsgstr "{}"\n'


def archive(**files: str) -> bytes:
    with zipfile.ZipFile(data := io.BytesIO(), "w") as written:
        for name, content in files.items():
            written.writestr(zipfile.ZipInfo(name), content)
    return data.getvalue()


def contents(data: bytes) -> dict[str, bytes]:
    """The files of an archive, whose pages and parts are well-formed."""
    with zipfile.ZipFile(io.BytesIO(data)) as files:
        assert files.testzip() is None
        found = {name: files.read(name) for name in files.namelist()}
    for each in found.values():
        ElementTree.fromstring(each)
    return found


def docx(default: str, paragraph: str = "", run: str = "") -> bytes:
    return archive(
        **{
            "[Content_Types].xml": f"<Types>{TYPES}</Types>",
            "word/styles.xml": f"<w:styles{WORD}><w:docDefaults>{default}</w:docDefaults></w:styles>",
            "word/document.xml": f"<w:document{WORD}>{RUNS.format(paragraph, run)}</w:document>",
        }
    )


def epub(language: str, spine: str, chapter: str, ncx: str) -> bytes:
    package = BOOK.format(f"<dc:language>{language}</dc:language>", f"<spine{spine}/>")
    container = '<container><rootfile full-path="a.opf"/></container>'
    files = {
        "META-INF/container.xml": container,
        "a.opf": package,
        "a.xhtml": CHAPTER.format(chapter),
        "b.ncx": NCX.format(ncx),
    }
    return archive(**files)


def lang(*values: str) -> str:
    """Word's languages of Latin, East Asian and complex scripts."""
    named = zip(("val", "eastAsia", "bidi"), values, strict=False)
    return "<w:lang" + "".join(f' w:{name}="{tag}"' for name, tag in named if tag) + "/>"


EN = '<html lang="en-US"><body dir="ltr"><p lang=en>a <i lang="fr">b</i> <code lang="en">c</code></p>'
RTL = '<html dir="rtl" lang="ar"><body dir="rtl"><p lang="ar">a <i lang="fr">b</i> <code lang="en">c</code></p>'
SUBTITLE = "{}00:01.000 --> 00:02.000\na b\n"
SAYS = [  # the source's language, the target's, a document and its translation
    ("a.html", "en", "de", EN, '<html lang="de"><body dir="ltr"><p lang="de">a <i lang="fr">b</i> <code lang="en">c</code></p>'),
    ("a.html", "en", "ar", EN, RTL),
    ("a.html", None, "de", EN, '<html lang="de"><body dir="ltr"><p lang="de">a <i lang="de">b</i> <code lang="en">c</code></p>'),
    ("a.html", "en", "de-AT", "<html><p>a b</p>", '<html lang="de-AT"><p>a b</p>'),
    ("a.html", "he", "en", '<html dir="RTL"><p dir="rtl">a b <b dir="ltr">c</b></p>', '<html lang="en" dir="ltr"><p dir="ltr">a b <b dir="ltr">c</b></p>'),
    ("a.html", None, "en", '<html dir="rtl"><p dir="rtl">a b', '<html lang="en" dir="ltr"><p dir="ltr">a b'),
    ("a.html", "en", "de", '<p class="x">a b</p>', '<p class="x">a b</p>'),
    ("a.html", "en", "en", "<html lang='en-GB' dir=ltr><p lang=en>a b", "<html lang='en-GB' dir=ltr><p lang=en>a b"),
    ("a.xhtml", "en", "de", '<html xmlns="x">a b</html>', '<html xml:lang="de" xmlns="x">a b</html>'),
    ("a.epub", "en", "de", epub("en-GB", "", ' xml:lang="en" lang="en"', ' xml:lang="en"'), epub("de", "", ' xml:lang="de" lang="de"', ' xml:lang="de"')),
    ("a.epub", "en", "fa", epub("en", "", "", ""), epub("fa", ' page-progression-direction="rtl"', ' dir="rtl" xml:lang="fa"', "")),
    ("a.epub", None, "en", epub("he", ' page-progression-direction="rtl"', "", ""), epub("en", ' page-progression-direction="ltr"', ' xml:lang="en"', "")),
    ("a.docx", "en", "de", docx(lang("en-US", "en-US"), run=lang("en-GB")), docx(lang("de", "en-US"), run=lang("de"))),
    ("a.docx", "en", "de", docx(lang("it"), run=lang("fr-FR")), docx(lang("de"), run=lang("fr-FR"))),
    ("a.docx", "en", "ja", docx(lang("en-US", "en-US")), docx(lang("en-US", "ja"))),
    ("a.docx", "ar", "fr", docx(lang("en", "", "ar-SA"), "<w:bidi/>", f"<w:rtl/>{lang('', '', 'ar')}"), docx(lang("fr", "", "ar-SA"), "", '<w:lang w:val="fr" w:bidi="ar"/>')),
    ("a.md", "en", "de", '---\ntitle: a\nlang: "en-US"\n---\na b\n\nlang: en\n', '---\ntitle: a\nlang: "de"\n---\na b\n\nlang: en\n'),
    ("a.vtt", "en", "de", SUBTITLE.format("WEBVTT\nKind: captions\nLanguage: en\n\n"), SUBTITLE.format("WEBVTT\nKind: captions\nLanguage: de\n\n")),
    ("a.po", "en", "pt-BR", PO.format(" ", "", ""), PO.format(" pt_BR", "#, fuzzy\n", "a b")),
]  # fmt: skip


@pytest.mark.parametrize("name, source, target, before, after", SAYS)
def test_a_translation_names_its_own_language(name, source, target, before, after):
    data, expected = (each.encode() if isinstance(each, str) else each for each in (before, after))
    document = read(Path(name), data)
    assert document.write([None] * len(document.passages)).data == data
    texts = [each.text for each in document.passages]
    written = document.write(texts, change=LanguageChange(source, target)).data
    if data.startswith(b"PK"):
        assert contents(written) == contents(expected)
    else:
        assert written == expected


@pytest.mark.parametrize(
    "name, before, after",
    [
        ("a.html", '<html lang="en"><p>a <b lang="en">b</b></p>', '<html lang="en"><p>a <b lang="en">b</b><br/><span dir="rtl" lang="fa">A <b lang="fa">B</b></span></p>'),
        ("a.md", "---\nlang: en\n---\na b\n", "---\nlang: en\n---\na b<br/>A B\n"),
        ("a.docx", docx(lang("en"), run=lang("en")), "<w:t>a b</w:t></w:r><w:r><w:br/></w:r><w:r><w:rPr><w:lang w:bidi=\"fa\" w:val=\"en\"/></w:rPr>"),
    ],
)  # fmt: skip
def test_beside_its_source_only_the_translation_names_its_language(name, before, after):
    data = before.encode() if isinstance(before, str) else before
    change = LanguageChange("en", "fa")
    new = read(Path(name), data, bilingual=True)
    written = new.write([each.text.upper() for each in new.passages], change=change).data
    if name == "a.docx":
        files = contents(written)
        assert after.encode() in files["word/document.xml"]
        assert files["word/styles.xml"] == contents(data)["word/styles.xml"]
    else:
        assert written.decode() == after


def test_a_short_run_of_another_language_does_not_name_that_of_its_paragraph():
    two = f"{lang('fr')}</w:rPr><w:t>Ah</w:t></w:r><w:r><w:rPr>{lang('en')}"
    document = read(Path("a.docx"), docx("", run=two))
    new = document.write(["Oh, c"], change=LanguageChange("en", "de")).data
    written = b'<w:lang w:val="de"/></w:rPr><w:t xml:space="preserve">Oh, c</w:t>'
    assert written in contents(new)["word/document.xml"]


def test_a_translator_names_the_language_that_it_knows_and_keeps_placeholders(decoder):
    page = b'<html lang="en"><p>The king sees.</p><p>The {name} sees {{y}} old doors.</p>'
    document = read(Path("a.html"), page)
    written = Translator(decoder, Options(target_lang="de")).translate(document).data.decode()
    assert written.startswith('<html lang="de"><p>Der ')
    assert written.endswith("<p>The {name} sees {{y}} old doors.</p>")
