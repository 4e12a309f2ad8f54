"""The Python files below a directory, and how paths of other machines map to them."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.ingest.files.containment import LeadsOutError, opener_of_files
from tb_perfadvisor.patterns import regex

MAX_ENTRIES = 200_000
"""Files and directories that are listed: more than the largest frameworks' repositories have."""
MAX_FILES = 20_000
MAX_FILE_BYTES = 2_000_000
MAX_DEPTH = 40
_NOT_CODE = frozenset({"node_modules", "__pycache__", "site-packages", "dist-packages", "build"})
_CLASS = regex(r"^class[ \t]+(\w+)\b", re.MULTILINE)


class Repository:
    """The Python files below a directory, listed when they are first asked for.

    Hidden directories, installed packages and symbolic links are left out, so that nothing outside
    the directory is ever read.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Open a directory; or one Python file, which is all that is then read of its directory."""
        given = Path(root)
        self._only = given.name if given.suffix == ".py" and given.is_file() else ""
        self.root = given.parent if self._only else given
        if not self.root.is_dir():
            raise UsageError("is neither a directory nor a Python file.", where=str(root))
        self._boundary = os.path.realpath(self.root)
        self.is_complete = True
        """Whether everything was listed; false beyond `MAX_ENTRIES` or `MAX_FILES`."""
        self._texts: dict[str, str | None] = {}

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The files, relative to the root, with `/`; sorted."""
        return (self._only,) if self._only else tuple(sorted(self._listed()))

    def candidates(self, file: str) -> list[str]:
        """The files that a path of another machine may mean: those with the longest common tail.

        `file` is a path, or only the end of one.
        """
        parts = PurePosixPath(file.replace("\\", "/")).parts
        named = self._by_name.get(parts[-1], []) if parts else []
        lengths = [_common_tail(parts, PurePosixPath(path).parts) for path in named]
        longest = max(lengths, default=0)
        return [path for path, length in zip(named, lengths, strict=True) if length == longest]

    def ending_with(self, tail: str) -> list[str]:
        """The files whose paths end with these parts, such as `models/net.py`."""
        named = self._by_name.get(tail.rpartition("/")[2], [])
        return [path for path in named if path == tail or path.endswith(f"/{tail}")]

    def text(self, path: str) -> str | None:
        """The text of one of `files`; None if it cannot be read, or is no text."""
        if path not in self._texts:
            text = self._read(path)
            self._texts[path] = (
                None if text is None else text.replace("\r\n", "\n").replace("\r", "\n")
            )
        return self._texts[path]

    def raw_text(self, path: str) -> str | None:
        """Like `text`, but with the line ends of the file."""
        return self._read(path)

    def classes(self, name: str) -> list[tuple[str, int]]:
        """The files and lines that define a class at the top level."""
        return self._classes.get(name, [])

    def _read(self, path: str) -> str | None:
        try:
            # A file, or a directory above it, may have become a link since it was listed.
            with open(self.root / path, "rb", opener=opener_of_files(self._boundary)) as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except (OSError, LeadsOutError):
            return None
        if len(data) > MAX_FILE_BYTES or b"\0" in data:
            return None
        try:
            return data.decode()
        except UnicodeDecodeError:
            return None

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        named: dict[str, list[str]] = defaultdict(list)
        for path in self.files:
            named[path.rpartition("/")[2]].append(path)
        return named

    @cached_property
    def _classes(self) -> dict[str, list[tuple[str, int]]]:
        found: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for path in self.files:
            text = self.text(path)
            for match in _CLASS.finditer(text or ""):
                found[match[1]].append((path, (text or "").count("\n", 0, match.start()) + 1))
        return found

    def _listed(self) -> Iterator[str]:
        folders: list[tuple[str, int]] = [("", 0)]
        entries = files = 0
        while folders:
            folder, depth = folders.pop()
            try:
                with os.scandir(self.root / folder) as found:
                    inside = sorted(found, key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in inside:
                entries += 1
                if entries > MAX_ENTRIES or files >= MAX_FILES:
                    self.is_complete = False
                    return
                path = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    is_file = entry.is_file(follow_symlinks=False)
                except OSError:
                    continue
                if is_folder and _may_hold_code(entry) and depth < MAX_DEPTH:
                    folders.append((path, depth + 1))
                elif is_file and entry.name.endswith(".py"):
                    files += 1
                    yield path


def _may_hold_code(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith(".") or entry.name in _NOT_CODE:
        return False
    # A virtual environment, whatever it is called.
    return not Path(entry.path, "pyvenv.cfg").exists()


def _common_tail(first: Sequence[str], second: Sequence[str]) -> int:
    """How many parts at the end of two paths are equal."""
    length = 0
    for one, other in zip(reversed(first), reversed(second), strict=False):
        if one != other:
            break
        length += 1
    return length


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
