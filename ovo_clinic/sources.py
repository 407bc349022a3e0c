"""The Python files that decide what a pipeline makes of raw files: what the key of a prepared data set covers."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def closure(files: Iterable[Path]) -> list[Path]:
    """The files, what they import of this package, and the siblings of a pipeline that it speaks of; sorted.

    A pipeline loads its parts by name (`resources.load_pipeline("mimic_notes")`), and a private one may find them in
    ways of its own, so a Python file beside it belongs to it where its name stands in the text.
    """
    found: set[Path] = set()
    waiting = list(files)
    while waiting:
        path = waiting.pop().resolve()
        if path in found:
            continue
        found.add(path)
        text = path.read_text(encoding="utf-8", errors="replace")
        waiting += _imported(text)
        if path.parent != PACKAGE:
            words = set(re.findall(r"\w+", text))
            waiting += [other for other in path.parent.glob("*.py") if other.stem in words]
    return sorted(found)


def _imported(text: str) -> Iterator[Path]:
    """Modules of this package that are imported anywhere in a source text; none of one with a mistake in it."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:
        return
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE.name:
            inside = PACKAGE.joinpath(*node.module.split(".")[1:])
            modules = [inside, *(inside / alias.name for alias in node.names)]
            yield from (path for module in modules if (path := module.with_suffix(".py")).is_file())
