"""Looks now and then where the program is, over its whole run.

A figure that is drawn every hundredth step is in no recording of a few steps, and may still take
most of the time. Each look costs some ten microseconds.
"""

from __future__ import annotations

import dis
import random
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from math import isclose
from types import FrameType
from typing import Final, NamedTuple

from tb_perfadvisor.instrument.program_loops import look_at_threads
from tb_perfadvisor.instrument.step_hooks import StepPath
from tb_perfadvisor.instrument.threads import SideThread
from tb_perfadvisor.instrument.user_code import (
    is_beside_script,
    is_standard_file,
    place_of,
    user_frames,
)
from tb_perfadvisor.machine.facts import Activity, Line, Lines, SideWork

if sys.platform == "linux":
    import resource

_EVERY_S: Final = 0.04
_MOST_S: Final = 1.0
"""A look that comes later than that found the machine asleep, not the program busy."""
_GIVEN: Final = 2
"""How often a thread sleeps until it gets Python's lock after a wait: once if that is free, twice
if the program gives it away soon, and more often if it has to be taken away after the switch
interval. How late the thread comes tells nothing where cores are busy, or slow to wake up."""
_USUAL_S: Final = sys.getswitchinterval()
_BUSY_SHARE: Final = 0.1
"""A process that uses less processor time waits: for time, another process or a machine."""
_SOON_S: Final = 0.00001
_NO_NEW_ARRAYS: Final = frozenset({4, *range(13, 26)})
"""Arguments of Python's binary operations (opcode.h) that are products of matrices or in place."""
_MOST_LINES: Final = 50
_TEXT: Final = 200

_SIDE_WORK: Final[tuple[tuple[str, SideWork], ...]] = (
    ("matplotlib", "figures"),
    ("seaborn", "figures"),
    ("plotly", "figures"),
    ("imageio", "images"),
    ("PIL.Image", "images"),
    ("torchvision.utils", "images"),
    ("torch.serialization", "checkpoints"),
    ("h5py", "checkpoints"),
    ("keras.src.saving", "checkpoints"),
    ("keras.src.callbacks.model_checkpoint", "checkpoints"),
    ("tensorflow.python.checkpoint", "checkpoints"),
    ("orbax", "checkpoints"),
    ("flax.training.checkpoints", "checkpoints"),
    ("pickle", "checkpoints"),
    ("torch.utils.tensorboard", "summaries"),
    ("tensorboardX", "summaries"),
    ("tensorboard", "summaries"),
    ("tensorflow.python.ops.summary_ops_v2", "summaries"),
    ("keras.src.callbacks.tensorboard", "summaries"),
    ("wandb", "summaries"),
    ("mlflow", "summaries"),
    ("torch._tensor_str", "texts"),
    ("numpy._core.arrayprint", "texts"),
    ("numpy.core.arrayprint", "texts"),
)
"""What the functions of a module are for, where a program can do with less of it."""
# Reading what these wrote is input.
_READS: Final = frozenset({"load", "loads", "open", "_load", "torch_load", "restore", "read"})
_COMPILING: Final[tuple[tuple[str, str], ...]] = (
    ("jax._src.compiler", ""),
    ("jax._src.interpreters.mlir", "lower_jaxpr_to_module"),
    ("jax._src.interpreters.partial_eval", "trace_to_jaxpr"),
    ("tensorflow.python.framework.func_graph", "func_graph_from_py_func"),
    ("torch._dynamo.convert_frame", ""),
    # Making a model of Keras, and tracing it for the shapes of its weights.
    ("keras.src.models.functional", "__init__"),
    ("keras.src.models.sequential", "__init__"),
    ("keras.src.models.sequential", "add"),
    ("keras.src.layers.layer", "__init__"),
    ("keras.src.layers.layer", "build_wrapper"),
    ("keras.src.trainers.trainer", "compile"),
    ("keras.src.trainers.trainer", "_symbolic_build"),
)
"""Modules, and how the names of their functions begin, that run only while a function is traced or
compiled, or a model is made. `jax.grad` outside of jit traces, too, but by other functions of
`partial_eval`."""
_RECORDERS: Final = "tb_perfadvisor.instrument.continuous."
_WRAPPERS: Final = frozenset({"error_handler", "reraise_with_filtered_traceback"})
"""Functions around those that a program calls: of Keras and TensorFlow, and of JAX."""
_SERVERS: Final = frozenset(
    {"socketserver", "asyncio.base_events", "concurrent.futures.thread", "anyio._backends._asyncio"}
)
"""Modules whose loops wait for requests, or give them to the threads that answer them."""
_WAITS: Final = frozenset({"threading", "selectors", "socket", "ssl", "multiprocessing.connection"})
"""Modules whose functions mostly wait for another thread, process or machine."""


class _Place(NamedTuple):
    """Where the main thread is."""

    path: str
    line: int
    function: str
    calls: str
    side_work: SideWork | None
    activity: Activity | None
    is_in_loop: bool


class _Seen:
    """What some looks saw; the place is None outside of the user's code."""

    def __init__(self) -> None:
        self.looks = 0
        self.seconds: Counter[_Place | None] = Counter()
        self.spells: Counter[_Place | None] = Counter()
        self.doing: dict[_Place | None, Counter[Activity]] = {}

    def add(self, other: _Seen) -> None:
        self.looks += other.looks
        self.seconds.update(other.seconds)
        self.spells.update(other.spells)
        for place, doing in other.doing.items():
            self.doing.setdefault(place, Counter()).update(doing)


class StackSamples:
    """Counts the time of a thread's lines while it makes steps; of the main one before."""

    def __init__(self) -> None:
        self._steps = 0
        self._is_paused = False
        self._lock = threading.Lock()
        self._whole, self._of_step = _Seen(), _Seen()
        self._before: tuple[_Place | None, int] = (None, 0)
        self._number = 0
        self._observed = threading.main_thread().ident
        self._thread = SideThread(self._run)
        self.step_path: StepPath | None = None
        """What belongs to every step; None if nobody tells."""

    def step(self, thread: int | None = None) -> None:
        """A step ended; on this thread, if it is not the main one."""
        self._steps += 1
        self._observed = thread or self._observed
        self._thread.start()

    def pause(self) -> None:
        """A recording begins, in which everything takes longer."""
        self._is_paused = True
        take_turns_as_usual()

    def go_on(self) -> None:
        """It has ended."""
        self._is_paused = False

    def stop(self) -> None:
        """Look no more."""
        self._thread.ends.set()

    @property
    def lines(self) -> Lines | None:
        """What was seen during whole steps; None if that is too little to tell."""
        with self._lock:
            whole = _Seen()
            whole.add(self._whole)
            if self._number != self._steps:
                whole.add(self._of_step)
        seconds = sum(whole.seconds.values())
        places = [(place, s) for place, s in whole.seconds.most_common() if place is not None]
        if not seconds:
            return None
        return Lines(
            seconds=round(seconds, 3),
            looks=whole.looks,
            lines=tuple(
                Line(
                    path=place.path,
                    line=place.line,
                    function=place.function,
                    calls=place.calls[:_TEXT],
                    side_work=place.side_work,
                    activity=place.activity or whole.doing[place].most_common(1)[0][0],
                    spells=whole.spells[place],
                    is_in_loop=place.is_in_loop,
                    share=s / seconds,
                )
                for place, s in places[:_MOST_LINES]
            ),
        )

    def _run(self) -> None:
        # Its own generator: the program's random numbers stay what they are without a recording.
        chance = random.Random()
        before_s, used_s = time.monotonic(), time.process_time()
        while not self._thread.ends.is_set():
            if not self._is_paused:
                ask_soon(_USUAL_S)
            # At random, so that no loop is in the same place each time.
            slept = _times_asleep()
            self._thread.ends.wait(_EVERY_S * chance.uniform(0.5, 1.5))
            was_held = _times_asleep() - slept > _GIVEN
            now_s = time.monotonic()
            passed_s, before_s = now_s - before_s, now_s
            used_before_s, used_s = used_s, time.process_time()
            waits = used_s - used_before_s < _BUSY_SHARE * passed_s
            seen = passed_s, was_held, waits
            with suppress(Exception):
                if not self._is_paused:
                    look_at_threads(partial(self._look_at, chance, *seen))
        take_turns_as_usual()

    def _look_at(
        self,
        chance: random.Random,
        passed_s: float,
        was_held: bool,
        waits: bool,
        frames: dict[int, FrameType],
    ) -> None:
        self.look(at_work(frames, self._observed or 0, chance), passed_s, was_held, waits)

    def look(
        self, frame: FrameType | None, passed_s: float, was_held: bool = False, waits: bool = False
    ) -> None:
        """Count the time since the last look for where the program is.

        If Python's lock was held, it had to be taken away for the look.
        """
        if self._is_paused or passed_s > _MOST_S or is_recording(frame):
            return
        place, call = _place(frame, self.step_path)
        with self._lock:
            if self._number != self._steps:
                # What was seen after the last step is no part of the loop.
                self._whole.add(self._of_step)
                self._of_step = _Seen()
                self._number = self._steps
            self._of_step.looks += 1
            self._of_step.seconds[place] += passed_s  # type: ignore[assignment]
            self._of_step.spells[place] += (place, call) != self._before
            doing = "waits" if waits else _doing(frame, was_held)
            self._of_step.doing.setdefault(place, Counter())[doing] += 1
            self._before = place, call


def _times_asleep() -> int:
    """How often this thread has slept; 0 where the system does not tell."""
    if sys.platform != "linux":
        return 0
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def ask_soon(usual_s: float) -> None:
    """Ask for Python's lock soon after a wait, not after the usual time.

    Who waits for it gets it where the program gives it away, such as in NumPy's random numbers, and
    not in what takes the time. If the program has other threads, they take turns as usual, and an
    interval that it has chosen itself stays.
    """
    now_s = sys.getswitchinterval()
    if isclose(now_s, usual_s) or isclose(now_s, _SOON_S):
        sys.setswitchinterval(_SOON_S if threading.active_count() == 1 else usual_s)


def take_turns_as_usual() -> None:
    """Take back what `ask_soon` has set."""
    if isclose(sys.getswitchinterval(), _SOON_S):
        sys.setswitchinterval(_USUAL_S)


def _doing(frame: FrameType | None, was_held: bool) -> Activity:
    """What the innermost function does, by its instruction.

    Python gives its lock away between instructions that jump or call, and compiled code in any.
    """
    if frame is None:
        return "calls"
    code, at = frame.f_code.co_code, frame.f_lasti
    name, argument = dis.opname[code[at]], code[at + 1]
    if name.endswith(("_SUBSCR", "_SLICE")):
        return "parts"
    if "MATRIX" in name or (name == "BINARY_OP" and argument in _NO_NEW_ARRAYS):
        return "calls"
    following = (dis.opname[each] for each in code[at + 2 :: 2])
    if name == "COMPARE_OP" and next(f for f in following if f != "CACHE").startswith("POP_JUMP"):
        return "Python"  # arrays are neither true nor false
    if name.startswith(("BINARY_", "UNARY_", "COMPARE_")):
        return "operators"
    is_compiled = name.startswith("INPLACE_") or ("CALL" in name and not was_held)
    return "calls" if is_compiled else "Python"


def at_work(frames: dict[int, FrameType], thread: int, chance: random.Random) -> FrameType | None:
    """The frame of a thread; while it waits for requests, of one that answers them."""
    frame = frames.get(thread)
    inner, outer, *_ = (*_modules(frame), "", "")
    accepts = frame is not None and (inner, frame.f_code.co_name) == ("socket", "accept")
    if not accepts and (inner != "selectors" or outer not in _SERVERS):
        return frame
    stacks = ((each, _modules(each)) for each in frames.values())
    busy = [f for f, m in stacks if m[0] not in _WAITS | _SERVERS and _SERVERS & {*m}]
    return chance.choice(busy) if busy else None


def _modules(frame: FrameType | None) -> list[str]:
    """Of the functions on a stack, innermost first."""
    found = []
    while frame is not None:
        found.append(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    return found


def _place(frame: FrameType | None, path: StepPath | None) -> tuple[_Place | None, int]:
    """The innermost line of the user's code on a stack, and what it calls.

    A number tells calls that compile from each other; 0 for none.

    While a function is compiled, its own code may run. Then the line is the one that calls it, in
    the folder of the script if it is below: what a library compiles again, a program makes it. Of
    what is no part of every step, it is the line that leaves the path of the steps.
    """
    outermost = outermost_compiling(frame)
    user = next(user_frames(outermost or frame), None)
    if user is None:
        return None, 0
    if outermost is not None:
        own = (each for each in user_frames(user) if is_beside_script(each.f_code.co_filename))
        user = next(own, user)
    apart = path.apart(frame) if path is not None and outermost is None else None
    innermost, user = user, apart[0] if apart is not None else user
    callee, side_work, calls_library, call = "", None, False, 0
    while frame is not None and frame is not user:
        module, name = str(frame.f_globals.get("__name__", "")), frame.f_code.co_name
        if module.startswith("tb_perfadvisor."):
            if callee and not calls_library:
                # Python's library works for us, not for the program.
                return None, 0
        else:
            if name not in _WRAPPERS or not callee:
                callee = f"{module}.{name}"
            calls_library |= frame is innermost or not is_standard_file(frame.f_code.co_filename)
        if side_work is None and name not in _READS:
            side_work = _side_work(module)
        call, frame = id(frame), frame.f_back
    if side_work is None and apart is not None:
        side_work = apart[1]
    file, line, function = place_of(user)
    activity: Activity | None = "compiling" if outermost is not None else None
    is_in_loop = path is not None and path.repeats(user)
    place = _Place(file, line, function, callee, side_work, activity, is_in_loop)
    return place, call if outermost is not None else 0


def is_recording(frame: FrameType | None) -> bool:
    """Whether a recorder starts, or writes, on this stack."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_RECORDERS):
            return True
        frame = frame.f_back
    return False


def outermost_compiling(frame: FrameType | None) -> FrameType | None:
    """The outermost frame that traces or compiles; None if nothing does."""
    found = None
    while frame is not None:
        module, name = frame.f_globals.get("__name__"), frame.f_code.co_name
        if any(module == each and name.startswith(begin) for each, begin in _COMPILING):
            found = frame
        frame = frame.f_back
    return found


def _side_work(module: str) -> SideWork | None:
    for prefix, kind in _SIDE_WORK:
        if module == prefix or module.startswith(f"{prefix}."):
            return kind
    return None
