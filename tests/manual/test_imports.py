"""The house's imports point down, as CONTRIBUTING.md has it, and form no circle."""

import re

from helpers.pages import read
from helpers.programs import ROOT

from docs.tools import imports


def test_imports_point_down():
    graph = imports.graph()
    assert imports.arrows_up(graph) == [] and imports.circle(graph) == []
    training = re.compile(r"^(from|import) demo\.training", re.MULTILINE)
    assert not [path for path in imports.files() if training.search(path.read_text())]


def test_the_manual_has_every_room_on_its_floor():
    (chain,) = re.findall(r"^`common/`, .*(?:\n.+)*", read("CONTRIBUTING.md"), re.MULTILINE)
    floors = [re.findall(r"`(\w+)(?:\.py|/)`", floor) for floor in chain.split("<-")]
    assert [set(floor) for floor in floors] == [set(floor) for floor in imports.FLOORS]
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert {path.stem for path in ROOT.glob("*.py")} | folders == imports.FLOOR.keys()


def test_arrows_up_and_circles_are_seen():
    graph = {"text.a": {"families.b", "text.c"}, "families.b": set(), "text.c": {"text.a"}}
    assert imports.arrows_up(graph) == [("text.a", "families.b")]
    assert {*imports.circle(graph)} == {"text.a", "text.c"}
