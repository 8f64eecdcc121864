"""The manual's tables of flags are what their declarations say; python -m docs.tools.option_tables writes them."""

import pytest
from helpers.pages import read
from helpers.programs import ROOT

from docs.tools.option_tables import with_tables
from speculative.step.options import DECLARED


@pytest.mark.parametrize("name", [f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")])
def test_the_manual_has_every_flag_as_it_is_declared(name):
    page = read(name)
    assert with_tables(page) == page


def test_the_manual_has_every_option_of_decoding():
    page = read("docs/using.md")
    for declared in DECLARED.values():
        assert f"<!-- options: {declared.group} -->" in page


def test_a_table_has_the_flags_of_a_command_but_the_options_of_decoding():
    table = with_tables("<!-- options of serve.py -->\nas it was\n<!-- end -->\n")
    assert "| `--port` PORT | port to listen on; 0: any free one | 8080 |\n" in table
    assert "| `--verbose`  | log requests to stderr |  |\n" in table
    assert "--temp" not in table and "--help" not in table and "as it was" not in table


def test_a_table_of_a_command_has_its_choices_and_its_files_and_shows_all_characters():
    convert, translate = (
        with_tables(f"<!-- options of {name}.py -->\n<!-- end -->\n")
        for name in ("convert", "translate")
    )
    assert "| `--q-bits` {2,3,4,5,6,8} | bits per weight | the mode's; affine: 4 |\n" in convert
    assert "| mlx_models/\\<last part of the name> |" in convert
    assert "\n| FILE | a document (.txt, " in translate
