"""Word, HTML and EPUB: what belongs to words stays at them, and all that is not text stays byte for byte."""

import io
import re
import zipfile
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.documents import FORMATS, markup
from apps.documents.check import fault_of, outline_of
from apps.documents.document import Document, Written
from apps.documents.marks import target_of, targets_of
from apps.documents.prose import masked
from apps.documents.tags import events_of
from speculative.common.errors import InputError

NAMES = "".join(f' xmlns:{name}="urn:{name}"' for name in ("w", "m", "r"))
TYPE = '<Types><Override PartName="/word/{}.xml" ContentType="x.document.main+xml"/></Types>'


def docx(body: str, name: str = "document") -> bytes:
    with zipfile.ZipFile(output := io.BytesIO(), "w") as archive:
        archive.writestr("[Content_Types].xml", TYPE.format(name))
        archive.writestr(f"word/{name}.xml", f"<w:document{NAMES}><w:p>{body}</w:p></w:document>")
    return output.getvalue()


def body_of(data: bytes, name: str = "document") -> str:
    """What is in the paragraph, with runs in short as docx.words writes them."""
    xml = zipfile.ZipFile(io.BytesIO(data)).read(f"word/{name}.xml").decode()
    xml = xml.partition("<w:p>")[2].rpartition("</w:p>")[0].replace(' xml:space="preserve"', "")
    xml = re.sub("<w:r>(?:<w:rPr>(.*?)</w:rPr>)?<w:t>(.*?)</w:t></w:r>", r"[\1:\2]", xml)
    return xml.replace("[:]", "").replace("[:", "[")


def long(body: str) -> str:
    """The runs that are in short: [text] and [<w:b/>:text]."""
    body = re.sub(r"\[([^\[\]:]*)\]", r"[:\1]", body)
    body = re.sub(
        r"\[(<[^\[\]]*/>)?:([^\[\]]*)\]", r"<w:r><w:rPr>\1</w:rPr><w:t>\2</w:t></w:r>", body
    )
    return body.replace("<w:rPr></w:rPr>", "")


def document_in(ending: str, source: str, **options: bool) -> Document:
    """The document of a source, of Word's its body."""
    data = docx(long(source)) if ending == ".docx" else source.encode()
    return FORMATS[ending](data, **options)


def in_capitals(document: Document) -> Written:
    """The document with all but its stand-ins in capitals."""
    texts = (masked(passage.text) for passage in document.passages)
    return document.write([restored(text.upper()) for text, restored in texts])


def field(code: str, result: str) -> str:
    begin, separate, end = (
        f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in ("begin", "separate", "end")
    )
    return f"{begin}<w:r><w:instrText> {code} </w:instrText></w:r>{separate}{result}{end}"


NOTE = '<w:r><w:footnoteReference w:id="1"/></w:r>'
MATH = "<m:oMath><m:r><m:t>x</m:t></m:r></m:oMath>"
DELETED = '<w:del w:id="1"><w:r><w:delText>big </w:delText></w:r></w:del>'
REF, PAGE, LINK = field("REF a", "[two]"), field("PAGE", "[3]"), 'HYPERLINK "x"'
COMMENT = '<w:commentRangeStart w:id="3"/>{}<w:commentRangeEnd w:id="3"/>'
INSERTED = '<w:ins w:id="2">{}</w:ins>'
HYPERLINK = '<w:hyperlink r:id="1">{}</w:hyperlink>'
BREAK, TAB = "<w:r><w:br/></w:r>", "<w:r><w:tab/></w:r>"
HYPHEN = "<w:r><w:noBreakHyphen/></w:r>"
BOX = "<w:r><w:pict><w:p>{}</w:p></w:pict></w:r>"
RUBY = "<w:r><w:ruby><w:rt>{}</w:rt><w:rubyBase>{}</w:rubyBase></w:ruby></w:r>"
PICTURE = '<w:r><w:drawing><r:docPr id="1" name="a" title="" descr="{}"/></w:drawing></w:r>'
BOXES = [f"<w:sdt><w:sdtPr><m:checkbox/></w:sdtPr>[{sign}]</w:sdt>" for sign in "☐☒"]
U = "<w:u/>"

WORD = [
    (f"[The king.]{NOTE}[ He sees.]", ["The king. He sees."], None, f"[THE KING.]{NOTE}[ HE SEES.]"),
    (f"[The king]{NOTE}[, he sees.]", ["The king, he sees."], None, f"[THE KING]{NOTE}[, HE SEES.]"),
    (f"[See ]{REF}[ now.]", ["See {1} now."], "Jetzt {1} sehen.", f"[Jetzt ]{REF}[ sehen.]"),
    (f"[Page ]{PAGE}", ["Page {1}"], "{1} ist sie", f"{PAGE}[ ist sie]"),
    (f"[{{1}} is ]{MATH}[.]", ["{1} is {2}."], None, f"[{{1}} IS ]{MATH}[.]"),
    (f"[See ]{HYPERLINK.format(f'[{U}:the house]')}[ now.]", ["See the house now."], "Ja", HYPERLINK.format(f"[{U}:Ja]")),
    (f"{HYPERLINK.format('[Ann]')}[ sees.]", ["Ann sees."], "Heute sieht Ann.", f"[Heute sieht ]{HYPERLINK.format('[Ann]')}[.]"),
    (f"[See ]{HYPERLINK.format(f'[{U}:a long link]')}[.]", ["See a long link."], None, f"[SEE ]{HYPERLINK.format(f'[{U}:A LONG LINK]')}[.]"),
    (field(LINK, "[Ann]") + "[ sees.]", ["Ann sees."], None, field(LINK, "[ANN]") + "[ SEES.]"),
    (f"[An old ]{DELETED}[king.]", ["An old king."], None, f"[AN OLD ]{DELETED}[KING.]"),
    (f"{INSERTED.format('[Now]')}[ he sees.]", ["Now he sees."], None, f"{INSERTED.format('[NOW]')}[ HE SEES.]"),
    (f"[A ]{COMMENT.format('[red dog]')}[ sees.]", ["A red dog sees."], None, f"[A ]{COMMENT.format('[RED DOG]')}[ SEES.]"),
    (f"[Name]{TAB}[Ann]{BREAK}[Lee]", ["Name", "Ann", "Lee"], None, f"[NAME]{TAB}[ANN]{BREAK}[LEE]"),
    (f"[Ann]{BREAK}[sees.]", ["Ann sees."], None, f"[ANN]{BREAK}[SEES.]"),
    (f"[An e]{HYPHEN}[mail.]", ["An e-mail."], None, f"[AN E]{HYPHEN}[MAIL.]"),
    (f"[See -]{HYPHEN}[no.]", ["See --no."], "Ja, --no.", f"[Ja, -]{HYPHEN}[no.]"),
    (f"{HYPHEN}{HYPERLINK.format('[A]')}", ["-A"], "B c - A", f"[B c ]{HYPHEN}[ ]{HYPERLINK.format('[A]')}"),
    (f"[a]{BOX.format('[b]')}[ c]", ["b", "a c"], None, f"[A]{BOX.format('[B]')}[ C]"),
    (RUBY.format("[かん]", "[漢]") + "[です。]", ["漢です。"], "So.", "[So.]"),
    (f"[See ]{PICTURE.format('a &quot;dog&quot;')}[now.]", ["See now.", 'a "dog"'], None, f"[SEE ]{PICTURE.format('A &quot;DOG&quot;')}[NOW.]"),
    ("[<w:b/>:Ann][ sees.]", ["Ann sees."], "Es sieht Ann.", "[Es sieht ][<w:b/>:Ann][.]"),
    ("[An old]<w:r><w:softHyphen/></w:r>[er dog.]", ["An older dog."], None, "[AN OLDER DOG.]"),
    (f"{BOXES[0]}[ Yes]{BOXES[1]}[ no]", ["{1} Yes{2} no"], None, f"{BOXES[0]}[ YES]{BOXES[1]}[ NO]"),
]  # fmt: skip


@pytest.mark.parametrize("body, texts, new, written", WORD)
def test_what_belongs_to_words_of_a_docx_stays_at_them(body, texts, new, written):
    source = docx(long(body))
    document = FORMATS[".docx"](source)
    assert [passage.text for passage in document.passages] == texts
    assert document.write(texts).data == document.write([None] * len(texts)).data
    assert body_of(document.write(texts).data) == body_of(source)
    assert body_of(document.write([new or text.upper() for text in texts]).data) == body_of(
        docx(long(written))
    )


@pytest.mark.parametrize("outer", ["tbl", "sdt"])
def test_a_text_is_read_deep_in_others(outer):
    body = f"{'<w:sdt>' * 99}[Ann]{'</w:sdt>' * 99}"
    if outer == "tbl":
        body = f"</w:p>{'<w:tbl>' * 99}<w:p>[Ann]</w:p>{'</w:tbl>' * 99}<w:p>"
    written = FORMATS[".docx"](docx(long(body))).write(["Eva"])
    assert not written.problems and body_of(written.data) == body_of(
        docx(long(body.replace("Ann", "Eva")))
    )


def test_a_change_or_a_link_that_cannot_stay_is_named():
    document = FORMATS[".docx"](docx(long(INSERTED.format("[Now]") + "[ he sees.]")))
    written = document.write(["Er sieht jetzt."])
    assert written.problems == {0: ["check the change of 'Now'"]}
    links = " ".join(f'<a href="{i}">{word}</a>' for i, word in enumerate(("one", "two")))
    document = FORMATS[".html"](links.encode())
    written = document.write(["Ja"])
    assert written.data.decode().count("></a>") == 0
    assert written.problems == {0: ["check the link of 'two'"]}


def test_the_parts_of_a_docx_are_those_that_it_lists():
    document = FORMATS[".docx"](docx(long("[An old king.]"), "document2"))
    assert body_of(document.write(["Ein König."]).data, "document2") == "[Ein König.]"
    with zipfile.ZipFile(output := io.BytesIO(), "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
    with pytest.raises(InputError, match=r"there is no text in it"):
        FORMATS[".docx"](output.getvalue())


def test_a_control_shows_the_translation_of_what_it_is_bound_to():
    body = '<w:dataBinding w:xpath="/a:coreProperties/b:title"/><w:altChunk r:id="x"/><w:dataBinding w:xpath="/x"/>'
    old = "<a><dc:title>A &amp; d</dc:title><dc:creator>Ann</dc:creator></a>"
    with zipfile.ZipFile(data := io.BytesIO(docx(body)), "a") as archive:
        archive.writestr("docProps/core.xml", old)
    document = FORMATS[".docx"](data.getvalue())
    new = zipfile.ZipFile(io.BytesIO(document.write(["Ä <"]).data)).read("docProps/core.xml")
    assert new.decode() == old.replace("A &amp; d", "Ä &lt;")
    bound = "data that controls are bound to, whose text Word shows instead"
    kinds = ("embedded documents", bound)
    assert document.notes == [f"not translated: {kind} (1)" for kind in kinds]


PAGES = [
    ("<p>The <b>old</b>\n king<br>\nsees.</p>", ["The old king sees."], None, "<p>THE <b>OLD</b> KING<br>\nSEES.</p>"),
    ("Ann <img src=x> sees", ["Ann sees"], None, "ANN <img src=x> SEES"),
    ("a <br/>b <i>c</i> d", ["a b c d"], None, "A <br/>B <i>C</i> D"),
    ("<title> A &amp; b </title>", ["A & b"], "<c> & d", "<title> &lt;c&gt; &amp; d </title>"),
    ('<p>Ann<a href="#1"><sup>[1]</sup></a>, too</p>', ["Ann, too"], None, '<p>ANN<a href="#1"><sup>[1]</sup></a>, TOO</p>'),
    ("<script>'<p>no</p>'</script><pre>no <i>no</i></pre>yes", ["yes"], None, "<script>'<p>no</p>'</script><pre>no <i>no</i></pre>YES"),
    ("<p>The <code>a</code> runs</p>", ["The {1} runs"], "es läuft {1}", "<p>es läuft <code>a</code></p>"),
    ('<p translate=no>no</p><p>a <i class="x notranslate">b</i> c', ["a {1} c"], None, '<p translate=no>no</p><p>A <i class="x notranslate">b</i> C'),
    ("<b>Ann</b> sees", ["Ann sees"], "Es sieht Ann", "Es sieht <b>Ann</b>"),
    ("<code>a</code> <i>b</i> <code>c</code>", ["{1} b {2}"], "{2} b {1}", "<code>c</code> <i>b</i> <code>a</code>"),
    ("5 m<sup>2</sup> big", ["5 m2 big"], "Groß: 5 m2", "Groß: 5 m<sup>2</sup>"),
    ("An m<sup>2</sup> x, Ann<sup>3</sup> y", ["An m2 x, Ann y"], "Z Ann x m2", "Z Ann<sup>3</sup> x m<sup>2</sup>"),
    ("<m:math><m:mi>x</m:mi></m:math> is big", ["{1} is big"], None, "<m:math><m:mi>x</m:mi></m:math> IS BIG"),
    ("<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp></ruby>です", ["漢です"], "So", "So"),
    ("<li>one<li>a &lt; b<!-- <p>no -->c", ["one", "a < bc"], None, "<li>ONE<li>A &lt; B<!-- <p>no -->C"),
    ("<a title='a > \"b\"'>it</a><link title=x>", ["it", 'a > "b"'], None, "<a title='A &gt; &quot;B&quot;'>IT</a><link title=x>"),
    ("<pre><img alt=no></pre><img alt=b>a", ["a", "b"], None, '<pre><img alt=no></pre><img alt="B">A'),
    ("\U000f0001<b title='\na\nb'>x</b>\n\U000f0000 <b title=c\n>y</b>", ["\U000f0001x \U000f0000 y", "\na\nb", "c"], None, "\U000f0001<b title='&#10;A&#10;B'>X</b> \U000f0000 <b title=\"C\"\n>Y</b>"),
    ("<a href=1>The king</a><a href=2>the <b>queen</b></a>", ["The king", "the queen"], None, "<a href=1>THE KING</a><a href=2>THE <b>QUEEN</b></a>"),
    ("<p><a href=1><span>a door</span></a><span class=p>from $9</span></p><span class=a>red</span><span class=b>door</span>", ["a door", "from $9", "red door"], None, "<p><a href=1><span>A DOOR</span></a><span class=p>FROM $9</span></p><span class=a>RED</span><span class=b>DOOR</span>"),
    ("<iframe title='a map'></iframe><a title=up>\u21a9</a><code title=it></code>", ["a map", "up"], None, "<iframe title='A MAP'></iframe><a title=\"UP\">\u21a9</a><code title=it></code>"),
    ("<b>A door</b><i>A house</i> <i>is</i><b>n't</b>", ["A door", "A house isn't"], None, "<b>A DOOR</b><i>A HOUSE</i> <i>IS</i><b>N'T</b>"),
    ("see <i>red</i><i>doors</i> now", ["see red doors now"], None, "SEE <i>RED</i><i>DOORS</i> NOW"),
    ("<p>The king<sup>1</sup> sees", ["The king sees"], "Er sieht", "<p>Er<sup>1</sup> sieht"),
    ("<p><i>My <code>x</code> is.<sup>1</sup></i> He", ["My {1} is. He"], "So {1} ja. Er", "<p>So <i><code>x</code> ja.<sup>1</sup></i> Er"),
    ("<b>1</b> In it. <b>2</b> And <b>3</b> doors, H<sub>2</sub>O", ["In it. And 3 doors, H2O"], None, "<b>1</b> IN IT. <b>2</b> AND <b>3</b> DOORS, H<sub>2</sub>O"),
    ("<p class=x-pageno>[xii]</p><nav epub:type=page-list>ix</nav><a>a \u21a9\ufe0e</a><a>\u21a9\ufe0e</a>", ["a \u21a9\ufe0e"], None, "<p class=x-pageno>[xii]</p><nav epub:type=page-list>ix</nav><a>A \u21a9\ufe0e</a><a>\u21a9\ufe0e</a>"),
    ("<meta name=description content=it><input type=submit value=go><input value=no>a", ["a", "it", "go"], None, '<meta name=description content="IT"><input type=submit value="GO"><input value=no>A'),
    ("Soft&shy;ware <a name='a > b' href=x/>it</a>", ["Software it"], None, "SOFTWARE <a name='a > b' href=x/>IT</a>"),
]  # fmt: skip


@pytest.mark.parametrize("page, texts, new, written", PAGES)
def test_only_texts_of_a_page_change(page, texts, new, written):
    document = FORMATS[".html"](page.encode())
    assert [passage.text for passage in document.passages] == texts
    assert document.write(texts).data.decode() == page
    assert document.write([new or text.upper() for text in texts]).data.decode() == written
    assert document.passages[0].location == "line 1"


def test_a_cdata_section_of_xhtml_is_text():
    source = "<p>A <i><![CDATA[ b <u>c</u>]]></i> &amp; <![CDATA[d\n&amp; ]]>e</p><style><![CDATA[f]]></style>"
    document = FORMATS[".xhtml"](source.encode())
    (passage,) = document.passages
    assert passage.text == "A b <u>c</u> & d &amp; e"
    assert document.write([passage.text]).data.decode() == source
    new = document.write([passage.text.replace("d", "f")])
    assert (
        new.data.decode()
        == "<p>A <i>b &lt;u&gt;c&lt;/u&gt;</i> &amp; f &amp;amp; e</p><style><![CDATA[f]]></style>"
    )
    assert not new.problems


RAISED = '<w:vertAlign w:val="superscript"/>'
B, PLAIN = "<w:rPr><w:b/></w:rPr>", "<w:rPr/>"
KEPT = [  # what is written is a document again, with all that its source has
    (".docx", f"<w:r>{B}<w:t>The young</w:t></w:r><w:r>{PLAIN}<w:t> king sees.</w:t></w:r>", f"<w:r>{B}<w:t>THE YOUNG</w:t></w:r><w:r>{PLAIN}<w:t> KING SEES.</w:t></w:r>"),
    (".docx", '<w:r><w:rPr><w:rStyle w:val="VerbatimChar"/></w:rPr><w:t>x = 1</w:t></w:r>[ is one]', '<w:r><w:rPr><w:rStyle w:val="VerbatimChar"/></w:rPr><w:t>x = 1</w:t></w:r>[ IS ONE]'),
    (".docx", field(LINK, "[a link]"), field(LINK, "[A LINK]")),
    (".docx", "[The ]<w:r>\n  <w:rPr>\n <w:b/></w:rPr>\n  <w:t>king</w:t>\n </w:r>\n", "[THE ]<w:r>\n  <w:rPr>\n <w:b/></w:rPr><w:t>KING</w:t></w:r>\n"),
    (".docx", field(LINK, '[a ]<w:r><w:rPr><w:rStyle w:val="VerbatimChar"/></w:rPr><w:t>x</w:t></w:r>'), field(LINK, '[A ]<w:r><w:rPr><w:rStyle w:val="VerbatimChar"/></w:rPr><w:t>x</w:t></w:r>')),
    (".html", '<p>The king <span class="pagenum"><a id="p"></a></span>sees.</p>', '<p>THE KING <span class="pagenum"><a id="p"></a></span>SEES.</p>'),
    (".html", '<p><span class="i0">The king,<br/></span>\n<span>And.<br/></span></p>', '<p><span class="i0">THE KING,<br/></span>\n<span>AND.<br/></span></p>'),
    (".html", '<p>He sees.<sup><a href="#n"><span>&#91;</span>1<span>&#93;</span></a></sup></p>', '<p>HE SEES.<sup><a href="#n"><span>&#91;</span>1<span>&#93;</span></a></sup></p>'),
    (".html", '<p>He <span class="katex"><math><mi>x</mi></math></span> sees.</p>', '<p>HE <span class="katex"><math><mi>x</mi></math></span> SEES.</p>'),
    (".html", '<p><span class="cap">T</span>he king</p>', '<p><span class="cap">T</span>HE KING</p>'),
    (".html", "<p>Two <my-tag>red</my-tag> doors</p>", "<p>TWO <my-tag>RED</my-tag> DOORS</p>"),
    (".html", "<p data-translate=no>a</p><p translate='no'>a</p>", "<p data-translate=no>A</p><p translate='no'>a</p>"),
    (".html", "<p>See <a href=x>http://x.org</a> now</p>", "<p>SEE <a href=x>http://x.org</a> NOW</p>"),
    (".docx", f"[See ]{HYPERLINK.format('[a@x.org]')}[ now.]", f"[SEE ]{HYPERLINK.format('[a@x.org]')}[ NOW.]"),
    (".md", "**注意：** king\n", "**注意：** KING\n"),  # noqa: RUF001
    (".md", "See ![a](x) **the <a href=u>king</a>** <Q /> `x` {{< y >}} and <https://x.y/z_a>.\n", "SEE ![A](x) **THE <a href=u>KING</a>** <Q /> `x` {{< y >}} AND <https://x.y/z_a>.\n"),
    (".md", "*The*{:.a} [king](u){ .b } [](#c) `x`{.d} ![e](f){g=1} sees (h){.i}\n", "*THE*{:.a} [KING](u){ .b } [](#c) `x`{.d} ![E](f){g=1} SEES (H){.i}\n"),
    (".md", "[Read more ![icon](x.png)](y)\n", "[READ MORE ![ICON](x.png)](y)\n"),
    (".md", 'See ![a](x) "the king" ![b](y) now\n', 'SEE ![A](x) "THE KING" ![B](y) NOW\n'),
    (".html", '<a href="#">\n Read <b>more </b><i class="a"></i> <i></i></a><i></i>', '<a href="#">\n READ <b>MORE</b> <i class="a"></i> <i></i></a><i></i>'),
    (".html", "<p>Press <b>Ctrl</b>+<b>Q</b>: [<a>More</a>][<a>Less</a>]", "<p>PRESS <b>Ctrl</b>+<b>Q</b>: [<a>MORE</a>][<a>Less</a>]"),
    (".md", "Ask ([@king](u)), 10 s<sup>-1</sup>\n", "ASK ([@king](u)), 10 S<sup>-1</sup>\n"),
    (".html", "<img><a> Name </a><img>", "<img><a> NAME </a><img>"),
    (".xhtml", "<p>A <m:math><m:mi>x</m:mi></m:math> king</p>", "<p>A <m:math><m:mi>x</m:mi></m:math> KING</p>"),
    (".docx", f"[Read more ]{PICTURE.format('')}", f"[READ MORE][ ]{PICTURE.format('')}"),
    (".docx", f"[The king][{RAISED}:1][ sees. ][<w:b/>:2 ][It is 5 m][{RAISED}:2]", f"[THE KING][{RAISED}:1][ SEES. ][<w:b/>:2 ][IT IS 5 M][{RAISED}:2]"),
]  # fmt: skip


@pytest.mark.parametrize("ending, source, written", KEPT)
def test_what_belongs_to_a_text_is_there_again(ending, source, written):
    new = in_capitals(document_in(ending, source))
    assert not new.problems
    if ending == ".docx":
        assert body_of(new.data) == body_of(docx(long(written)))
    else:
        assert new.data.decode() == written


@pytest.mark.parametrize("ending, source, written", [
    (".md", "The `x` of *it* {{y}}.\n", "Ihr {{y}} `x`.\n"),
    (".html", "<p>The <code>x</code> of <i>it</i> {{y}}.", "<p><i></i>Ihr {{y}} <code>x</code>. "),
])  # fmt: skip
def test_what_a_text_names_is_there_even_where_its_formatting_is_not_kept(
    monkeypatch, ending, source, written
):
    faults = iter(["it has one"])
    monkeypatch.setattr(markup, "fault_of", lambda *_: next(faults, None))
    new = document_in(ending, source).write(["Ihr {{y}} {1}."])
    assert new.data.decode() == written and "formatting is not kept" in str(new.problems)


def test_another_prefix_is_the_same_document():
    document = FORMATS[".docx"](docx(long("[An old king.]")))
    xml = docx(long("[An old king.]"))
    renamed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(xml)) as old, zipfile.ZipFile(renamed, "w") as new:
        for name in old.namelist():
            new.writestr(
                name, re.sub(rb"\bw:", b"ns0:", re.sub(rb"xmlns:w=", b"xmlns:ns0=", old.read(name)))
            )
    document = FORMATS[".docx"](renamed.getvalue())
    written = document.write(["Ein König."]).data
    assert b'<ns0:t xml:space="preserve">Ein K' in zipfile.ZipFile(io.BytesIO(written)).read(
        "word/document.xml"
    )


SHOP = (
    "<nav><a href=1>Doors</a><a href=2>Sale<b class=n>12</b></a><a href=3><img> Cart</a></nav><form><label>Name <input></label>"
    "<select><option>Red</option></select><button>Go on <img></button><button>Clear</button></form><div><a href=4><img alt=Door>"
    "<span>A red door</span><span>Made of wood</span></a><span>$129<sup>99</sup></span><p>It has 2 m<sup>2</sup> of glass.</p>"
    "<a href=5>Read more <img></a></div><p>Ask <a href=6>king@house.org</a> or see <a href=7>the queen</a> now.</p>"
)


class Page(HTMLParser):
    """The tags of a page, each with the one that it is in, and its words, with a star for each picture."""

    def __init__(self, page: str):
        super().__init__()
        self.opened = [""]
        self.tags = list[tuple[str, str, str]]()
        self.shown = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.tags.append(
            (tag, str([each for each in attributes if each[0] != "alt"]), self.opened[-1])
        )
        self.shown += "*" * (tag == "img")
        if tag not in ("img", "input"):
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.shown += data


@pytest.mark.parametrize("translate", ["Ja {}", "(mehr)", None])
@pytest.mark.parametrize(
    "page",
    [SHOP, "<a>Read more <code>x</code> <img> </a>now", "<img> <a><img> more</a><b> </b><img>"],
)
def test_whatever_the_words_are_html_parser_finds_the_same_page(page, translate):
    """Words in reverse, or others."""
    document = FORMATS[".html"](page.encode())
    texts = [translate or " ".join(each.text.split()[::-1]) for each in document.passages]
    written = document.write(texts)
    source, new = Page(page), Page(written.data.decode())
    assert sorted(new.tags) == sorted(source.tags)
    for glued in (r"[^\s*(]\*", r"\*[^\s*.)]"):
        assert len(re.findall(glued, new.shown)) <= len(re.findall(glued, source.shown))


def test_white_space_that_is_lost_is_a_fault():
    def fault(source: str, new: str) -> str | None:
        before, after = (
            outline_of(events_of(True, {"i": "", "b": "look"}, (), each)) for each in (source, new)
        )
        return fault_of(before, after, "a b")

    assert fault("a <i/> b", "a <i/> b") is fault("a <i/>b", "a b <i/>") is None
    assert fault("a <i/> b", "a <i/>b") == "the white space behind <i/> is lost"
    assert fault("a b <i/>", "a b<i/>") == "the white space before <i/> is lost"
    assert fault("<i>a b </i>", "<i>a b</i>") == "the white space at its ends is lost"
    assert fault("a <i/> b", "ab <i/> ") == "its words are not those of the translation"
    assert fault("<b>a</b> b", "a b") == "its elements are not those of the source"


def test_what_would_lose_its_markup_is_written_the_plain_way_and_named():
    new = FORMATS[".md"](b"*a* b\n").write(["a*b* ja"], [[((2, 3), True)]])
    assert new.data == b"a\\*b\\* ja\n"
    assert "its formatting is not kept: its elements are not" in new.problems[0][0]
    new = FORMATS[".md"](b"a <!-- x --> b\n").write(["c"], [[((0, 0), True)]])
    assert new.data == b"c <!-- x -->\n" and "would begin a block" in new.problems[0][0]


def test_an_epub_is_an_archive_of_pages():
    item = '<item href="{}" media-type="application/{}"/>'
    files = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": '<container><rootfile full-path="a/b.opf"/></container>',
        "__MACOSX/a/._b.opf": "\0",
        "a/b.opf": f"<package xmlns:dc='d'><dc:title>A &amp; B</dc:title>{item.format('text/c%201.xml', 'xhtml+xml')}{item.format('text/d.xml', 'xhtml+xml')}{item.format('toc.ncx', 'x-dtbncx+xml')}</package>",
        "a/text/c 1.xml": '<?xml version="1.0"?><p>An <a id="p1"/>old king.</p><a href="d.xml#p2">Next</a>',
        "a/text/d.xml": '<p id="p2">See <a href="c%201.xml#p1">the king</a>.</p>',
        "a/toc.ncx": "<navLabel><text>One</text></navLabel><pageList><text>ix</text></pageList>",
        "a/other.xhtml": "<p>no</p>",
    }

    def epub(files: dict[str, str]) -> bytes:
        with zipfile.ZipFile(output := io.BytesIO(), "w") as archive:
            for name, content in files.items():
                archive.writestr(zipfile.ZipInfo(name), content)
        return output.getvalue()

    document = FORMATS[".epub"](epub(files))
    texts = ["A & B", "An old king.", "Next", "See the king.", "One"]
    assert [passage.text for passage in document.passages] == texts
    new = files | {  # whose chapters lead to each other
        "a/text/c 1.xml": '<?xml version="1.0"?><p>AN <a id="p1"/>OLD KING.</p><a href="d.xml#p2">NEXT</a>',
        "a/text/d.xml": '<p id="p2">SEE <a href="c%201.xml#p1">THE KING</a>.</p>',
    }
    new["a/b.opf"] = files["a/b.opf"].replace("A &amp; B", "C &amp; D")
    assert document.write(["C & D", *map(str.upper, texts[1:4]), None]).data == epub(new)
    with pytest.raises(InputError, match=r"there is no text in it"):
        FORMATS[".epub"](epub({"mimetype": ""}))


BOTH = [
    (".md", "# A [*red*](u) `x id=1`[^1]\n\n[^1]: \n", "# A [*red*](u) `x id=1`[^1]<br/>A *RED* `x id=1`\n\n[^1]: \n"),
    (".html", '<p>A <b id="b">red</b> <a href=x>door</a></p><nav>a</nav>', '<p>A <b id="b">red</b> <a href=x>door</a><br/>A <b>RED</b> DOOR</p><nav>A</nav>'),
    (".docx", f"[See ]{field('REF a', f'[two]{NOTE}')}[ now.]", f"[See ]{field('REF a', f'[two]{NOTE}')}[ now.]<w:r><w:br/></w:r>[SEE ]{field('REF a', '[two]<w:r></w:r>')}[ NOW.]"),
    (".docx", f"[<w:b/>:A][ red]{NOTE}{TAB}[{{1}} is ]{MATH}", f"[<w:b/>:A][ red][ / ][<w:b/>:A][ RED]{NOTE}{TAB}[{{1}} is ]{MATH}[ / ][{{1}} IS ]{MATH}"),
    (".docx", "[An ]<w:sdt><w:sdtPr><w:id/><m:checkbox/></w:sdtPr>[x]</w:sdt>", "[An ]<w:sdt><w:sdtPr><w:id/><m:checkbox/></w:sdtPr>[x]</w:sdt><w:r><w:br/></w:r>[AN ]<w:sdt><w:sdtPr><m:checkbox/></w:sdtPr>[x]</w:sdt>"),
    (".docx", f"{TAB}[Ann]", f"{TAB}[Ann]<w:r><w:br/></w:r>[ANN]"),
]  # fmt: skip


@pytest.mark.parametrize("ending, source, written", BOTH)
def test_a_source_stands_before_its_translation_and_nothing_has_two_names(ending, source, written):
    new = in_capitals(document_in(ending, source, bilingual=True))
    assert not new.problems
    assert (body_of(new.data) if ending == ".docx" else new.data.decode()) == written


def test_marks_go_with_their_sentence_then_with_the_same_words_then_to_the_same_place():
    sources, texts = (
        ["He saw Ann. ", "Ann sees the king."],
        ["Er hat gesehen. ", "Den König sieht Ann."],
    )
    pairs = [*zip(sources, texts, strict=True)]
    whole, other = "".join(sources), "".join(texts)

    def at(words: str, after: int = 0) -> tuple[str, bool]:
        start = whole.index(words, after)
        ((begin, stop), sure), *_ = targets_of(pairs, [(start, start + len(words))], {})
        return other[begin:stop], sure

    assert at("Ann", 10) == ("Ann", True) and at("He saw Ann.") == ("Er hat gesehen.", True)
    assert at("He saw Ann. Ann sees the king.") == (other, True)
    assert at("the king") == ("sieht Ann", False)
    assert target_of("a king, old", "ein alter König, ja", (6, 6)) == ((15, 15), False)
    assert target_of("A", "Ein", (0, 1)) == ((0, 3), True)
    assert target_of("An", "Ein", (0, 1)) == ((0, 1), True)
    assert targets_of(pairs, [(11, 11), (12, 12)], {}) == [((15, 15), True), ((16, 16), False)]


PIECES = "Ann |sees |<b>|</b>|<a href=x>|</a>|<br>|<p>|<img>|\n|<code>x</code>".split("|")


@given(st.lists(st.sampled_from(PIECES)))
def test_no_words_of_a_page_are_lost(pieces):
    page = "".join(pieces)
    document = FORMATS[".html"](page.encode())
    texts = [passage.text for passage in document.passages]
    assert document.write(texts).data.decode() == page
    new = document.write([text.upper() for text in texts]).data.decode()
    tags = "<code>x</code>|<.*?>"  # those that cross each other do not afterwards
    assert sorted(re.findall(tags, new)) == sorted(re.findall(tags, page))
    assert re.findall("ANN|SEES", new) == [word.upper() for word in re.findall("Ann|sees", page)]


CUE = "1\n00:00:01,000 --> 00:00:02,000\n{}\n"
MOVED = [
    (".html", "<p>the <b>red</b> <i>house</i></p>", "<p>la <i>maison</i> <b>rouge</b></p>"),
    (".html", "<b>the <a href=x>red</a> house</b>", "<b>la maison <a href=x>rouge</a></b>"),
    (".html", "the <b>red <i>house</i></b>", "la <b><i>maison</i> rouge</b>"),
    (".html", "<b>the red</b> <i>house</i>", "<b>la <i>maison</i> rouge</b>"),
    (".html", "the red<img src=x> house", "la maison rouge<img src=x>"),
    (".md", "the [red house](u)[^1]\n\n[^1]: \n", "la [maison rouge](u)[^1]\n\n[^1]: \n"),
    (".md", "**the red**[^1] house\n\n[^1]: \n", "**la maison rouge**[^1]\n\n[^1]: \n"),
    (".md", "the **red** *house*\n", "la *maison* **rouge**\n"),
    (".md", "the [red](u){.a} *house*{.b}\n", "la *maison*{.b} [rouge](u){.a}\n"),
    (".md", "the [red](u 't') house[^1]\n\n[^1]: \n", "la maison[^1] [rouge](u 't')\n\n[^1]: \n"),
    (".md", "the **red**\n_house_\n", "la _maison_\n**rouge**\n"),
    (".srt", CUE.format("the <b>red</b> <i>house</i>"), CUE.format("la <i>maison</i> <b>rouge</b>")),
    (".srt", CUE.format("<i>the red</i> house"), CUE.format("<i>la maison rouge</i>")),
    (".docx", "[the ][<w:b/>:red][ ][<w:i/>:house]", "[la ][<w:i/>:maison][ ][<w:b/>:rouge]"),
    (".docx", f"[the ]{HYPERLINK.format(f'[{U}:red]')}{NOTE}[ house]", f"[la maison ]{HYPERLINK.format(f'[{U}:rouge]')}{NOTE}"),
    (".md", "the red <a href=x>house</a>\n", "la <a href=x>maison</a> rouge\n"),
    (".docx", f"[the ]{HYPERLINK.format('[<w:b/>:red ][house]')}", f"[la ]{HYPERLINK.format('[maison][<w:b/>: rouge]')}"),
    (".docx", f"[the ]{COMMENT.format('[<w:b/>:red]')}[ ]{field(LINK, '[house]')}", f"[la ]{field(LINK, '[maison]')}[ ]{COMMENT.format('[<w:b/>:rouge]')}"),
]  # fmt: skip


@pytest.mark.parametrize("ending, source, written", MOVED)
def test_marks_go_where_their_words_went(ending, source, written):
    """The red house, word by word, is la maison rouge."""
    text = "la maison rouge"
    document = document_in(ending, source)
    passage = document.passages[0]
    assert passage.text == "the red house"

    def align(mark: tuple[int, int]) -> tuple[tuple[int, int], bool]:
        words = zip([(0, 3), (4, 7), (8, 13)], [(0, 2), (10, 15), (3, 9)], strict=True)
        begins, ends = zip(
            *(new for (a, b), new in words if a <= mark[1] and mark[0] <= b), strict=True
        )
        return (min(begins) if mark[0] < mark[1] else max(ends), max(ends)), True

    pair = passage.text, text.replace(" rouge", "\nrouge") if passage.breaks else text
    others = [None] * (len(document.passages) - 1)
    targets = targets_of([pair], passage.formatting, {pair: align})
    data = document.write([pair[1], *others], [targets, *others]).data
    assert (body_of(data) if ending == ".docx" else data.decode()) == (
        body_of(docx(long(written))) if ending == ".docx" else written
    )


def test_a_tag_around_words_in_two_cues_is_in_both():
    second = "\n2\n00:00:02,000 --> 00:00:03,000\n{}\n"
    source = CUE.format("the <i>red</i> house,") + second.format("it is old")
    document = FORMATS[".srt"](source.encode())
    written = document.write(["la maison,\nelle est vieille"], [[((3, 19), True)]])
    new = written.data.decode()
    assert new == CUE.format("la <i>maison,</i>") + second.format("<i>elle est</i> vieille")


def test_a_mark_within_another_stays_in_it():
    document = FORMATS[".html"](b"<b>the <i>red</i></b> house")
    targets = [((0, 2), True), ((10, 15), True)]
    assert document.write(["la maison rouge"], [targets]).data == b"<b>la maison <i>rouge</i></b>"
