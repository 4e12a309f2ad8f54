"""The user's code: from lines that a profile names to files of a repository."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from msgspec.structs import replace

from tb_perfadvisor.contract import model
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.ingest.files.containment import LeadsOutError, opener_of_files
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.report.places import MAX_PLACES, RAN_AT_START
from tb_perfadvisor.report.report import Report

MAX_ENTRIES = 200_000
"""Files and directories that are listed: more than the largest frameworks' repositories have."""
MAX_FILES = 20_000
MAX_FILE_BYTES = 2_000_000
MAX_DEPTH = 40
_NOT_CODE = frozenset({"node_modules", "__pycache__", "site-packages", "dist-packages", "build"})
_CLASS = regex(r"^class[ \t]+(\w+)\b", re.MULTILINE)
CONTEXT = 3
"""Lines shown before and after a place."""
_MAX_LINE = 200
_MAX_OTHERS = 5
_LINKS = {"vscode": "vscode://file/{root}/{path}:{line}"}
_FIELD = regex(r"\{(root|path|line)\}")
# For a function that was running when the recording began, PyTorch names the line of this call.
_RECORDER = regex(r"^\s*(?:\w*prof\w*|p)\.(?:step|start)\(\)")
# `encoder.layers.0 (Block)` of tb_perfadvisor.instrument, `Block_0` of PyTorch's profiler.
_MODULE = regex(r"^(?:\S+ \((?P<label>[A-Za-z_]\w*)\)|(?P<numbered>[A-Za-z_]\w*?)_\d+)$")


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


def with_sources(report: Report, repository: Repository, link: str | None = None) -> Report:
    """A report whose places have the lines of code around them.

    `link` is the pattern of links: a URL with `{path}` and `{line}`, and `{root}` for the absolute
    path of the repository; or `vscode`. None makes no links.
    """
    pattern = _pattern(link)
    return replace(
        report,
        findings=[
            replace(finding, places=places_in(finding, repository, pattern))
            for finding in report.findings
        ],
    )


def places_in(
    finding: model.FindingInfo, repository: Repository, pattern: str | None = None
) -> list[model.Place]:
    """The places of a finding, with their lines of code where these are found.

    If the profile names no line of code, the classes of the modules that it names are places.
    """
    places = finding.places or list(_classes(finding, repository))[:MAX_PLACES]
    return [replace(place, source=source_of(place, repository, pattern)) for place in places]


def source_of(
    place: model.Place, repository: Repository, pattern: str | None = None
) -> model.SourceExcerpt | None:
    """The lines around a place; None if the repository has no such file."""
    candidates = repository.candidates(place.file)
    if not candidates:
        return None
    if len(candidates) > 1:
        defining = [path for path in candidates if _has(repository, path, place)]
        if len(defining) != 1:
            return model.SourceExcerpt(
                path=None,
                first_line=None,
                lines=[],
                link=None,
                candidates=candidates[:_MAX_OTHERS],
                note=f"{len(candidates)} files match",
            )
        candidates = defining
    (path,) = candidates
    lines = (repository.text(path) or "").splitlines()
    if not 1 <= place.line <= len(lines):
        return model.SourceExcerpt(
            path=path,
            first_line=None,
            lines=[],
            link=None,
            candidates=[],
            note=f"the file has {len(lines)} lines; it differs from the one that was recorded",
        )
    first = max(place.line - CONTEXT, 1)
    last = min(place.line + CONTEXT, len(lines))
    # Blank lines at the ends say nothing.
    while first < place.line and not lines[first - 1].strip():
        first += 1
    while last > place.line and not lines[last - 1].strip():
        last -= 1
    shown = lines[first - 1 : last]
    return model.SourceExcerpt(
        path=path,
        first_line=first,
        lines=[line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}…" for line in shown],
        link=None if pattern is None else _link(pattern, repository, path, place.line),
        candidates=[],
        note=_note(repository, path, place, lines[place.line - 1]),
    )


def _note(repository: Repository, path: str, place: model.Place, line: str) -> str:
    """What a reader should know of the line; empty for nothing."""
    if not _has(repository, path, place):
        return f"no function {place.function} there"
    return RAN_AT_START if _RECORDER.match(line) else ""


def _has(repository: Repository, path: str, place: model.Place) -> bool:
    """Whether a file may contain a place: the line exists, after the head of its function."""
    lines = (repository.text(path) or "").splitlines()
    if not 1 <= place.line <= len(lines):
        return False
    if not place.function.isidentifier():  # `<module>`, `<lambda>`, or unknown
        return True
    head = re.compile(rf"\b(?:def|class)\s+{re.escape(place.function)}\b")
    return any(head.search(line) for line in lines[: place.line + 1])


def _classes(finding: model.FindingInfo, repository: Repository) -> Iterator[model.Place]:
    seen = set()
    for item in finding.evidence:
        if not isinstance(item, model.TableEvidence):
            continue
        columns = [at for at, column in enumerate(item.columns) if column.key == "module"]
        for row in item.rows:
            for cell in (row[at] for at in columns):
                found = _MODULE.match(cell) if isinstance(cell, str) else None
                name = (found["label"] or found["numbered"]) if found else None
                if name is None or name in seen:
                    continue
                seen.add(name)
                definitions = repository.classes(name)
                if len(definitions) == 1:
                    ((path, line),) = definitions
                    yield model.Place(file=path, line=line, function=name)


def _pattern(link: str | None) -> str | None:
    if link is None:
        return None
    pattern = _LINKS.get(link, link)
    scheme = pattern.partition("://")[0].lower()
    if scheme in ("javascript", "data", "") or "://" not in pattern:
        raise UsageError(f"{link!r} is no URL.", hint="Name one, or `vscode`.")
    if not {"path", "line"} <= set(_FIELD.findall(pattern)):
        raise UsageError(f"{link!r} lacks {{path}} or {{line}}.")
    return pattern


def _link(pattern: str, repository: Repository, path: str, line: int) -> str:
    values = {
        "root": quote(repository.root.resolve().as_posix().lstrip("/")),
        "path": quote(path),
        "line": str(line),
    }
    return _FIELD.sub(lambda field: values[field[1]], pattern)
