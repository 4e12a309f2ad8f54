from __future__ import annotations

import random
import socket
import subprocess
import sys
import threading
import time
import types
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import pytest

from tb_perfadvisor.instrument import stack_samples
from tb_perfadvisor.instrument.stack_samples import StackSamples, ask_soon, at_work
from tests.support.waiting import eventually

SEEN: list[FrameType] = []


class Looks(StackSamples):
    """Looks when a test says so, and as long after the last look."""

    def _run(self) -> None:
        pass

    def after(self, seconds: float) -> None:
        """Let time pass at the line that calls this, and look."""
        SEEN.append(sys._getframe(1))  # as the thread keeps what it saw until it has looked again
        self.look(SEEN[-1], seconds)


def module(name: str, code: str) -> types.ModuleType:
    """Code of a package that is installed."""
    made = types.ModuleType(name)
    exec(compile(code, f"/x/site-packages/{name.replace('.', '/')}.py", "exec"), vars(made))
    return made


DRAWING = module(
    "matplotlib.pyplot",
    "def pause(looks, s): looks.after(s)\ndef load(looks, s): looks.after(s)",
)


def test_shares_of_lines_between_the_first_and_the_last_step() -> None:
    samples = Looks()
    samples.step()
    for _ in range(10):
        DRAWING.pause(samples, 0.15)
        samples.after(0.05)
        samples.step()
    DRAWING.load(samples, 0.3)  # after the last step
    samples.stop()
    lines = samples.lines
    assert lines is not None
    assert lines.seconds == pytest.approx(10 * (0.15 + 0.05))
    drawn, rest = lines.lines
    assert (drawn.side_work, rest.side_work) == ("figures", None)
    assert drawn.calls == "matplotlib.pyplot.pause"
    assert drawn.path.endswith("test_stack_samples.py")
    assert drawn.share == pytest.approx(0.15 / 0.2)
    assert drawn.spells == 10
    assert rest.share == pytest.approx(0.05 / 0.2)


def test_what_is_read_is_no_side_work_and_recordings_are_left_out() -> None:
    samples = Looks()
    samples.step()
    DRAWING.load(samples, 0.3)
    samples.pause()
    DRAWING.pause(samples, 0.5)
    samples.go_on()
    samples.after(3.0)  # the machine was asleep
    samples.step()
    samples.after(0.2)
    samples.stop()
    lines = samples.lines
    assert lines is not None
    assert lines.seconds == pytest.approx(0.3)
    assert [line.side_work for line in lines.lines] == [None]


def test_what_we_read_ourselves_is_none_of_the_program() -> None:
    # As `queue` does of Python's library, which waits for us.
    waiting = types.ModuleType("queue")
    exec(compile("def get(looks, s): looks.after(s)", types.__file__, "exec"), vars(waiting))
    ours = module(
        "tb_perfadvisor.machine.this_machine", "def measure(get, looks, s): get(looks, s)"
    )
    recorder = module(
        "tb_perfadvisor.instrument.continuous.profiler", "def step(looks, s): looks.after(s)"
    )
    samples = Looks()
    samples.step()
    recorder.step(samples, 0.4)
    ours.measure(waiting.get, samples, 0.5)
    samples.after(0.3)
    samples.step()
    samples.stop()
    lines = samples.lines
    assert lines is not None
    (line,) = lines.lines
    assert line.share == pytest.approx(0.3 / 0.8)


def test_a_thread_looks_and_leaves_the_random_numbers_of_the_program() -> None:
    samples = StackSamples()
    random.seed(0)
    expected = [random.random() for _ in range(2)]
    random.seed(0)
    samples.step()
    found = [random.random()]
    eventually(lambda: samples._of_step.looks > 0)
    found.append(random.random())
    samples.step()
    eventually(lambda: samples.lines is not None)
    samples.stop()
    assert found == expected
    assert samples.lines is not None
    places = ("waiting.py", "test_stack_samples.py")
    assert any(line.path.endswith(places) for line in samples.lines.lines)


def test_nothing_before_the_first_step_and_after_it_has_stopped() -> None:
    samples = StackSamples()
    assert samples.lines is None
    samples.stop()
    samples.step()
    time.sleep(0.1)
    samples.step()
    assert samples.lines is None


JAX = module("jax._src.compiler", "def backend_compile(traced, looks, s): traced(looks, s)")


def traced_by_us(samples: Looks, seconds: float) -> None:
    samples.after(seconds)


def test_compiling_belongs_to_the_line_that_calls_the_compiled_function() -> None:
    samples = Looks()
    samples.step()
    for _ in range(4):
        # The function's own code runs while it is traced.
        JAX.backend_compile(traced_by_us, samples, 0.2)
        samples.after(0.15)
    samples.step()
    samples.stop()
    lines = samples.lines
    assert lines is not None
    (compiled,) = [line for line in lines.lines if line.activity == "compiling"]
    assert compiled.calls == "jax._src.compiler.backend_compile"
    assert compiled.share == pytest.approx(0.2 / 0.35)
    assert compiled.spells == 4


def test_what_a_library_compiles_belongs_to_the_line_beside_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stack_samples, "is_beside_script", lambda name: name == __file__)
    # In the same repository as the program, so that it is no installed package.
    solver = types.ModuleType("solver")
    code = "def run(compile, traced, looks, s): compile(traced, looks, s)"
    exec(compile(code, "/repository/solver.py", "exec"), vars(solver))
    samples = Looks()
    samples.step()
    for _ in range(4):
        solver.run(JAX.backend_compile, traced_by_us, samples, 0.2)
    samples.step()
    samples.stop()
    assert samples.lines is not None
    (line,) = samples.lines.lines
    assert line.path.endswith("test_stack_samples.py")
    assert (line.calls, line.activity) == ("solver.run", "compiling")
    assert line.spells == 4


def test_the_lock_is_asked_for_soon_unless_threads_of_the_program_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alive = [threading.main_thread()]
    given = [0.0123]
    monkeypatch.setattr(threading, "active_count", lambda: len(alive))
    monkeypatch.setattr(sys, "getswitchinterval", lambda: given[-1])
    monkeypatch.setattr(sys, "setswitchinterval", given.append)
    ask_soon(0.0123)
    alive.append(threading.Thread())
    ask_soon(0.0123)
    assert given[1] < 0.0123
    assert given[2:] == [0.0123]
    given.append(0.1)  # the program's own choice stays
    ask_soon(0.0123)
    assert given[3:] == [0.1]


SELECTORS = module("selectors", "def select(then): return then()")
SERVER = module(
    "socketserver",
    "def serve_forever(select, then): return select(then)\ndef process_request(then): then()",
)
POOL = module("multiprocessing.connection", "def wait(select, then): return select(then)")
SOCKET = module("socket", "def accept(then): return then()")


@pytest.mark.parametrize(
    ("wait", "is_elsewhere"),
    [
        (lambda then: SERVER.serve_forever(SELECTORS.select, then), True),
        (SOCKET.accept, True),
        # For a batch of a worker process.
        (lambda then: POOL.wait(SELECTORS.select, then), False),
        (lambda then: then(), False),
    ],
)
def test_while_a_server_waits_for_requests_the_threads_that_answer_count(
    wait: Callable[[Callable[[], FrameType | None]], FrameType | None], is_elsewhere: bool
) -> None:
    begun: list[bool] = []
    ends: list[bool] = []

    def handle() -> None:
        begun.append(True)
        while not ends:
            time.sleep(0.001)

    released = threading.Event()
    threads = [
        threading.Thread(target=SERVER.process_request, args=(handle,)),
        threading.Thread(target=SERVER.process_request, args=(released.wait,)),
        threading.Thread(target=handle, name="watches the program"),
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: len(begun) == 2)
    main = threading.get_ident()

    def look() -> FrameType | None:
        frames = sys._current_frames()
        chosen = {each.ident: frames[each.ident] for each in threads if each.ident is not None}
        chosen[main] = sys._getframe(1)
        found = at_work(chosen, main, random.Random(0))
        seen.append([each for each, frame in chosen.items() if frame is found])
        return found

    seen: list[list[int]] = []
    try:
        frame = wait(look)
    finally:
        ends.append(True)
        released.set()
        for thread in threads:
            thread.join()
    assert frame is not None
    assert seen == [[threads[0].ident if is_elsewhere else main]]


def test_a_server_without_requests_is_nowhere() -> None:
    main = threading.get_ident()
    waiting = lambda: at_work({main: sys._getframe(1)}, main, random.Random(0))  # noqa: E731
    assert SERVER.serve_forever(SELECTORS.select, waiting) is None


def test_only_looks_of_the_loop_count() -> None:
    samples = Looks()
    samples.step()
    for _ in range(4):
        samples.after(0.25)
        samples.step()
    for _ in range(3):
        samples.after(0.1)  # after the last step
    lines = samples.lines
    assert lines is not None
    assert (lines.looks, lines.seconds, lines.lines[0].spells) == (4, 1.0, 1)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a + a", "operators"),
        ("-a", "operators"),
        ("a < a", "operators"),
        # An array is neither true nor false.
        ("if a < a: pass", "Python"),
        ("a @ a", "calls"),
        ("a += a", "calls"),
        ("a[0]", "parts"),
        ("a[0] = 1", "parts"),
        ("list(map(look, (0,)))", "calls"),
    ],
)
def test_what_is_done_shows_in_the_instruction(source: str, expected: str) -> None:
    samples = Looks()

    class Array:
        def look(self, *_: object) -> Array:
            samples.look(sys._getframe(1), 0.1)
            return self

        __add__ = __neg__ = __lt__ = __matmul__ = __iadd__ = look
        __getitem__ = __setitem__ = look

    samples.step()
    # As compiled code does, methods of `Array` look at who calls them.
    exec(compile(source, __file__, "exec"), {"a": Array(), "look": Array().look})
    samples.step()
    lines = samples.lines
    assert lines is not None
    assert [line.activity for line in lines.lines] == [expected]


def test_who_holds_the_lock_for_long_runs_python() -> None:
    samples = Looks()
    samples.step()
    samples.look(sys._getframe(), 0.1, was_held=True)
    samples.step()
    lines = samples.lines
    assert lines is not None
    assert [line.activity for line in lines.lines] == ["Python"]


def compress_until(ends: threading.Event) -> None:
    while not ends.is_set():
        zlib.compress(NOISE)  # gives the lock away for milliseconds


def count_until(ends: threading.Event) -> None:
    while not ends.is_set():
        for number in range(10_000):
            abs(number)


NOISE = random.Random(0).randbytes(1_000_000)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts sleeps of threads")
@pytest.mark.parametrize(("work", "expected"), [(compress_until, "calls"), (count_until, "Python")])
def test_compiled_calls_that_give_the_lock_away_are_told_from_python(
    work: Callable[[threading.Event], None], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_samples, "_BUSY_SHARE", 0.0)  # where cores are busy, it waits
    samples, ends = StackSamples(), threading.Event()
    thread = threading.Thread(target=work, args=(ends,))
    thread.start()
    samples.step(thread.ident)
    eventually(lambda: samples._of_step.looks >= 15)
    ends.set()
    thread.join()
    samples.step()
    samples.stop()
    lines = samples.lines
    assert lines is not None
    shares = Counter[str | None]()
    for line in lines.lines:
        if line.function == work.__name__:
            shares[line.activity] += line.share
    assert max(shares, key=lambda activity: shares[activity]) == expected


def wait_for_time() -> None:
    time.sleep(0.2)


def wait_for_a_lock() -> None:
    threading.Event().wait(0.2)


def wait_for_a_process() -> None:
    subprocess.run([sys.executable, "-c", "import time; time.sleep(0.2)"], check=True)


def wait_for_a_machine() -> None:
    left, right = socket.socketpair()
    with left, right, suppress(TimeoutError):
        left.settimeout(0.2)
        left.recv(1)


@pytest.mark.parametrize(
    "wait", [wait_for_time, wait_for_a_lock, wait_for_a_process, wait_for_a_machine]
)
def test_who_uses_no_processor_waits(wait: Callable[[], None]) -> None:
    samples = StackSamples()
    samples.step()

    def has_waited() -> bool:
        wait()
        samples.step()
        lines = samples.lines.lines if samples.lines is not None else ()
        return any((line.function, line.activity) == (wait.__name__, "waits") for line in lines)

    try:
        assert any(has_waited() for _ in range(50))
    finally:
        samples.stop()


@pytest.mark.parametrize("work", [lambda: sum(range(10_000)), lambda: hash("a" * 10_000)])
def test_who_works_does_not_wait(work: Callable[[], object]) -> None:
    samples = StackSamples()
    samples.step()
    while samples.lines is None or samples.lines.looks < 20:
        ends_s = time.process_time() + 0.1
        while time.process_time() < ends_s:
            work()
        samples.step()
    samples.stop()
    assert "waits" not in {line.activity for line in samples.lines.lines if line.share > 0.5}
