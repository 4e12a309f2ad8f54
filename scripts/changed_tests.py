"""Run the tests of what changed since the branch left main.

A test file belongs to a change if it changed itself, if it is named like the changed module
(`steps/gaps.py` and `steps/test_gaps.py`), or if it imports the changed module by name.
Nothing is traced or cached, so the choice is quick and anyone can predict it. `make test` runs
the rest.

    python scripts/changed_tests.py [PYTEST OPTION...]
"""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# These start browsers, frameworks or clusters, or need the corpus: never in a quick check.
SLOW_FOLDERS = ("tests/browser", "tests/corpus", "tests/frameworks")
# With more files than this, only those named like a changed module are run.
MOST_IMPORTERS = 25


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
    modules = {_module(path) for path in changed if path.endswith(".py")}
    stems = {Path(path).stem.lower() for path in changed}
    tests = [path for path in _test_files() if not path.startswith(SLOW_FOLDERS)]
    by_name = {path for path in tests if path in changed or _subject(path) in stems}
    by_import = {path for path in tests if _imports(path) & modules} - by_name
    if len(by_name) + len(by_import) > MOST_IMPORTERS:
        print(f"{len(by_import)} more test files import what changed; `make test` runs them")
        by_import = set()
    # What every rule keeps to is tested in one place.
    if any(path.startswith("tb_perfadvisor/rules/") for path in changed):
        by_name.add("tests/contract/test_rules.py")
    if any(path.endswith(".md") for path in changed):
        by_name.add("tests/contract/test_documents.py")
    return sorted(by_name | by_import)


def main() -> int:
    """Choose the tests and run them."""
    tests = tests_of(changed_files())
    if not tests:
        print("no test belongs to what changed")
        return 0
    print("tests of what changed:", *tests, sep="\n  ", flush=True)
    options = ["-q", "-m", "not corpus and not frameworks", *sys.argv[1:]]
    return subprocess.call([sys.executable, "-m", "pytest", *options, *tests], cwd=ROOT)


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def _test_files() -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py")]


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
def _imports(test: str) -> frozenset[str]:
    """The dotted names that a test file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / test).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


if __name__ == "__main__":
    sys.exit(main())
