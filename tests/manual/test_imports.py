"""The house's imports keep its three rules, and CONTRIBUTING.md has its rooms."""

import re

from helpers.pages import read

from docs.tools import imports

# What few runs need: the trainer, checkpoints to download and to convert, models of mlx-lm's or made from their target
BY_NAME = {
    ("apps.cli.models", "apps.distillation.learning"),
    ("speculative.models.loading", "speculative.models.causal_loading"),
    ("speculative.models.loading", "speculative.models.conversion"),
    ("speculative.models.loading", "speculative.models.distilled"),
    ("speculative.models.mlx_lm_folders", "speculative.checkpoints.hub"),
    ("demo.pair", "speculative.models.conversion"),
}


def test_the_rules_are_kept():
    graph = imports.graph()
    assert imports.forbidden(graph) == [] and imports.circle(graph) == []
    assert {*imports.hidden()} == BY_NAME
    training = re.compile(r"^(from|import) demo\.training", re.MULTILINE)
    assert not [path for path in imports.files() if training.search(path.read_text())]


def test_the_manual_has_every_room():
    (rooms,) = re.findall(r"^## Where things are\n(.*?)^## ", read("CONTRIBUTING.md"), re.M | re.S)
    named = {
        name.removesuffix("/").removesuffix(".py") for name in re.findall(r"`([\w/.]+)`", rooms)
    }
    rooms = {imports.room(module) for module in imports.graph()}
    assert rooms - named == set()


def test_what_the_rules_forbid_is_seen():
    arrows = {
        "speculative.step.a": {"apps.cli", "decoder"},
        "speculative.models.a": {"model", "speculative.step.a"},
        "decoder": {"speculative.step.a", "main"},
        "apps.documents.a": {"apps.speech", "decoder", "demo.pair"},
        "apps.cli.a": {"apps.documents.a", "apps.serving.app"},
        "demo.pair": {"apps.cli.a", "speculative.models.a"},
        "main": {"apps.cli.a", "apps.documents.a"},
    }
    assert imports.forbidden(arrows) == [
        ("apps.cli.a", "apps.serving.app"),
        ("apps.documents.a", "apps.speech"),
        ("decoder", "main"),
        ("demo.pair", "apps.cli.a"),
        ("speculative.step.a", "apps.cli"),
        ("speculative.step.a", "decoder"),
    ]
    assert {*imports.circle({"a": {"b", "d"}, "b": {"c"}, "c": {"a"}})} == {"a", "b", "c"}
