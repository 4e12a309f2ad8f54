"""Which loops a program is in, and how often they come around, without a clock."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from tb_perfadvisor.instrument import hook, loop_finder
from tb_perfadvisor.instrument.continuous.profiler import ContinuousProfiler
from tb_perfadvisor.instrument.continuous.schedule import Plan
from tb_perfadvisor.instrument.loop_finder import loop_of_steps
from tb_perfadvisor.instrument.program_loops import (
    HAS_MONITORING,
    Loop,
    Rounds,
    look_at_threads,
    loops_around,
    loops_of,
)
from tb_perfadvisor.instrument.stack_samples import is_recording

Look = Callable[[], object]


def work(number: int) -> int:
    return number + 1


def two_loops(look: Look, outer: int, inner: int) -> None:
    for number in range(outer):
        abs(number)
        for each in range(inner):
            work(each)
        look()


def one_site(look: Look, rounds: int) -> None:
    for number in range(rounds):
        look() if number == 0 else work(number)


def sorting(look: Look, rounds: int) -> None:
    for _ in range(rounds):
        look()
        sorted([3, 1, 2], key=work)


def unpacking(look: Look, rounds: int) -> None:
    for number in range(rounds):
        look()
        first, second = (work(each) for each in (number, number))
        abs(first + second)


def own(loops: list[Loop], function: Callable[..., object]) -> list[Loop]:
    return [loop for loop in loops if loop.code is function.__code__]


class Counter:
    """Begins to watch when the program looks for the first time."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.rounds = Rounds()
        self.loops: list[Loop] = []
        self._function = function

    def __call__(self) -> None:
        if not self.loops:
            around = loops_around(sys._getframe(1))
            self.loops = own(around, self._function)
            self.rounds.watch(self.loops)


def test_loops_are_found_by_where_they_jump_back_to() -> None:
    outer, inner = loops_of(two_loops.__code__)
    first = two_loops.__code__.co_firstlineno
    assert [loop.line - first for loop in (outer, inner)] == [1, 3]
    assert outer.inner == [inner]
    assert outer.place.endswith(f"test_loops.py:{first + 1}")


def test_outer_loops_come_first_and_a_function_without_a_loop_has_none() -> None:
    found: list[list[Loop]] = []
    two_loops(lambda: found.append(own(loops_around(sys._getframe()), two_loops)), 1, 1)
    # It looks behind the inner loop.
    assert [[loop.begin for loop in each] for each in found] == [
        [loops_of(two_loops.__code__)[0].begin]
    ]
    assert loops_of(work.__code__) == []


@pytest.mark.parametrize("is_called", [True, False])
def test_a_library_that_the_program_calls_and_that_calls_back_has_the_loop(
    tmp_path: Path, is_called: bool
) -> None:
    library: dict[str, Any] = {}
    source = "def minimize(function):\n    for _ in range(3):\n        function()\n"
    path = str(tmp_path / "site-packages" / "solver.py")
    exec(compile(source, path, "exec"), library)
    found: list[list[str]] = []

    def function() -> None:
        found.append([loop.place for loop in loops_around(sys._getframe())])

    def program() -> None:
        library["minimize"](function)

    minimize = partial(library["minimize"], function)
    thread = threading.Thread(target=program if is_called else minimize)
    thread.start()
    thread.join()
    assert found == [["solver.py:2"] if is_called else []] * 3


def test_rounds_are_counted_from_the_first_look_on() -> None:
    counter = Counter(two_loops)
    two_loops(counter, 8, 3)
    counter.rounds.stop()
    # It watches from the end of the first round on. Jumps back: 8, the last of which finds that
    # nothing is left. Calls are first seen in the second round, and begin again in 3 to 8.
    assert counter.loops[0].rounds == (8 if HAS_MONITORING else 6)
    assert sys.getprofile() is None


def test_it_is_known_when_another_profile_function_has_taken_the_place() -> None:
    counter, found = Counter(two_loops), []

    def look() -> None:
        counter()
        counter.rounds.check()
        found.append(counter.rounds.is_lost)
        if len(found) == 3:
            sys.setprofile(None)

    two_loops(look, 5, 3)
    counter.rounds.stop()
    is_lost = not HAS_MONITORING
    assert found == [False, False, False, is_lost, is_lost]


@pytest.mark.parametrize("program", [sorting, unpacking])
def test_what_runs_inside_of_one_instruction_is_no_round(
    program: Callable[[Look, int], None],
) -> None:
    counter = Counter(program)
    program(counter, 6)
    counter.rounds.stop()
    assert counter.loops[0].rounds == (6 if HAS_MONITORING else 5)


@pytest.mark.parametrize("program", [two_loops, sorting])
def test_rounds_are_told_one_by_one_and_the_program_is_left_as_it_was(
    program: Callable[..., object],
) -> None:
    rounds = Rounds()
    told: list[FrameType] = []
    seen: list[int] = []
    code, looks = work.__code__, 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            loops = own(loops_around(sys._getframe(1)), program)
            rounds.watch(loops)
            seen.append(0)
        elif looks == 5:
            rounds.follow(rounds._loops[id(program.__code__)][0], told.append)
        seen.append(len(told))

    program(look, 12, *([2] if program is two_loops else []))
    rounds.stop()
    # Looks 5 to 12 are in the rounds that are told of; the last round is over after the last look.
    assert len(told) == (8 if HAS_MONITORING else 7)
    assert {frame.f_code for frame in told} == {program.__code__}
    assert sys.getprofile() is None
    assert work.__code__ is code


def test_a_function_that_each_round_calls_tells_of_it() -> None:
    if HAS_MONITORING:
        pytest.skip("this version of Python tells of jumps")
    rounds = Rounds()
    told: list[FrameType] = []

    def step(number: int, *, more: int = 1) -> int:
        return number + more + len(told[:0])

    code, results = step.__code__, []
    for number in range(9):
        results.append(step(number, more=2))
        if number == 1:
            rounds.watch(loops_around(sys._getframe())[-1:])
        if number == 5:
            (loop,) = rounds._loops[id(sys._getframe().f_code)]
            rounds.follow(loop, told.append)
            assert not rounds.is_costly
            assert step.__code__ is not code
            place = step.__code__.co_filename, step.__code__.co_firstlineno
            assert place == (code.co_filename, code.co_firstlineno)
    rounds.stop()
    assert results == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert len(told) == 3  # numbers 6, 7 and 8
    assert step.__code__ is code
    assert sys.getprofile() is None


# --- which of them is the step ----------------------------------------------------------------

PROGRAM = """
for epoch in range(9):
    for prompt in prompts:
        while more():
            step()
"""


@pytest.fixture
def nest(tmp_path: Path) -> list[Loop]:
    """Three loops: over epochs, over prompts, and over tokens."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return loops_of(compile(PROGRAM, str(path), "exec"))


def chosen(nest: list[Loop], rounds: list[int], passed_s: float, known: int = 0) -> Loop | None:
    for loop, number in zip(nest, rounds, strict=True):
        loop.rounds = number
    return loop_of_steps(nest, passed_s, known)


def test_the_step_is_a_round_of_the_outermost_loop_that_repeats(nest: list[Loop]) -> None:
    assert chosen(nest[1:], [3, 90], 0.1) is nest[1]
    assert chosen(nest, [0, 2, 2], 0.1) is None


def test_an_outer_loop_gets_time_to_come_around(nest: list[Loop]) -> None:
    assert chosen(nest, [0, 2, 60], 1.9) is None
    assert chosen(nest, [0, 2, 60], 2.0) is nest[2]
    # Few rounds of the inner one say little about the outer one.
    assert chosen(nest, [0, 2, 49], 2.0) is None
    assert chosen(nest, [0, 2, 49], 6.1) is nest[2]


def test_time_in_which_a_recording_is_written_does_not_count(tmp_path: Path) -> None:
    seen: list[bool] = []

    class Recorder:
        file_prefix, warm_up = "", 1

        def start(self, directory: Path, first_step: int, steps: int, *, is_rich: bool) -> None:
            seen.append(is_recording(sys._getframe()))

        def step(self) -> bool:
            return False

        def stop(self) -> None:
            seen.append(is_recording(sys._getframe()))

    profiler = ContinuousProfiler(tmp_path / "run", Recorder(), Plan(first=1, is_fixed=True))
    for _ in range(3):
        profiler.step()
        seen.append(is_recording(sys._getframe()))
    profiler.close()
    assert seen == [True, False, False, False, True]


def test_a_loop_over_epochs_is_none_over_steps(nest: list[Loop]) -> None:
    assert chosen(nest, [3, 12, 90], 0.4) is nest[1]
    assert chosen(nest[:1], [3], 0.4) is nest[0]
    # Three epochs of four updates.
    assert chosen(nest, [3, 12, 90], 0.1, known=12) is nest[1]


def test_a_loop_over_batches_in_one_over_epochs_makes_steps(tmp_path: Path) -> None:
    program = (
        "for epoch in epochs:\n for i in range(0, rows, batch_size):\n  for row in i:\n   step()"
    )
    path = tmp_path / "program.py"
    path.write_text(program)
    loops = loops_of(compile(program, str(path), "exec"))
    assert chosen(loops, [3, 48, 90], 0.1) is loops[1]
    # One batch is the whole data.
    assert chosen(loops, [3, 3, 90], 0.1) is loops[0]


def test_an_epoch_is_looked_at_more_than_once(
    nest: list[Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([nest[:1], nest[:2], nest[:1], nest, nest[:1], nest[1:]])
    monkeypatch.setattr(loop_finder, "loops_around", lambda frame: next(looks))
    assert loop_finder._deepest_look() == nest
    assert loop_finder._deepest_look() == nest[1:]  # no loop over epochs: the first look counts


class Steps:
    """A program without any steps that are known."""

    found: Loop | None = None

    def needs_loop(self) -> bool:
        return self.found is None

    def known_steps(self) -> int:
        return 0

    def has_loop(self, loop: Loop, steps: float, seconds: float) -> bool:
        self.found = loop
        return False


@pytest.mark.parametrize(
    ("compiles_s", "rounds", "ends_s", "searches_s"),
    [
        (0, 3, 99, 5),
        (10, 3, 99, 15),
        (0, 0, 99, 6),
        (0, 0, 1, 1.25),  # the loop was one of an import: look again, where the program is then
    ],
)
def test_a_search_takes_time_while_its_loops_run_and_nothing_is_compiled(
    compiles_s: int,
    rounds: int,
    ends_s: int,
    searches_s: float,
    nest: list[Loop],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (loop, now_s), steps = (nest[0], [0.0]), Steps()
    finder = loop_finder.LoopFinder(steps)  # type: ignore[arg-type]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds
        loop.rounds = rounds if now_s[0] > compiles_s + 5 else 0

    for name, stub in {
        "time": SimpleNamespace(sleep=sleep, monotonic=lambda: now_s[0]),
        "loops_around": lambda frame: [loop],
        "outermost_compiling": lambda frame: frame if now_s[0] < compiles_s else None,
    }.items():
        monkeypatch.setattr(loop_finder, name, stub)
    monkeypatch.setattr(finder, "_ends", SimpleNamespace(wait=sleep))
    monkeypatch.setattr(finder.rounds, "watch", lambda loops: None)
    monkeypatch.setattr(loop, "is_around", lambda frame: now_s[0] < ends_s)
    assert finder._search() is (loop if rounds else None)
    assert now_s[0] == pytest.approx(searches_s, abs=0.2)


def test_how_often_a_loop_comes_around_is_told_by_its_time_on_a_processor(
    nest: list[Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"7000000000 2500000000 12\n")
    assert loop_finder.waited_for_processor_s() == 2.5
    # 40 µs a round, and 10 µs: of these, nobody tells.
    nest[0].rounds = 25_000
    assert loop_finder.is_part_of_step(nest[0], 1.0)
    assert loop_finder.is_part_of_step(nest[0], 4.0) is not HAS_MONITORING
    nest[0].callees = {2: (25_000, work)}  # type: ignore[dict-item]
    assert not loop_finder.is_part_of_step(nest[0], 4.0)
    assert loop_finder.is_part_of_step(nest[0], 1.0)


def test_one_finder_is_made_if_two_threads_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Finder:
        def __init__(self, process: Any) -> None:
            made.append(self)
            if len(made) < 3:
                process._find_loop()  # as another thread might, meanwhile

        def start(self) -> None:
            pass

    monkeypatch.setattr(loop_finder, "LoopFinder", Finder)
    process: Any = object.__new__(hook._RecordedProcess)
    process._finder, process._may_find = None, threading.Lock()
    process._record_by_time = lambda: None
    process._find_loop()
    assert made == [process._finder]


def test_a_short_epoch_of_nothing_that_is_a_step_is_one(nest: list[Loop]) -> None:
    assert chosen(nest, [3, 12, 90], 0.2) is nest[0]
    assert chosen(nest, [3, 12, 90], 0.2, known=3) is nest[0]


ASKED_MEANWHILE = """
    import sys, threading, time
    from tb_perfadvisor.instrument.program_loops import on_main_thread

    has_begun, done = threading.Event(), []

    def generate():
        yield from range(1000)

    def first():
        has_begun.set()
        time.sleep(0.2)
        done.append(sum(number for number in generate()))

    def ask():
        on_main_thread(first)
        has_begun.wait()
        on_main_thread(lambda: done.append("second"))

    sys.setprofile("".format)  # takes anything, and is no Python that could run `first` itself
    threading.Thread(target=ask).start()
    while len(done) < 2:
        for _ in range(1000):
            pass
    print(*done)
"""


def test_what_is_asked_of_the_main_thread_comes_in_turns() -> None:
    """Python 3.11 hangs if one is asked for while another runs, and a profile function is set."""
    command = [sys.executable, "-c", textwrap.dedent(ASKED_MEANWHILE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["499500", "second"]


LOOKS_AND_GARBAGE = """
    import gc, threading, time
    from tb_perfadvisor.instrument.program_loops import look_at_main

    def look():
        for _ in range(100):
            look_at_main(lambda frame: None)

    gc.callbacks.append(lambda *_: time.sleep(0.0001))
    for threshold in range(1, 8):
        gc.set_threshold(threshold)
        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(gc.isenabled())
"""


def test_looks_collect_no_garbage() -> None:
    """Python 3.11 hangs if a look makes a collection due that gives way to another look."""
    command = [sys.executable, "-c", textwrap.dedent(LOOKS_AND_GARBAGE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["True"]


def test_what_a_look_holds_last_is_freed_by_the_main_thread() -> None:
    freed: list[threading.Thread] = []

    class Guard:
        def __del__(self) -> None:
            freed.append(threading.current_thread())

    looks, has_returned = threading.Event(), threading.Event()

    def look(_: dict[int, FrameType]) -> None:
        looks.set()
        has_returned.wait(10)

    thread = threading.Thread(target=lambda: look_at_threads(look))

    def compute() -> Guard | None:
        guard = Guard()
        thread.start()
        looks.wait(10)
        return None if guard else guard

    compute()
    has_returned.set()
    thread.join()
    for _ in range(1_000):
        if freed:
            break
        time.sleep(0.01)
    assert freed == [threading.main_thread()]
