"""A folder with a text to translate with the embedded pair, and its translation."""

from collections.abc import Callable
from pathlib import Path

from helpers import programs

KING, HAUS = "The old king sees two red doors.", "The king sees the house."
GERMAN = {KING: "Der alte König sieht zwei rote Türen.", HAUS: "Der König sieht das Haus."}
SOURCE = f"{KING} {HAUS}\n\n1234, a@b.org\n{KING}\n"
TEXT = f"{GERMAN[KING]} {GERMAN[HAUS]}\n\n1234, a@b.org\n{GERMAN[KING]}\n"


def in_folder(demo_folders: Path, folder: Path, monkeypatch) -> Callable:
    """A function that calls translate.py in a folder where a.txt is."""
    (folder / "mlx_models").symlink_to(demo_folders / "mlx_models")
    monkeypatch.chdir(folder)
    (folder / "a.txt").write_text(SOURCE)

    def run(*arguments: str):
        return programs.call(*arguments, cwd=folder, script="translate.py")

    return run


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "mlx_models")
