"""The loops that a program is in, by its bytecode, and how often they come around.

Python 3.12 and later tell of each jump back to the beginning of a loop. Before, a round shows in
the calls that a loop makes: they begin again. A profile function sees all calls, and takes time for
each, so that it stays for seconds only. For longer, one function that the loop calls once per round
tells of its calls.
"""

from __future__ import annotations

import ctypes
import dis
import gc
import os
import sys
import threading
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, TypeVar

from tb_perfadvisor.instrument.user_code import (
    frames_called_back,
    innermost_loop,
    shown_path,
    user_frames,
)

HAS_MONITORING: Final = sys.version_info >= (3, 12)
_TOOL: Final = 4
"""Of the numbers that `sys.monitoring` gives to tools, one without a fixed use."""
_MOST_COUNTED: Final = 1_000
"""Inner loops that come around so often are no steps, and telling of them takes time."""
_STARTS_LATER: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_CALLS: Final = ("CALL", "PRECALL")
_ASK_AGAIN: Final = ("JUMP_BACKWARD_NO_INTERRUPT",)
"""Waits for a coroutine or another generator; no loop of the program."""

_MAIN: Final = threading.main_thread()
_T = TypeVar("_T")

Ended = Callable[[FrameType], object]


class Loop:
    """A loop of a function: from where its rounds begin to the last jump back."""

    def __init__(
        self, code: CodeType, begin: int, end: int, line: int, calls: Sequence[int] = ()
    ) -> None:
        self.code = code
        self.begin = begin
        self.end = end
        self.line = innermost_loop(code.co_filename, line) or line
        self.rounds = 0
        self._calls = calls
        """Where calls begin in the function and where they end, in turns."""
        self.inner: list[Loop] = []
        self._at = -1
        self._called: str | CodeType = ""
        self.callees: dict[int, tuple[int, FunctionType | type | None]] = {}
        """How often each place in it made a call, and what it calls in Python."""

    @property
    def place(self) -> str:
        """`train.py:42`."""
        return f"{shown_path(self.code.co_filename)}:{self.line}"

    def usual_call(self) -> FunctionType | type | None:
        """What it calls once per round: other calls depend on a condition."""
        calls: Counter[FunctionType | type] = Counter()
        for count, called in self.callees.values():
            if called is not None:
                calls[called] += count
        return next((each for each, count in calls.items() if abs(count - self.rounds) <= 1), None)

    def holds(self, at: int) -> bool:
        """Whether an instruction is in it."""
        return self.begin <= at <= self.end

    def is_around(self, frame: FrameType | None) -> bool:
        """Whether a call is made in it."""
        while frame is not None:
            if frame.f_code is self.code and self.holds(frame.f_lasti):
                return True
            frame = frame.f_back
        return False

    def calls(self, at: int, called: str | CodeType) -> bool:
        """A call begins in it; returns whether that is a new round.

        A function in C that is called at one place may call others, which look like called there.
        So may an operation that is no call, such as `x[mask] = 0`: as often as it likes.
        """
        inside = next((loop for loop in self.inner if loop.holds(at)), None)
        at, before = inside.begin if inside is not None else at, self._at
        if before != at:
            self._at, self._called = at, called
        elif isinstance(called, str):
            self._called = called
        is_again = before == at and inside is None and self._called == called
        is_new = before > at or (is_again and (at == self.begin or self._is_call(at)))
        self.rounds += is_new
        return is_new

    def _is_call(self, at: int) -> bool:
        """Whether the instruction at an offset, or what it caches there, calls something."""
        return bisect_right(self._calls, at) % 2 == 1


def loops_of(code: CodeType) -> list[Loop]:
    """The loops of a function, outer ones first."""
    lines = dict(dis.findlinestarts(code))
    ends: dict[int, int] = {}
    calls: list[int] = []
    for each in dis.get_instructions(code):
        if each.opname.startswith(_CALLS) != len(calls) % 2:
            calls.append(each.offset)
        jumps = each.opcode in dis.hasjrel or each.opcode in dis.hasjabs
        if jumps and each.argval <= each.offset and each.opname not in _ASK_AGAIN:
            ends[each.argval] = max(ends.get(each.argval, 0), each.offset)
    loops = []
    for begin, end in sorted(ends.items()):
        before = [at for at, line in lines.items() if at <= begin and line is not None]
        line = lines[max(before)] if before else code.co_firstlineno
        loops.append(Loop(code, begin, end, line, calls))
    for loop in loops:
        loop.inner = [each for each in loops if each is not loop and loop.holds(each.begin)]
    return loops


def loops_around(frame: FrameType | None) -> list[Loop]:
    """The loops of the user's code around what a thread does, outer ones first.

    If there is none, those of a library that the user's code calls and that calls it back, as an
    optimizer calls a function.
    """
    for frames in (user_frames(frame), frames_called_back(frame)):
        found = []
        for caller in reversed([*frames]):
            found += [loop for loop in loops_of(caller.f_code) if loop.holds(caller.f_lasti)]
        if found:
            return found
    return []


class Rounds:
    """Counts the rounds of some loops on the main thread, and tells of those of one."""

    def __init__(self) -> None:
        self._loops: dict[int, list[Loop]] = {}
        """By the functions that they are in, outer ones first."""
        self._followed: Loop | None = None
        self._ended: Ended | None = None
        self._restore: Callable[[], None] | None = None
        self.is_costly = False
        """Whether telling of rounds takes time for each call of the program."""
        self.is_lost = False
        """Whether a recorder of stacks has taken the profile function's place."""

    def watch(self, loops: Iterable[Loop]) -> None:
        """Count the rounds of these loops from now on."""
        self.stop()
        self.is_lost = False
        for loop in loops:
            self._loops.setdefault(id(loop.code), []).append(loop)
        if HAS_MONITORING:
            self._monitor([group[0].code for group in self._loops.values()])
        else:
            on_main_thread(self._profile)

    def check(self) -> None:
        """Find out whether rounds are still counted."""

        def look() -> None:
            self.is_lost = bool(self._loops) and sys.getprofile() is None

        if not HAS_MONITORING:
            on_main_thread(look)

    def follow(self, loop: Loop, ended: Ended) -> None:
        """Tell of each round of one of them, with the frame that runs it."""
        self._followed, self._ended = loop, ended
        if HAS_MONITORING:
            return
        called = loop.usual_call()
        self.is_costly = called is None
        if called is not None:
            on_main_thread(lambda: self._tell_calls(called))

    def stop(self) -> None:
        """Leave the program as it was."""
        restore, self._restore = self._restore, None
        self._loops, self._followed, self._ended = {}, None, None
        self.is_costly = False
        if restore is not None:
            restore()

    # --- Python 3.12 and later --------------------------------------------------------------------

    def _monitor(self, codes: list[CodeType]) -> None:
        monitoring: Any = vars(sys)["monitoring"]
        events, nothing = monitoring.events.JUMP, monitoring.events.NO_EVENTS
        main, disable = _MAIN.ident, monitoring.DISABLE

        def jumped(code: CodeType, at: int, to: int) -> Any:
            loop = next((each for each in self._loops.get(id(code), ()) if each.begin == to), None)
            if loop is None or (loop is not self._followed and loop.rounds >= _MOST_COUNTED):
                return disable
            if threading.get_ident() == main:
                loop.rounds += 1
                if loop is self._followed and self._ended is not None:
                    self._ended(sys._getframe(1))
            return None

        def restore() -> None:
            for code in codes:
                monitoring.set_local_events(_TOOL, code, nothing)
            monitoring.free_tool_id(_TOOL)

        monitoring.use_tool_id(_TOOL, "perfadvisor")
        monitoring.register_callback(_TOOL, events, jumped)
        for code in codes:
            monitoring.set_local_events(_TOOL, code, events)
        monitoring.restart_events()
        self._restore = restore

    # --- Python 3.10 and 3.11 ---------------------------------------------------------------------

    def _profile(self) -> None:
        if sys.getprofile() is not None or not self._loops:
            return

        def called(frame: FrameType, event: str, function: Any) -> None:
            caller = frame if event == "c_call" else frame.f_back if event == "call" else None
            loops = self._loops.get(id(caller.f_code)) if caller is not None else None
            if not loops or caller is None:
                return
            at = caller.f_lasti
            for loop in loops:
                if not loop.holds(at):
                    continue
                if event == "call" and not any(each.holds(at) for each in loop.inner):
                    count, callee = loop.callees.get(at) or (0, _function_of(frame, caller))
                    loop.callees[at] = count + 1, callee
                name = frame.f_code if event == "call" else function.__name__
                if loop.calls(at, name) and loop is self._followed and self._ended is not None:
                    self._ended(caller)

        def unset() -> None:
            if sys.getprofile() is called:
                sys.setprofile(None)

        sys.setprofile(called)
        self._restore = lambda: on_main_thread(unset)

    def _tell_calls(self, called: FunctionType | type) -> None:
        loop = self._followed
        if loop is None:
            return
        if self._restore is not None:
            sys.setprofile(None)

        def tell() -> None:
            frame = sys._getframe(2)
            is_round = frame.f_code is loop.code and threading.current_thread() is _MAIN
            if is_round and loop is self._followed and self._ended is not None:
                self._ended(frame)

        self._restore = (
            _told_of_model(called, tell) if isinstance(called, type) else _told(called, tell)
        )


class _PendingCalls:
    """Calls for the main thread, in turns.

    Python is asked for one at a time: where a profile function is set, Python 3.11 hangs if another
    one is asked for while it runs.
    """

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._is_asked = False
        self._lock = threading.Lock()
        self._run = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._run_all)

    def add(self, call: Callable[[], object]) -> None:
        with self._lock:
            self._calls.append(call)
            if self._is_asked:
                return
            # Python takes no more if too many wait: then the next call brings this one along.
            self._is_asked = ctypes.pythonapi.Py_AddPendingCall(self._run, None) == 0

    def _run_all(self, _: object) -> int:
        while True:
            with self._lock:
                if not self._calls:
                    self._is_asked = False
                    return 0
                call = self._calls.popleft()
            with suppress(Exception):
                call()


_PENDING: Final = _PendingCalls()


def on_main_thread(call: Callable[[], object]) -> None:
    """Call something on the main thread, between two of its instructions, as soon as it can."""
    if threading.get_ident() == _MAIN.ident:
        call()
    else:
        _PENDING.add(call)


def look_at_threads(look: Callable[[dict[int, FrameType]], _T]) -> _T:
    """What a look at what all threads run returns, which is no frame.

    Whoever lets go of a frame last frees what it holds. That may be a guard of PyTorch that changes
    how its thread computes: freed by another thread while an operator runs, it breaks the operator.
    So the main thread lets go of them.
    """
    if threading.get_ident() == _MAIN.ident:
        return look(_frames())
    kept: list[object] = []
    try:
        return look(_frames_of_others(kept))
    finally:
        if _MAIN.is_alive():
            on_main_thread(kept.clear)


def look_at_main(look: Callable[[FrameType | None], _T]) -> _T:
    """What a look at what the main thread runs returns, which is no frame."""
    return look_at_threads(lambda frames: look(frames.get(_MAIN.ident or 0)))


def _frames() -> dict[int, FrameType]:
    """What all threads run.

    Older Pythons hold a lock of theirs meanwhile, and may collect garbage. Whatever that calls may
    give way to a thread that waits for the same lock and never gives way: the program hangs
    (https://github.com/python/cpython/issues/106883). So no garbage is collected meanwhile.
    """
    with _ASKS:
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            if is_collecting:
                gc.enable()


_ASKS: Final = threading.RLock()
if hasattr(os, "register_at_fork"):
    # No fork may begin while a thread that it does not have has turned the collection off.
    os.register_at_fork(
        before=_ASKS.acquire, after_in_parent=_ASKS.release, after_in_child=_ASKS.release
    )


def _frames_of_others(kept: list[object]) -> dict[int, FrameType]:
    frames = _frames()
    del frames[threading.get_ident()]
    kept.append(frames)
    for frame in frames.values():
        each: FrameType | None = frame
        while each is not None:
            kept.append(each)
            each = each.f_back
    return frames


def _function_of(frame: FrameType, caller: FrameType) -> FunctionType | type | None:
    """The function that a call has begun to run, or the class of the model that is called."""
    code = frame.f_code
    if code.co_flags & _STARTS_LATER:
        return None
    owner = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    if code.co_name == "_wrapped_call_impl" and owner is not None:
        return None if "__call__" in vars(type(owner)) else type(owner)
    for kind in type(owner).__mro__:
        method = vars(kind).get(code.co_name)
        if isinstance(method, FunctionType) and method.__code__ is code:
            return method
    names = (*caller.f_locals.values(), *caller.f_globals.values(), *frame.f_globals.values())
    found = {id(each): each for each in names if type(each) is FunctionType}
    same = [each for each in found.values() if each.__code__ is code]
    return same[0] if len(same) == 1 else None


class _Told:
    """What the code below calls."""

    def __init__(self, call: Callable[..., Any], tell: Callable[[], None]) -> None:
        self.call, self.tell = call, tell


def _told(function: FunctionType, tell: Callable[[], None]) -> Callable[[], None]:
    """Tell of each call of a function, which stays the object that it is; returns the way back."""
    code = function.__code__
    called = FunctionType(
        code, function.__globals__, code.co_name, function.__defaults__, function.__closure__
    )
    called.__kwdefaults__ = function.__kwdefaults__
    # A function keeps its closure, so that new code needs as many variables of it.
    names = ", ".join(f"_{number}" for number in range(len(code.co_freevars)))
    source = (
        f"def outer({names}):\n"
        f"    def inner(*arguments, **keywords): {names or 'pass'}; 'told'.tell();"
        " return 'told'.call(*arguments, **keywords)\n"
        "    return inner\n"
    )
    made: dict[str, Any] = {}
    exec(compile(source, __file__, "exec"), made)
    new: CodeType = made["outer"](*[None] * len(code.co_freevars)).__code__
    told = _Told(called, tell)
    # Tracers name the function's own place.
    function.__code__ = new.replace(
        co_consts=tuple(told if each == "told" else each for each in new.co_consts),
        co_name=code.co_name,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
    )

    def restore() -> None:
        function.__code__ = code

    return restore


def _told_of_model(kind: Any, tell: Callable[[], None]) -> Callable[[], None]:
    """Tell of each call of a model of a class; returns the way back."""
    call = kind.__call__

    def told(*arguments: Any, **keywords: Any) -> Any:
        tell()
        return call(*arguments, **keywords)

    kind.__call__ = told

    def restore() -> None:
        del kind.__call__

    return restore
