"""Score the tests by mutants: small wrong edits, each of which some test should notice.

The first call copies the tracked files into the session's folder and records there which tests run
each line. Then each mutant runs in a fork of its own, with tests that run its line. Later calls
continue. The order of the mutants is random but fixed: a mutant's place depends on nothing but its
file, its line's text and the edit, so that later versions of the code keep the order of all lines
that stayed.

    python -m scripts.mutants --session FOLDER --number 1000    # run the first 1000 mutants
    python -m scripts.mutants --session FOLDER --retry          # survivors, with changed tests
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import inspect
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, NoReturn, TypeAlias

import coverage
import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

from scripts.changed_tests import ROOT, test_files

MUTATED = (
    "tb_perfadvisor/signals/core", "tb_perfadvisor/engine", "tb_perfadvisor/whatif",
    "tb_perfadvisor/hardware", "tb_perfadvisor/ingest/kineto/interpret",
    "tb_perfadvisor/ingest/xspace/interpret", "tb_perfadvisor/ingest/tf_tools",
    "tb_perfadvisor/ingest/chrome", "tb_perfadvisor/ingest/kernels",
)  # fmt: skip
TESTS = (
    "tests/engine", "tests/hardware", "tests/whatif", "tests/signals", "tests/ingest",
    "tests/rules", "tests/trace", "tests/property", "tests/comparison", "tests/demo_logs",
    "tests/report",
)  # fmt: skip
"""Tests in the process itself; a test that starts other processes runs no recorded line."""
OPERATORS = (
    "NumberReplacer", "AddNot", "ZeroIterationForLoop",
    "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue",
    "ReplaceBreakWithContinue", "ReplaceContinueWithBreak",
    "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub",
    "ReplaceUnaryOperator_Delete_Invert",
    *(f"ReplaceComparisonOperator_{change}" for change in (
        "Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Is_IsNot", "IsNot_Is",
    )),
    *(f"ReplaceBinaryOperator_{change}" for change in (
        "Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul", "Pow_Mul",
        "RShift_LShift", "LShift_RShift", "BitOr_BitAnd", "BitAnd_BitOr", "BitXor_BitAnd",
    )),
)  # fmt: skip
"""One of cosmic-ray's operators for each kind of edit."""

_FEW_SECONDS, _MANY_SECONDS = 1.0, 6.0
"""What a small and a large choice of tests take together, as recorded."""
_STATEMENTS = (
    "simple_stmt", "suite", "file_input", "if_stmt", "for_stmt", "while_stmt", "with_stmt",
    "try_stmt", "funcdef", "classdef", "decorator",
)  # fmt: skip
"""What the parts of statements are in, in parso's words."""
_MOST_MEMORY_BYTES = 8 << 30


Pair: TypeAlias = tuple[CodeType, CodeType]
"""A function's code before and after the edit."""


class Mutant(NamedTuple):
    """One edit of one file."""

    path: str
    operator: str
    occurrence: int  # of the operator in the file
    lines: range  # of the innermost statement around the edit
    names: frozenset[str]  # that the statement binds, if it is outside of functions
    key: str


class Result(NamedTuple):
    """What the tests said: killed, survived, untested (no test runs the line), or invalid."""

    key: str
    status: str
    path: str
    change: tuple[str, str]  # the edited line, before and after


class Recording:
    """Which tests run each line, and how long each test takes."""

    def __init__(self, session: Path) -> None:
        tree = session / "tree"
        self.seconds: dict[str, float] = {}
        self.lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for durations in sorted(session.glob("recorded-*.json")):
            seconds = json.loads(durations.read_text(encoding="utf-8"))
            # Files that were recorded again may have lost tests.
            again = {_file_of(test) for test in seconds}
            self.seconds = {
                test: taken for test, taken in self.seconds.items() if _file_of(test) not in again
            } | seconds
            data = coverage.CoverageData(str(durations.with_suffix(".coverage")))
            data.read()
            for file in data.measured_files():
                path = Path(file).relative_to(tree).as_posix()
                for line, contexts in data.contexts_by_lineno(file).items():
                    self.lines[path][line].update(map(_test_of, filter(None, contexts)))

    def tests_of(self, mutant: Mutant, source: str) -> list[str]:
        """The tests that run a mutant's line, the most promising first.

        What only imports run, like a constant, goes by the lines that mention its name, else by
        the whole file, else by its folder.
        """
        lines = self.lines[mutant.path]
        mentioned = re.compile("|".join(rf"\b{name}\b" for name in mutant.names) or "(?!)")
        texts = enumerate(source.splitlines(), start=1)
        mentions = [line for line, text in texts if mentioned.search(text)]
        chosen: set[str] = set()
        for numbers in (mutant.lines, mentions, list(lines)):
            chosen = chosen or set().union(*(lines.get(number, ()) for number in numbers))
            chosen &= self.seconds.keys()
        if not chosen:
            folder = Path(mutant.path).parent
            nearby = [self.lines[path] for path in self.lines if Path(path).parent == folder]
            chosen = chosen.union(*(tests for file in nearby for tests in file.values()))
            chosen &= self.seconds.keys()
        stem = Path(mutant.path).stem
        breadth = self._breadth(mutant.path)
        return sorted(
            chosen,
            # Tests of the module itself first, then those that run little else, then fast ones.
            key=lambda test: (
                stem not in test, breadth[test] // 20, self.seconds.get(test, 1.0), test
            ),
        )  # fmt: skip

    @cache  # noqa: B019, there is one recording
    def _breadth(self, path: str) -> Counter[str]:
        """How many lines of a file each test runs."""
        return Counter(test for tests in self.lines[path].values() for test in tests)

    def affordable(self, tests: Sequence[str], seconds: float) -> list[str]:
        """Those of some tests, at least one, that together take a number of seconds."""
        chosen: list[str] = []
        for test in tests:
            if not chosen or self.seconds.get(test, 1.0) <= seconds:
                chosen.append(test)
                seconds -= self.seconds.get(test, 1.0)
        return chosen


def mutants(tree: Path) -> list[Mutant]:
    """All mutants, in their fixed random order."""
    files = [file for folder in MUTATED for file in sorted((tree / folder).rglob("*.py"))]
    found = [
        mutant for file in files for mutant in _mutants_of(file.relative_to(tree).as_posix(), file)
    ]
    return sorted(found, key=lambda mutant: hashlib.sha256(mutant.key.encode()).digest())


def _mutants_of(path: str, file: Path) -> Iterator[Mutant]:
    source = file.read_text(encoding="utf-8")
    texts = source.splitlines()
    module = get_ast(source)
    operators = [(name, OperatorProvider()[name]()) for name in OPERATORS]
    occurrences: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for node in ast_nodes(module):
        for name, operator in operators:
            for (line, column), _ in operator.mutation_positions(node):
                occurrence = occurrences[name]
                occurrences[name] += 1
                leaf = module.get_leaf_for_position((line, column))
                if _is_declaration(leaf):
                    continue
                text = f"{path} {name} {column} {texts[line - 1].strip()}"
                seen[text] += 1
                statement = _statement(leaf)
                lines = range(statement.start_pos[0], statement.get_last_leaf().start_pos[0] + 1)
                names = frozenset[str]()
                if leaf.search_ancestor("funcdef", "lambdef") is None:
                    defined = getattr(statement, "get_defined_names", tuple[Any, ...])()
                    names = frozenset(name.value for name in defined)
                yield Mutant(path, name, occurrence, lines, names, f"{text} {seen[text]}")


def _is_declaration(node: Any) -> bool:
    """Whether a node is in an annotation or in the head of a class, which tests don't notice."""
    while (parent := node.parent) is not None:
        if parent.type == "tfpdef" or (parent.type == "annassign" and node is parent.children[1]):
            return True
        if parent.type == "funcdef" and node is parent.annotation:
            return True
        if parent.type == "classdef" and node is not parent.children[-1]:
            return True
        node = parent
    return False


def _statement(node: Any) -> Any:
    """The innermost simple statement around a node, or the part of a compound statement's head."""
    while node.parent.type not in _STATEMENTS:
        node = node.parent
    return node


def _test_of(context: str) -> str:
    """The test function of a recorded context: `FILE::test_it[4]|run` without what follows it."""
    return context.partition("|")[0].partition("[")[0]


def _file_of(test: str) -> str:
    return test.partition("::")[0]


class _Durations:
    """Writes how long each test function takes; a plugin of pytest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[_test_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps(self._seconds), encoding="utf-8")


def _enter(tree: Path) -> None:
    """Let imports, and the processes of tests, find the copy's modules."""
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]


def _pytest(arguments: Sequence[str], plugins: Sequence[object] = ()) -> int:
    marked = "not corpus and not frameworks and not browser and not nightly"
    options = ["-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants", "-m", marked]
    return pytest.main([*options, *arguments], plugins)


def _in_fork(run: Callable[[], int], cpu_seconds: float | None = None) -> int:
    """The status that a function returns in a process of its own, or the signal that ended it.

    With a limit, it prints nothing. The limit is on the processor's time, so that no test fails
    because the machine is busy.
    """

    def in_child() -> NoReturn:
        status = int(pytest.ExitCode.INTERNAL_ERROR)
        os.setpgid(0, 0)  # so that the processes of tests end with this one
        sys.modules["__main__"] = ModuleType("__main__")  # else they would import this script
        if cpu_seconds is not None:
            limit = int(cpu_seconds) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
        try:
            status = run()
        finally:
            os._exit(status)

    process = multiprocessing.get_context("fork").Process(target=in_child)
    process.start()
    process.join(None if cpu_seconds is None else 60 + 10 * cpu_seconds)  # for tests that wait
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    return process.exitcode or 0


def _record(session: Path, tests: Sequence[str]) -> None:
    """Run tests in the copy and record which lines each one runs."""
    name = f"recorded-{len(list(session.glob('recorded-*.json')))}"
    measured = [f"--cov={folder}" for folder in MUTATED]
    arguments = ["--cov-context=test", "--cov-report=", *measured, *tests]

    def run() -> int:
        os.environ["COVERAGE_FILE"] = str(session / f"{name}.coverage")
        _enter(session / "tree")
        return _pytest(arguments, [_Durations(session / f"{name}.json")])

    if _in_fork(run) != pytest.ExitCode.OK:
        (session / f"{name}.json").unlink(missing_ok=True)
        sys.exit("the tests must pass before they are tried on mutants")


class Copy:
    """The copied project, loaded once with all its tests, and forked for each mutant."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        _enter(tree)
        with Path(os.devnull).open("w") as null, contextlib.redirect_stdout(null):
            _pytest(["--collect-only", *TESTS])
        self._functions = {
            _place(each.__code__): each
            for each in gc.get_objects()
            if isinstance(each, FunctionType) and each.__code__.co_filename.startswith(str(tree))
        }
        gc.freeze()  # else a collection in a fork would touch, and so copy, all memory

    def pass_with(self, changed: Sequence[Pair], tests: Sequence[str], seconds: float) -> bool:
        """Whether tests pass with the code of some functions replaced; much the faster way."""

        def run() -> int:
            for before, after in changed:
                self._functions[_place(before)].__code__ = after
            return _pytest(["-x", *tests])

        return self._is_ok(run, seconds)

    def pass_afresh(self, module: CodeType | None, tests: Sequence[str], seconds: float) -> bool:
        """Whether tests pass when all modules are imported again, one with other code."""

        def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
            found = loaders_get_code(loader, name)
            return module if found and module and found.co_filename == module.co_filename else found

        def run() -> int:
            SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]
            for name in list(sys.modules):
                if name.partition(".")[0] in ("tb_perfadvisor", "tests"):
                    del sys.modules[name]
            return _pytest(["-x", *tests])

        loaders_get_code = SourceFileLoader.get_code
        return self._is_ok(run, seconds)

    def has(self, changed: Sequence[Pair]) -> bool:
        """Whether the code of these functions can be replaced."""
        return all(_place(before) in self._functions for before, _ in changed)

    def _is_ok(self, run: Callable[[], int], seconds: float) -> bool:
        status = _in_fork(run, 20 + 5 * seconds)
        if status in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
            sys.exit(f"pytest could not run the tests: status {status}")
        return status == pytest.ExitCode.OK


def _place(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_name, code.co_firstlineno


def _changed_functions(before: CodeType, after: CodeType) -> list[Pair] | None:
    """Functions that differ, before and after; None if what runs at the import differs."""
    if _without_functions(before) != _without_functions(after):
        return None
    changed: list[Pair] = []
    for old, new in zip(before.co_consts, after.co_consts, strict=True):
        if not isinstance(old, CodeType) or old == new:
            continue
        if old.co_flags & inspect.CO_OPTIMIZED:  # a function; else the body of a class
            changed.append((old, new))
        elif (inside := _changed_functions(old, new)) is not None:
            changed += inside
        else:
            return None
    return changed


def _without_functions(code: CodeType) -> CodeType:
    constants = tuple(each for each in code.co_consts if not isinstance(each, CodeType))
    return code.replace(co_consts=constants, co_linetable=b"")


def _run(mutant: Mutant, copy: Copy, recording: Recording, only: Sequence[str] | None) -> Result:
    """Run a mutant with the tests of its line, or with those of them in some files."""
    file = copy.tree / mutant.path
    source = file.read_text(encoding="utf-8")
    mutated = mutate_code(source, OperatorProvider()[mutant.operator](), mutant.occurrence)
    lines = zip(source.splitlines(), mutated.splitlines(), strict=False)
    change = next((before.strip(), after.strip()) for before, after in lines if before != after)
    result = Result(mutant.key, "killed", f"{mutant.path}:{mutant.lines.start}", change)
    try:
        before, after = (_compiled(text, file) for text in (source, mutated))
    except SyntaxError:
        return result._replace(status="invalid")
    tests = recording.tests_of(mutant, source)
    if only is not None:
        tests = [test for test in tests if _file_of(test) in only]
    if not tests:
        return result._replace(status="untested")
    changed = _changed_functions(before, after)
    few, many = (recording.affordable(tests, seconds) for seconds in (_FEW_SECONDS, _MANY_SECONDS))
    if changed and copy.has(changed):
        if not copy.pass_with(changed, many, _MANY_SECONDS):
            return result
        # What ran at the import ran with the code before.
        has_passed = copy.pass_afresh(after, few, _FEW_SECONDS)
    else:
        has_passed = copy.pass_afresh(after, many, _MANY_SECONDS)
    return result._replace(status="survived") if has_passed else result


def _compiled(source: str, file: Path) -> CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # like `1 is not 2`
        code: CodeType = compile(source, str(file), "exec", dont_inherit=True)
    return code


def _results(session: Path) -> dict[str, Result]:
    """The last result of each mutant, by key."""
    path = session / "results.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {result.key: result for result in (Result(*json.loads(line)) for line in lines)}


def _changed_tests(tree: Path) -> list[str]:
    """Copy today's tests, and return the test files that differ from those of the session."""
    changed = [
        test
        for test in test_files()
        if test.startswith(TESTS)
        and (not (tree / test).exists() or (tree / test).read_bytes() != (ROOT / test).read_bytes())
    ]
    shutil.copytree(ROOT / "tests", tree / "tests", dirs_exist_ok=True)
    return changed


def _make_copy(tree: Path) -> None:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    for name in done.stdout.decode().rstrip("\0").split("\0"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)


def main() -> int:
    """Run mutants and print the score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--session", type=Path, required=True, help="folder of the results")
    parser.add_argument("--number", type=int, default=0, help="how many mutants to run")
    parser.add_argument("--retry", action="store_true", help="run survivors with changed tests")
    arguments = parser.parse_args()
    session: Path = arguments.session.resolve()
    tree = session / "tree"
    if not tree.exists():
        _make_copy(tree)
    if not any(session.glob("recorded-*.json")):
        _record(session, TESTS)
    changed = None
    if arguments.retry:
        changed = _changed_tests(tree)
        if not changed:
            sys.exit("no test has changed since the last call")
        _record(session, changed)
    order = mutants(tree)
    results = _results(session)
    if changed is None:
        todo = [mutant for mutant in order[: arguments.number] if mutant.key not in results]
    else:
        alive = {
            key for key, result in results.items() if result.status in ("survived", "untested")
        }
        todo = [mutant for mutant in order if mutant.key in alive]
    recording = Recording(session)
    copy = Copy(tree)
    some = recording.affordable(sorted(recording.seconds), _FEW_SECONDS)
    passed = copy.pass_with([], some, _FEW_SECONDS)
    if not (passed and copy.pass_afresh(None, some, _FEW_SECONDS)):
        sys.exit("the tests must pass without a mutant")
    with (session / "results.jsonl").open("a", encoding="utf-8") as file:
        for mutant in todo:
            result = _run(mutant, copy, recording, changed)
            if changed is None or result.status == "killed":
                results[mutant.key] = result
                print(json.dumps(result), file=file, flush=True)
            if result.status != "killed":
                print(f"{result.status}: {result.path}", *result.change, sep="\n  ", flush=True)
    counts = Counter(result.status for result in results.values())
    valid = counts.total() - counts["invalid"]
    print(
        f"{len(order)} mutants, {valid} run, {counts['killed'] / valid:.1%} killed: {dict(counts)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
