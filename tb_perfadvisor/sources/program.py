"""The files of a program: its script, and what that imports."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from tb_perfadvisor.sources.repository import Repository


def files_of_program(repository: Repository, scripts: Iterable[str]) -> frozenset[str]:
    """Scripts and what they import, also indirectly, as far as the repository has it.

    Scripts are files of the repository.
    """
    waiting = list(scripts)
    # Python looks for modules beside the script, and often in the directory of the project.
    roots = [*dict.fromkeys(str(PurePosixPath(script).parent) for script in waiting), "."]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        for found in _imported(path, repository, roots):
            if found not in seen:
                seen.add(found)
                waiting.append(found)
    return frozenset(seen)


def _imported(path: str, repository: Repository, roots: list[str]) -> Iterator[str]:
    """The files that one file imports; none if it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(repository.text(path) or "")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of_module(alias.name, repository, roots)
        elif isinstance(node, ast.ImportFrom):
            module = f"{node.module}." if node.module else ""
            parents = [str(parent) for parent in PurePosixPath(path).parents]
            for alias in node.names:
                name = f"{module}{alias.name}"
                if not node.level:
                    yield from _files_of_module(name, repository, roots)
                elif node.level <= len(parents):
                    start = parents[node.level - 1]
                    yield from _files_of_module(name, repository, [start], is_relative=True)


def _files_of_module(
    name: str, repository: Repository, roots: list[str], *, is_relative: bool = False
) -> Iterator[str]:
    """The files of a module, and of the packages that it is in.

    The last part of the name may be something that the module defines. `roots` are looked at first,
    and nothing else if it `is_relative`.
    """
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        inside = "/".join(parts[:length])
        for tail in (f"{inside}.py", f"{inside}/__init__.py"):
            named = repository.ending_with(tail)
            first = [path for path in named if path in {str(PurePosixPath(r, tail)) for r in roots}]
            # A package may be installed from a directory such as `src`.
            is_packaged = "/" in tail and not is_relative
            yield from first or (named if is_packaged else [])
