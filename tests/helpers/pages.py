"""The manual's pages, and the fenced blocks in them."""

import re

from helpers.programs import ROOT

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks_in(name: str, language: str = "") -> list[str]:
    """A page's blocks of a language; of none, by default."""
    return [fence[2] for fence in FENCE.finditer(read(name)) if fence[1] == language]
