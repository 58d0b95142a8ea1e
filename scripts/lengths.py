"""Names each file of over 500 lines, with its largest function, for a reader who may divide it.

Run by `scripts/check lint`. No bound makes it fail: a file that is cut at a number is cut where no
idea ends.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("shardq", "spark", "scripts", "tests")
LINES_MAX = 500


def main() -> None:
    """Print a line for each long file, the longest first."""
    every = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    found = [(len(path.read_text().splitlines()), path) for path in every]
    for lines, path in sorted(found, reverse=True):
        if lines > LINES_MAX:
            print(f"{path.relative_to(ROOT)}: {lines} lines{largest_function(path)}")


def largest_function(path: Path) -> str:
    """The name and length of a file's largest function; an empty text where it has none."""
    found = max(functions(ast.parse(path.read_text())), default=None)
    return f", {found[1]} has {found[0]}" if found else ""


def functions(node: ast.AST, within: str = "") -> list[tuple[int, str]]:
    """Length and dotted name of each function below a node."""
    found: list[tuple[int, str]] = []
    for child in ast.iter_child_nodes(node):
        name = within
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{within}.{child.name}".lstrip(".")
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(((child.end_lineno or child.lineno) - child.lineno + 1, name))
        found += functions(child, name)
    return found


if __name__ == "__main__":
    main()
