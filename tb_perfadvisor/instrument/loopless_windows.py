"""Records programs by time in which neither a call nor a loop repeats, or not on one thread.

A long call, a recursion, a chain of generators and callbacks have no steps; requests that are
answered on a thread each have them, but a profiler of one thread sees one request. So all threads
are recorded for some time. Threads that take turns, as those of requests do, share a lane.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol

import msgspec

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.instrument.continuous.python_recorder import PythonRecorder
from tb_perfadvisor.instrument.continuous.recorders import without_warnings
from tb_perfadvisor.instrument.loop_finder import MOST_PER_S
from tb_perfadvisor.instrument.program_loops import look_at_main, on_main_thread
from tb_perfadvisor.instrument.ranks import worker_name_of_torch
from tb_perfadvisor.instrument.step_hooks import is_in_backward
from tb_perfadvisor.instrument.time_windows import TimeWindows
from tb_perfadvisor.instrument.trace_files import Change, write_trace

_LOOK_EVERY_S: Final = 0.1
_WARM_S: Final = 3.0
"""A program that has computed for so long without repeating anything has no steps that are seen."""
_BUSY_SHARE: Final = 0.1
"""A program that uses less processor time waits, such as for the first request."""
_MOST_REQUESTS: Final = 10_000
_FEWEST_REQUESTS: Final = 3
_TENSORFLOW: Final = frozenset({"tensorflow", "keras"})
_LOOKS: Final = 20
_LEAST_SHARE: Final = 0.2
_IMPORTS: Final = "importlib._bootstrap"
_ALL_THREADS: Final = "profile_all_threads"
_MOST_WAITED_S: Final = 10.0


class LooplessWindows(TimeWindows):
    """Records windows of time of a program whose framework has a profiler."""

    framework: Callable[[], str]
    """Whose profiler records: "torch", "keras" or "python"."""
    has_requests = False
    """Whether the program answers requests on several threads."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._requests_ended: deque[tuple[int, int]] = deque(maxlen=_MOST_REQUESTS)
        """When, and on which thread."""
        self._session: _Session | None = None
        self._is_in_tensorflow: deque[bool] = deque(maxlen=_LOOKS)
        """Whether looks at the main thread found it there, newest last."""

    def request_ended(self) -> None:
        """A request was answered on this thread."""
        self._requests_ended.append((time.time_ns(), threading.get_native_id()))

    def wait_for_work(self) -> bool:
        """Wait until the program has computed for a while."""
        worked_s, before_s, used_s = 0.0, time.monotonic(), time.process_time()
        while worked_s < _WARM_S and not self.ends.wait(_LOOK_EVERY_S):
            now_s, used_now_s = time.monotonic(), time.process_time()
            is_busy = used_now_s - used_s >= _BUSY_SHARE * (now_s - before_s)
            if is_busy and self.is_wanted and not look_at_main(_imports):
                worked_s += now_s - before_s
                look_at_main(self.see)
            before_s, used_s = now_s, used_now_s
        if self.framework() == "torch":
            self._import_profiler()
        return not self.ends.is_set()

    def start_trace(self, directory: Path, *, is_rich: bool) -> None:
        """Begin a recording."""
        session: _Session = _PythonSession()
        if self.framework() == "torch":
            session = _TorchSession()
        # Its profiler sees nothing of a program that computes elsewhere.
        elif self.framework() == "keras" and self._uses_tensorflow:
            session = _TensorFlowSession()
        session.start(directory, is_rich=is_rich)
        self._session = session

    def see(self, frame: FrameType | None) -> set[tuple[str, int]]:
        """The loops that the main thread is in, and whether it is in TensorFlow."""
        modules = set()
        each = frame
        while each is not None:
            modules.add(str(each.f_globals.get("__name__", "")).partition(".")[0])
            each = each.f_back
        self._is_in_tensorflow.append(not modules.isdisjoint(_TENSORFLOW))
        return super().see(frame)

    @property
    def _uses_tensorflow(self) -> bool:
        """Whether the program spends a part of its time there, as far as is known."""
        looks = self._is_in_tensorflow
        return len(looks) < _LOOKS or sum(looks) >= _LEAST_SHARE * len(looks)

    def _import_profiler(self) -> None:
        """Start PyTorch's profiler once on the main thread, while the program imports nothing.

        Two threads that import the same modules may see parts of them only, and a first start on
        another thread writes to stderr.
        """
        has_begun, is_done = threading.Event(), threading.Event()

        def load() -> None:
            if not (has_begun.is_set() or look_at_main(_imports) or is_in_backward()):
                has_begun.set()
                try:
                    session = _TorchSession()
                    session.start(Path(), is_rich=False)
                    session.stop(None, [])
                finally:
                    is_done.set()

        # A main thread that waits for something imports nothing.
        latest_s = time.monotonic() + _MOST_WAITED_S
        while not (is_done.is_set() or self.ends.wait(_LOOK_EVERY_S)):
            if not has_begun.is_set() and time.monotonic() > latest_s:
                break
            on_main_thread(load)

    def stop_trace(self, directory: Path) -> None:
        """End it, and write it unless it is not wanted any more."""
        session, self._session = self._session, None
        if session is not None:
            session.stop(directory if self.is_wanted else None, [*self._requests_ended])

    @property
    def reason(self) -> str:
        """Why it is recorded by time."""
        if self.has_requests:
            return ", because models are called on many threads: a step is such a call"
        if not self.is_wanted:
            return ", before a step was seen"
        rounds = f"rounds of {1e3 / MOST_PER_S:.1f} ms or more"
        return f", because no call of a model and no loop with {rounds} was seen to repeat"


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") == _IMPORTS:
            return True
        frame = frame.f_back
    return False


class _Session(Protocol):
    """One recording of a profiler."""

    def start(self, directory: Path, *, is_rich: bool) -> None:
        """Begin."""

    def stop(self, directory: Path | None, requests: list[tuple[int, int]]) -> None:
        """End, and write what was recorded; without a directory, drop it."""


class _TorchSession:
    def __init__(self) -> None:
        self._meanwhile = ExitStack()

    def start(self, directory: Path, *, is_rich: bool) -> None:
        import torch.autograd.profiler
        import torch.profiler
        from torch._C._profiler import _ExperimentalConfig

        if getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
            raise PerfAdvisorError("the program runs PyTorch's profiler itself.")
        if _ALL_THREADS not in (_ExperimentalConfig.__init__.__doc__ or ""):
            raise PerfAdvisorError(
                f"PyTorch {torch.__version__} records one thread only, and nothing repeats on it.",
                hint="Install a newer version of PyTorch.",
            )
        self._profiler = torch.profiler.profile(
            record_shapes=is_rich,
            profile_memory=is_rich,
            with_stack=is_rich,
            experimental_config=_ExperimentalConfig(profile_all_threads=True),
        )
        self._profiler.start()
        if is_rich:
            self._meanwhile.enter_context(without_warnings())

    def stop(self, directory: Path | None, requests: list[tuple[int, int]]) -> None:
        with self._meanwhile:
            self._profiler.stop()
        if directory is not None:
            change: Change | None = None
            if len(requests) >= _FEWEST_REQUESTS:

                def change(data: bytes) -> bytes:
                    return with_lanes(data, requests)

            write_trace(self._profiler, directory, worker_name_of_torch(), change)


class _TensorFlowSession:
    def start(self, directory: Path, *, is_rich: bool) -> None:
        import tensorflow

        tensorflow.profiler.experimental.start(str(directory))

    def stop(self, directory: Path | None, requests: list[tuple[int, int]]) -> None:
        import tensorflow

        tensorflow.profiler.experimental.stop(save=directory is not None)


class _PythonSession:
    def start(self, directory: Path, *, is_rich: bool) -> None:
        self._recorder = PythonRecorder()
        self._recorder.start(directory, 0, 1, is_rich=is_rich)

    def stop(self, directory: Path | None, requests: list[tuple[int, int]]) -> None:
        self._recorder.stop()


# --- Requests -------------------------------------------------------------------------------------


def with_lanes(data: bytes, requests: list[tuple[int, int]]) -> bytes:
    """A trace of torch.profiler in which threads that take turns are one, and requests are steps.

    A step lasts from the end of a request to that of the next on the same lane; those of the lane
    with most requests are marked.
    """
    trace = msgspec.json.decode(data)
    events = [each for each in trace["traceEvents"] if each.get("ph") == "X" and "dur" in each]
    spans: dict[int, tuple[float, float]] = {}
    base_ns = int(trace.get("baseTimeNanoseconds", 0))
    ended = [((at_ns - base_ns) / 1e3, thread) for at_ns, thread in requests]
    for each in events:
        if each.get("cat") == "cpu_op":
            first, last = spans.get(each["tid"], (each["ts"], 0.0))
            spans[each["tid"]] = min(first, each["ts"]), max(last, each["ts"] + each["dur"])
    lanes: list[tuple[int, float]] = []
    lane_of: dict[int, int] = {}
    for thread, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        number = next((at for at, (_, end) in enumerate(lanes) if end <= first), len(lanes))
        lane_of[thread] = lanes[number][0] if number < len(lanes) else thread
        lanes[number : number + 1] = [(lane_of[thread], last)]
    for each in trace["traceEvents"]:
        each["tid"] = lane_of.get(each.get("tid"), each.get("tid"))
    begin = min((first for first, _ in spans.values()), default=0.0)
    end = max((last for _, last in spans.values()), default=0.0)
    ends: dict[int, list[float]] = {}
    for at, thread in sorted(ended):
        if thread in lane_of and begin <= at <= end:
            ends.setdefault(lane_of[thread], []).append(at)
    lane, marks = max(ends.items(), key=lambda item: len(item[1]), default=(0, []))
    process = events[0]["pid"] if events else 0
    trace["traceEvents"] += [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{number}",
            "pid": process,
            "tid": lane,
            "ts": first,
            "dur": last - first,
        }
        for number, (first, last) in enumerate(pairwise(marks))
    ]
    return msgspec.json.encode(trace)
