"""The house's rooms, and imports that point up or form a circle.

python -m docs.tools.imports
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
# From the ground up: a room imports from itself and from rooms of lower lines, never from one beside it.
FLOORS = (
    ("common", "own_modules"),
    ("checkpoints", "speculative"),
    ("text",),
    ("distributed",),
    ("transformer",),
    ("model",),
    ("families",),
    ("decoder",),
    ("demo", "documents", "speech"),
    ("distillation",),
    ("terminal", "serving"),
    ("benchmarks",),
    ("convert", "distill", "main", "serve", "transcribe", "translate"),
    ("benchmark",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def files() -> list[Path]:
    """The files of the product."""
    rooms = [ROOT / f"{room}.py" for room in FLOOR] + [
        path for room in FLOOR for path in sorted((ROOT / room).rglob("*.py"))
    ]
    return [path for path in rooms if path.exists() and "training" not in path.parts]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, modules: set[str]) -> Iterator[str]:
    """The modules of the product that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{each.name}" for each in node.names]
            names = [name if name in modules else str(node.module) for name in inner]
        yield from (name for name in names if name in modules)


def graph() -> dict[str, set[str]]:
    """Module -> the modules that it imports."""
    paths = {module_of(path): path for path in files()}
    return {name: {*imports_of(path, {*paths})} - {name} for name, path in paths.items()}


def room(module: str) -> str:
    return module.partition(".")[0]


def arrows_up(imports: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The imports that do not point to a lower floor."""
    arrows = [(a, b) for a, each in imports.items() for b in each if room(a) != room(b)]
    return sorted((a, b) for a, b in arrows if FLOOR[room(a)] <= FLOOR[room(b)])


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle; [] if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def main() -> None:
    imports = graph()
    lines = dict.fromkeys(FLOOR, 0)
    for path in files():
        lines[room(module_of(path))] += len(path.read_text(encoding="utf-8").splitlines())
    print("| room | lines | imports |\n|---|---|---|")
    for name, count in lines.items():
        below = {room(b) for a, each in imports.items() if room(a) == name for b in each} - {name}
        print(f"| {name} | {count:,} | {', '.join(sorted(below, key=FLOOR.__getitem__))} |")
    print(f"\n{sum(lines.values()):,} lines in all")
    for a, b in arrows_up(imports):
        print(f"up: {a} -> {b}")
    if circle(imports):
        print(f"circle: {' -> '.join(circle(imports))}")


if __name__ == "__main__":
    main()
