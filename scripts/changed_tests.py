"""Run the tests of what changed since the branch left main.

The nearest test files run: first those that changed themselves or are named like what changed,
then those with the fewest imports between them and it, those of its own folder first. The property
tests run, too, whenever the package changed. `make test` runs the rest.

    python scripts/changed_tests.py [PYTEST OPTION...]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Most changes have so many near tests that more would take longer than a quick check may.
MOST_FILES = 60
# These start browsers, frameworks or clusters, or need the corpus: too slow for a quick check.
FRAMEWORKS = "tests/frameworks/"
SLOW = ("tests/browser/", "tests/corpus/", FRAMEWORKS, "tests/execution/test_dask_cluster.py")
PROPERTIES = ("tests/promises/test_budget.py", "tests/promises/test_rules.py", "tests/property/")
_IMPORT = re.compile(
    r"^ *(?:from ([\w.]+) import (?:\(([^)]*)\)|([^(\n]+))|import ([\w.]+))", re.MULTILINE
)


def changed_files() -> list[str]:
    """Paths that differ from main, untracked files included; on main, from the last commit."""
    base = _git("merge-base", "HEAD", "main") or _git("merge-base", "HEAD", "origin/main")
    has_changes = bool(_git("status", "--porcelain"))
    if base == _git("rev-parse", "HEAD") and not has_changes:
        base = "HEAD~1"
    changed = _git("diff", "--name-only", "--diff-filter=d", base or "HEAD").splitlines()
    untracked = _git("ls-files", "--others", "--exclude-standard").splitlines()
    return sorted({*changed, *untracked})


def tests_of(changed: list[str]) -> list[str]:
    """The test files to run for some changed files, as paths relative to the root."""
    tests = test_files()
    near: dict[str, tuple[int, int]] = {path: (0, 0) for path in changed if path in tests}
    # A table belongs to the module beside it.
    modules = [re.sub(r"\.toml$", ".py", path) for path in changed]
    for path in (path for path in modules if (ROOT / path).is_file()):
        # A table of rules belongs to the module beside it.
        module = Path(path).with_suffix(".py").as_posix() if path.endswith(".toml") else path
        if module.endswith(".py") and path not in tests:
            for test, distance in distances(module).items():
                near[test] = min(distance, near.get(test, distance))
    ranked = sorted((near[test], test) for test in near)
    quick = [test for _, test in ranked if not test.startswith(SLOW)]
    chosen = set(quick[:MOST_FILES])
    if not quick:  # some modules need a framework
        chosen = {test for where, test in ranked if where == ranked[0][0] and where > (0, 0)}
    if any(path.startswith("tb_perfadvisor/") for path in changed):
        chosen |= {test for test in tests if test.startswith(PROPERTIES)}
    # The catalog of advice is no module, and rules name its entries.
    if any(
        path.startswith(("tb_perfadvisor/advice/", "tb_perfadvisor/rules/")) for path in changed
    ):
        chosen.add("tests/promises/test_advice.py")
    if any(path.endswith(".md") for path in changed):
        chosen.add("tests/promises/test_documents.py")
    return sorted(chosen)


def distances(module: str) -> dict[str, tuple[int, int]]:
    """How far the test files are from a module that reach it: by imports, then by folder."""
    stem = Path(module).stem.strip("_").lower()
    folder = Path("tests", *Path(module).parent.parts[1:])
    found: dict[str, tuple[int, int]] = {}
    layer, seen, imports = {module}, {module}, 0
    while layer:
        imports += 1
        layer = {path for each in layer for path in importers()[each]} - seen
        seen |= layer
        for test in layer & test_files():
            shared = Path(os.path.commonpath([folder, Path(test).parent]))
            found[test] = (imports, len(folder.parts) - len(shared.parts))
    named = (test for test in test_files() if Path(test).stem.removeprefix("test_") == stem)
    return found | dict.fromkeys(named, (0, 0))


def main() -> int:
    """Choose the tests and run them."""
    tests = tests_of(changed_files())
    if not tests:
        print("no test belongs to what changed")
        return 0
    print("tests of what changed:", *tests, sep="\n  ", flush=True)
    needs_framework = any(test.startswith(FRAMEWORKS) for test in tests)
    marked = "not corpus and not nightly" + (" and not frameworks" if not needs_framework else "")
    options = ["-q", "-m", marked, *sys.argv[1:]]
    return subprocess.call([sys.executable, "-m", "pytest", *options, *tests], cwd=ROOT)


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


@cache
def test_files() -> frozenset[str]:
    """All test files, relative to the root."""
    return frozenset(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py"))


@cache
def importers() -> dict[str, set[str]]:
    """The files that import each file."""
    found = defaultdict(set)
    for folder in ("tb_perfadvisor", "tests", "scripts", "benchmarks"):
        for path in ROOT.glob(f"{folder}/**/*.py"):
            importer = path.relative_to(ROOT).as_posix()
            for module, name in _imports(importer):
                found[_definition(module, name)].add(importer)
    return found


@cache
def _imports(path: str) -> frozenset[tuple[str, str]]:
    """The modules that a file imports, each with a name from it, or with none."""
    found, text = set(), (ROOT / path).read_text(encoding="utf-8")
    if 'import_module(f"{__name__}.' in text:  # any module of the package
        package = Path(path).parent
        found = {(".".join(package.parts), each.stem) for each in (ROOT / package).glob("[!_]*.py")}
    for match in _IMPORT.finditer(text):
        module, listed, line, whole = match.groups()
        names = re.sub(r"#.*", "", listed or line or "").split(",")
        found |= {(module or whole, name.split(" as ")[0].strip()) for name in names}
    return frozenset(found)


@cache
def _definition(module: str, name: str) -> str:
    """The file that defines a name, also if a package passes it on; empty if it is not ours."""
    path = _file(f"{module}.{name}") or _file(module)
    if path.endswith("__init__.py"):
        for origin, passed in _imports(path):
            if passed == name and name:
                return _definition(origin, name)
    return path


@cache
def _file(module: str) -> str:
    """The path of a module; empty if it is not ours."""
    path = module.replace(".", "/")
    for name in (f"{path}.py", f"{path}/__init__.py", f"benchmarks/{path}.py"):
        if (ROOT / name).is_file():
            return name
    return ""


if __name__ == "__main__":
    sys.exit(main())
