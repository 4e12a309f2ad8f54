"""Run the tests of what changed since the branch left main.

A test file belongs to a change if it changed itself, if it is named like the changed module
(`steps/gaps.py` and `steps/test_gaps.py`), if it was recorded to run most of that module
(`tests/test_map.json`), or if it imports the module by name. Every changed module gets its best
recorded file, and more as long as a quick check allows; `make test` runs the rest.

    python scripts/changed_tests.py [PYTEST OPTION...]
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# These start browsers, frameworks or clusters, or need the corpus: too slow for a quick check.
FRAMEWORKS = "tests/frameworks"
SLOW_FOLDERS = ("tests/browser", "tests/corpus", FRAMEWORKS)
TEST_MAP = ROOT / "tests" / "test_map.json"
# What the recorded test files of a change may take together, in one process.
MOST_SECONDS = 60.0


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
    modules = [path for path in changed if path.endswith(".py") and path not in tests]
    ranked = [tests_that_run(module, tests) for module in modules]
    chosen = {path for path in tests if path in changed and not path.startswith(SLOW_FOLDERS)}
    chosen |= {files[0] for files in ranked if files}
    more = dict.fromkeys(test for files in ranked for test in files if test not in chosen)
    seconds: dict[str, float] = _test_map()["seconds"]
    left = MOST_SECONDS - sum(seconds.get(test, 1.0) for test in chosen)
    for test in more:
        left -= seconds.get(test, 1.0)
        if left < 0:
            print("more test files run what changed; `make test` runs them")
            break
        chosen.add(test)
    # What every rule keeps to is tested in one place.
    if any(path.startswith("tb_perfadvisor/rules/") for path in changed):
        chosen.add("tests/promises/test_rules.py")
    # The catalog of advice is no module, and rules name its entries.
    if any(
        path.startswith(("tb_perfadvisor/advice/", "tb_perfadvisor/rules/")) for path in changed
    ):
        chosen.add("tests/promises/test_advice.py")
    if any(path.startswith("tb_perfadvisor/") for path in changed):
        chosen.add("tests/promises/test_budget.py")
    if any(path.endswith(".md") for path in changed):
        chosen.add("tests/promises/test_documents.py")
    return sorted(chosen)


def tests_that_run(module: str, tests: list[str]) -> list[str]:
    """Test files that run a module: those named like it, those recorded, those that import it.

    Nothing is recorded of a module that only defines types or values. If no test imports it, tests
    of what imports it stand in, then tests that need a framework, then tests that mention it.
    """
    quick = [test for test in tests if not test.startswith(SLOW_FOLDERS)]
    stem = Path(module).stem.strip("_").lower()
    chosen = [test for test in quick if _subject(test) == stem]
    seen: set[str] = set()
    modules = {module}
    while modules:
        names = {_module(path) for path in modules}
        recorded = [test for path in modules for test in _test_map()["tests"].get(path, [])]
        chosen += [test for test in recorded if test in tests]
        chosen += [test for test in quick if names & _imports(test)]
        if chosen:
            return list(dict.fromkeys(chosen))
        seen |= modules
        modules = {path for path in _package_files() if names & _imports(path)} - seen
    needing = [test for test in tests if test.startswith(FRAMEWORKS)]
    return [test for test in needing if _module(module) in _imports(test)] or [
        test for test in quick if stem in (ROOT / test).read_text(encoding="utf-8")
    ]


def main() -> int:
    """Choose the tests and run them."""
    tests = tests_of(changed_files())
    if not tests:
        print("no test belongs to what changed")
        return 0
    print("tests of what changed:", *tests, sep="\n  ", flush=True)
    needs_framework = any(test.startswith(FRAMEWORKS) for test in tests)
    marked = "not corpus" if needs_framework else "not corpus and not frameworks"
    options = ["-q", "-m", marked, *sys.argv[1:]]
    return subprocess.call([sys.executable, "-m", "pytest", *options, *tests], cwd=ROOT)


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def test_files() -> list[str]:
    """All test files, relative to the root."""
    return [path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py")]


@cache
def _package_files() -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in ROOT.glob("tb_perfadvisor/**/*.py")]


@cache
def _test_map() -> dict[str, Any]:
    """Test files by module, and how long each takes, as `record_test_map` wrote them."""
    if not TEST_MAP.exists():
        return {"seconds": {}, "tests": {}}
    content: dict[str, Any] = json.loads(TEST_MAP.read_text(encoding="utf-8"))
    return content


def _subject(test: str) -> str:
    """The name of what a test file is about: `tests/signals/test_steps.py` is about `steps`."""
    return Path(test).stem.removeprefix("test_")


def _module(path: str) -> str:
    """A file's dotted name, as it is imported."""
    parts = Path(path).with_suffix("").parts
    if parts[0] in ("benchmarks", "scripts"):
        parts = parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _imports(path: str) -> frozenset[str]:
    """The dotted names that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


if __name__ == "__main__":
    sys.exit(main())
