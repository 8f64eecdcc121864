"""The house's rooms, and imports that its three rules forbid.

The library (speculative/, decoder.py, model.py) imports no application and no command. Documents, speech, distillation and
benchmarks import no other application; the command line and the server stand on them. No circle; an import within a
function is of a heavy, optional package, or of a module that is chosen by name.

python -m docs.tools.imports
"""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
STOREYS = ("speculative", "apps")  # a folder in them is a room; at the root a file or folder is one
LIBRARY = {"speculative", "decoder", "model"}
TOP = ("apps/cli", "apps/serving")


def files() -> list[Path]:
    """The files of the product."""
    paths = sorted(ROOT.glob("*.py"))
    for folder in (*STOREYS, "demo"):
        paths += sorted((ROOT / folder).rglob("*.py"))
    return [path for path in paths if "training" not in path.parts]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def names_in(node: ast.AST, modules: set[str]) -> list[str]:
    """What an import imports: modules, and other names with theirs."""
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    if isinstance(node, ast.ImportFrom):
        inner = [f"{node.module}.{each.name}" for each in node.names]
        return [name if name in modules else str(node.module) for name in inner]
    return []


def graph() -> dict[str, set[str]]:
    """Module -> the modules of the product that it imports."""
    paths = {module_of(path): path for path in files()}
    modules = {*paths}
    imports = {}
    for name, path in paths.items():
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        imports[name] = {each for node in tree for each in names_in(node, modules)} & modules
    return {name: found - {name} for name, found in imports.items()}


def room(module: str) -> str:
    """A module's folder in a storey, or its file or folder at the root."""
    first, *rest = module.split(".")
    return f"{first}/{rest[0]}" if first in STOREYS and rest else first


def forbidden(imports: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Imports against the first two rules."""
    arrows = [(a, b) for a, each in imports.items() for b in each if room(a) != room(b)]
    return sorted((a, b) for a, b in arrows if not _allowed(room(a), room(b)))


def _allowed(a: str, b: str) -> bool:
    storey = b.partition("/")[0]
    if storey in LIBRARY:
        return a.partition("/")[0] not in LIBRARY or b != "decoder"
    if a.partition("/")[0] in LIBRARY:
        return False
    if a.startswith("apps/"):
        return b in ("apps", "demo") or (a in TOP and b not in TOP and storey == "apps")
    return a != "demo"  # what is left are commands


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle; [] if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def hidden() -> Iterator[tuple[str, str]]:
    """Imports within functions of modules of the product."""
    modules = {module_of(path) for path in files()}
    for path in files():
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [n for node in ast.walk(function) for n in names_in(node, modules)]
                yield from ((module_of(path), name) for name in names if name in modules)


def main() -> None:
    imports = graph()
    lines: dict[str, int] = {}
    for path in files():
        name = room(module_of(path))
        lines[name] = lines.get(name, 0) + len(path.read_text(encoding="utf-8").splitlines())
    print("| room | lines | imports |\n|---|---|---|")
    for name, count in lines.items():
        below = {room(b) for a, each in imports.items() if room(a) == name for b in each} - {name}
        print(f"| {name} | {count:,} | {', '.join(sorted(below))} |")
    print(f"\n{sum(lines.values()):,} lines in all")
    for a, b in forbidden(imports):
        print(f"forbidden: {a} -> {b}")
    for a, b in hidden():
        print(f"within a function: {a} -> {b}")
    if circle(imports):
        print(f"circle: {' -> '.join(circle(imports))}")


if __name__ == "__main__":
    main()
