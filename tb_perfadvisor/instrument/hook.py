"""Starts in the processes of a program what a command put there: recording, or measuring.

`sitecustomize` in `instrument/site` calls `install` when Python starts. Programs that repeat
neither a call nor a loop are recorded by time; so are those that do on many threads, because a
profiler of steps is one of a thread.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from functools import cached_property, partial
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from tb_perfadvisor.instrument.checkout_guard import guard, use_copy
from tb_perfadvisor.instrument.step_hooks import (
    HookedProcess,
    OnImport,
    Rank,
    StepSources,
    is_in_backward,
    jax_is_used,
    when_imported,
)
from tb_perfadvisor.instrument.threads import SideThread
from tb_perfadvisor.instrument.user_code import loops_or_line

if TYPE_CHECKING:
    from tb_perfadvisor.instrument.continuous.profiler import ContinuousProfiler
    from tb_perfadvisor.instrument.examination.examiner import Examiner
    from tb_perfadvisor.instrument.examination.repeated_calls import RepeatedCalls
    from tb_perfadvisor.instrument.loop_finder import LoopFinder
    from tb_perfadvisor.instrument.loopless_windows import LooplessWindows
    from tb_perfadvisor.instrument.parts import Parts
    from tb_perfadvisor.instrument.program_loops import Loop
    from tb_perfadvisor.instrument.step_hooks import TensorFlowCalls
    from tb_perfadvisor.instrument.time_windows import TimeWindows

SETTINGS: Final = "PERFADVISOR_RUN"
"""The environment variable with the settings, as JSON."""
_LOOK_EVERY_S: Final = 0.1
_WORKED_S: Final = 3.0
"""A program of Python alone that uses less processor time is left as it is."""
_UNUSED_S: Final = 10.0
"""A program that does not use its optimizer for so long may be an evaluation."""
_TRAINED_S: Final = 60.0
"""A program that has trained for so long is one that trains."""
_REST_S: Final = 5.0
_RESTS_LONGER: Final = 2
"""A program that has rested from training twice as long as it trained is another program: it
generates or evaluates, after a few steps to warm up. Epochs evaluate for less."""
_SEEN_STEPS: Final = 3
"""The first steps show which loop makes them; looking at the stack takes time."""
_ENDS_STEP: Final = {
    Rank.BATCH: "a batch of Keras",
    Rank.OPTIMIZER: "a step of the optimizer",
    Rank.GRADIENT: "a computation of gradients",
    Rank.TRAINING_FUNCTION: "a call of a tf.function that computes gradients",
    Rank.CALL: "a call of a model or a tf.function",
}
_BECAUSE: Final = {
    Rank.GRADIENT: ", because no optimizer was seen",
    Rank.CALL: ", because nothing trains",
}
_ALIKE: Final = 1.25
"""If a round of a loop makes about one of the calls that end steps until now, these are as good."""
_FEWEST_RECORDINGS: Final = 2
"""A light and a rich one."""
_GONE_AFTER: Final = 20
"""So many calls on other threads without one on that of the steps, and it makes no more of them."""
_FEWEST_ON_MAIN: Final = 3
"""So many of them on the main thread, and the others help it."""


def install() -> None:
    """Wait for frameworks in this process. Never raises: the program must run as without it."""
    with suppress(Exception):
        text = os.environ.get(SETTINGS, "")
        if not text:
            return
        settings = json.loads(text)
        if "checkout" in settings:
            guard(settings["checkout"])
            use_copy(settings["checkout"], settings["copy"])
        # Workers of a loader are not the program.
        if multiprocessing.parent_process() is None:
            when_imported(_process(settings).waiting)


def _process(settings: dict[str, Any]) -> HookedProcess:
    if "measure" in settings:
        from tb_perfadvisor.instrument.measure import MeasuredProcess

        return MeasuredProcess(settings)
    return _RecordedProcess(settings)


class _RecordedProcess(HookedProcess):
    """Records some of the steps of this process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._profiler: Any = None
        self._framework = ""
        """Whose call ended a step last."""
        self._recordings = 0
        self._model_calls: Any = None
        self._optimizer_made_s: float | None = None
        self._trained_s: tuple[float, float] | None = None
        """When the first and the last step of training ended."""
        self._has_rested = False
        self._finder: LoopFinder | None = None
        self._may_find = threading.Lock()
        """Taken by the first that looks for loops, and never given back."""
        self._loop_seen: Loop | None = None
        self._because = ""
        """Why rounds of the loop are better steps than calls."""
        self._ran: tuple[int, float] | None = None
        """How many rounds it made before it was found, and how long they took."""
        self._what = self._why = ""
        """What a step is, and why no better one is."""
        self._seen_steps = 0
        """Of the source whose calls end steps."""
        self._ending: FrameType | None = None
        """What ends a step, while it does."""
        self._is_settled = False
        self._has_server = False
        """Whether calls come from other threads than the main one."""
        self._thread: threading.Thread | None = None
        """Whose calls end steps. Its number may be that of another one when it has ended."""
        self._elsewhere: deque[threading.Thread] = deque(maxlen=_GONE_AFTER)
        """The threads of the calls since then that were made on others."""
        self._is_spread = False
        """Whether each call may be on another thread."""
        self._windows: list[TimeWindows] = []
        """What records by time while no step is seen."""
        self._loopless: LooplessWindows | None = None
        self._lock = threading.RLock()
        self._sources = StepSources(self._step_ended, self._on_better, self._on_next)
        super().__init__(settings)
        self._waiting_for_work = SideThread(self._wait_for_work)
        self._waiting_for_work.start()

    @property
    def waiting(self) -> dict[str, OnImport]:
        return {
            **super().waiting,
            "jax": self._on_jax,
            "numpy": self._on_numpy,
            "torch": self._on_whole_torch,
            "torch.nn.modules.module": self._on_modules,
            "torch.utils.data.dataloader": self._on_loaders,
            "tensorflow.python.eager.polymorphic_function.polymorphic_function": self._on_functions,
            "tensorflow.python.eager.backprop": self._on_tapes,
            "keras.src.optimizers.base_optimizer": self._on_keras_optimizers,
        }

    @cached_property
    def parts(self) -> Parts:
        """What the program makes; imported when a framework is, not by every process."""
        from tb_perfadvisor.instrument.parts import Parts

        return Parts()

    @cached_property
    def _calls(self) -> TensorFlowCalls:
        from tb_perfadvisor.instrument.step_hooks import TensorFlowCalls

        return TensorFlowCalls(partial(self._ended, "keras"))

    def on_optimizer(self, optimizer: Any, frame: FrameType) -> None:
        """Remember where it is made."""
        from tb_perfadvisor.instrument.parts import add_optimizer

        self._optimizer_made_s = time.monotonic()
        if self._model_calls is not None:
            self._model_calls.stop()
        add_optimizer(self.parts, optimizer, frame)

    def on_optimizer_step(self, optimizer: Any) -> None:
        """Steps of one optimizer count; others may make more than one per step."""
        self._ended("torch", Rank.OPTIMIZER, id(optimizer))

    def keras_callback(self, method: str) -> Any:
        """A callback that counts batches."""
        from tb_perfadvisor.instrument.keras import counting_callback

        def ended() -> None:
            self._ended("keras", Rank.BATCH if method == "fit" else Rank.CALL, method)

        def skip() -> None:
            if self._profiler is not None:
                self._profiler.skip()

        return counting_callback(ended, skip)

    def at_exit(self) -> None:
        """End what is being recorded."""
        if self._profiler is not None:
            self._profiler.close()
            self._tell_recordings()

    def _tell_recordings(self) -> None:
        """Say what was recorded, and of which steps."""
        steps = [each.step for each in self._profiler.earlier]
        is_recorded = len(self._profiler.recordings) > 0
        if is_recorded:
            for windows in self._windows:
                windows.discard()
        if not steps and not is_recorded and any(windows.summary for windows in self._windows):
            return  # which stays as it is
        if is_recorded or not steps:
            steps.append(self._what + self._why)
        self.said["step"] = ", and later ".join(dict.fromkeys(steps))
        self.said["summary"] = self._profiler.summary()

    def _ended(self, framework: str, rank: Rank, key: object) -> None:
        """A call that may end a step has returned. Forked workers are not the program."""
        if os.getpid() != self.pid or is_in_backward():
            return
        thread, before = threading.current_thread(), self._sources.rank
        self._has_server |= thread is not threading.main_thread()
        if before is not None and rank >= before and thread is not self._thread:
            self._ended_elsewhere(rank, thread)
            return
        if self._elsewhere:
            self._elsewhere.clear()
        if self._sources.rank is Rank.LOOP and rank > Rank.LOOP:
            loop = self._loop_seen
            is_inside = loop is not None and loop.is_around(sys._getframe(1))
            if rank is not Rank.GRADIENT or is_inside:
                return
            self._sources.forget()  # that loop prepared the training
        with self._lock:
            self._framework, self._thread = framework, thread
            self._end_step(rank, key, sys._getframe(1))

    def _end_step(self, rank: Rank, key: object, frame: FrameType) -> None:
        self._ending = frame
        try:
            if self._sources.ended(rank, key):
                self._seen_steps += 1
                if self._seen_steps <= _SEEN_STEPS:
                    self.parts.add_step("step", frame)
        finally:
            self._ending = None

    def _ended_elsewhere(self, rank: Rank, thread: threading.Thread) -> None:
        """A call has returned on another thread than that whose calls end steps."""
        if self._is_spread and self._loopless is not None:
            self._loopless.request_ended()
            return
        with self._lock:
            self._elsewhere.append(thread)
            if len(self._elsewhere) < _GONE_AFTER or rank is not self._sources.rank:
                return
            calls = Counter(self._elsewhere)
            self._elsewhere.clear()
            on_main = calls[threading.main_thread()]
            if len(calls) == 1 or on_main >= _FEWEST_ON_MAIN:
                self._sources.forget()
            elif self._profiler is not None:
                self._profiler.discard()
                self._profiler, self._is_spread = None, True
                self.said.pop("step", None)
                self._record_by_time()

    def _on_better(self, rank: Rank) -> None:
        """Record steps of a better source, or of the next loop.

        What was recorded in the same loop was not of steps. Another loop's may be all there is.
        """
        before, what = self._profiler, self._what
        self._is_settled, self._seen_steps = False, 0
        self._say_step(rank)
        if self._model_calls is not None and rank < Rank.CALL:
            self._model_calls.stop()
        for windows in self._windows:
            windows.end()
        self._is_spread = False
        self._recordings = 0
        profiler = self._new_profiler()
        profiler.logs_summary = False  # the command says it
        profiler.recorded_by = "run"
        profiler.parts = self.parts
        profiler.samples.step_path = self.parts.step_path
        profiler.examiner = self._new_examiner(rank)
        if before is not None:
            is_other = before.loops.isdisjoint(loops_or_line(self._ending))
            profiler.follow(before, what if is_other else "")
        if rank is Rank.LOOP and self._ran is not None:
            profiler.has_run(*self._ran)
        self._profiler = profiler

    def _on_next(self) -> None:
        """Record another loop, too: what was recorded before may be of calibration."""
        self._seen_steps = 0
        self._profiler.begin_anew()

    def _new_examiner(self, rank: Rank) -> Examiner | RepeatedCalls | None:
        """What looks at tensors: those of PyTorch, also below Keras, or those of TensorFlow."""
        is_keras = self._framework == "keras"
        if self._framework == "torch" or (is_keras and _is_keras_on_torch()):
            from tb_perfadvisor.instrument.examination.examiner import Examiner

            return Examiner(may_serve=rank is Rank.CALL)
        return self._calls.repeated if is_keras else None

    def _new_profiler(self) -> ContinuousProfiler:
        from tb_perfadvisor.instrument.continuous.settings import make_profiler
        from tb_perfadvisor.instrument.ranks import rank_of_environment, rank_of_torch

        logdir, plan = self.settings["logdir"], self.settings["plan"]
        # A framework's tracer of Python would take the place of what tells of rounds.
        has_stacks = self._finder is None or not self._finder.rounds.is_costly
        if threading.current_thread() is not threading.main_thread():
            # One that makes few steps may end while it is recorded, which nobody else can end.
            plan = {**plan, "early": None}
        if self._framework == "torch":
            from tb_perfadvisor.instrument.continuous.recorders import TorchRecorder

            recorder = TorchRecorder(has_stacks=has_stacks)
            return make_profiler(logdir, recorder, rank_of_torch(), **plan)
        if self._framework == "python":
            from tb_perfadvisor.instrument.continuous.python_recorder import PythonRecorder

            return make_profiler(logdir, PythonRecorder(), rank_of_environment() or 0, **plan)
        if self._framework == "jax":
            import jax

            from tb_perfadvisor.instrument.continuous.recorders import JaxRecorder

            of_jax = JaxRecorder(has_stacks=has_stacks)
            return make_profiler(logdir, of_jax, jax.process_index(), **plan)
        from tb_perfadvisor.instrument.keras import profiler_of_backend

        return profiler_of_backend(logdir, plan)

    def _step_ended(self) -> None:
        self.said["steps"] += 1
        if self._sources.rank not in (None, Rank.LOOP, Rank.CALL):
            now_s = time.monotonic()
            self._trained_s = (self._trained_s or (now_s,))[0], now_s
        # A framework has one profiler, and what was begun by time may still be ending.
        if any(windows.is_recording for windows in self._windows):
            return
        self._profiler.step()
        if len(self._profiler.recordings) != self._recordings:
            self._recordings = len(self._profiler.recordings)
            self._tell_recordings()
            self.tell()

    # --- loops ------------------------------------------------------------------------------------

    def _wait_for_work(self) -> None:
        """Look for a loop in a program that imports no framework, too, when it has worked."""
        while (missing_s := _WORKED_S - time.process_time()) > 0:
            if self._waiting_for_work.ends.wait(max(missing_s, _LOOK_EVERY_S)):
                return
        self._find_loop()

    def _find_loop(self) -> None:
        """Look for the loop whose rounds are the steps, and for programs without any, once."""
        # An import and enough work may come at once. Neither waits: it may hold the import's lock.
        if self._may_find.acquire(blocking=False):
            from tb_perfadvisor.instrument.loop_finder import LoopFinder

            self._finder = LoopFinder(self)
            self._record_by_time()
            self._finder.start()

    def needs_loop(self) -> bool:
        """Whether no optimizer and no batch ends steps, and the loop tells more than calls do."""
        if self._has_server or self._is_settled:
            return False
        return self._computes(None, Rank.GRADIENT, Rank.CALL)

    def _computes(self, *ranks: Rank | None) -> bool:
        """Whether the program will not train soon, and has such steps."""
        return self._sources.rank in ranks and not self._may_train_soon()

    def known_steps(self) -> int:
        """How many steps were seen so far."""
        return int(self.said["steps"])

    def has_loop(self, loop: Loop, steps: float, seconds: float) -> bool:
        """Whether the calls that were taken for steps are, about one per round of a loop."""
        if self._framework_of_loop() == "jax":
            from tb_perfadvisor.errors import PerfAdvisorError
            from tb_perfadvisor.instrument.jax_session import require_working_profiler

            try:
                require_working_profiler()  # not on the main thread, which would wait for it
            except PerfAdvisorError:
                self._is_settled = True  # what records by time says why
                return True
        self._loop_seen, self._ran = loop, (loop.rounds, seconds)
        kind = "backward passes" if self._sources.rank is Rank.GRADIENT else "calls of a model"
        self._because = f", because it makes {steps:.0f} {kind}" if steps else ""
        self._is_settled = 0 < steps <= _ALIKE
        if self._is_settled and self._sources.rank is not None:
            self._say_step(self._sources.rank)
        return self._is_settled

    def round_ended(self, frame: FrameType) -> None:
        """A round of the loop ended."""
        if os.getpid() != self.pid or self._loop_seen is None or is_in_backward():
            return
        if self._sources.rank is not Rank.LOOP:
            self._framework = self._framework_of_loop()
            self._thread = threading.current_thread()
        with suppress(Exception):
            self._end_step(Rank.LOOP, self._loop_seen, frame)

    def goes_on(self, seconds: float) -> None:
        """Rounds of the loop went by that nobody counted."""
        if self._profiler is not None:
            self._profiler.goes_on(seconds)

    def may_forget_loop(self) -> None:
        """Another loop runs for longer: look for what ends its steps."""
        if self._sources.rank is Rank.LOOP:
            self._sources.forget()

    def has_enough(self) -> bool:
        """Whether a light and a rich recording of the loop are there."""
        is_asked = self._profiler is not None and self._profiler.is_asked
        return self._recordings >= _FEWEST_RECORDINGS and not is_asked

    def _record_by_time(self) -> None:
        """Record all threads for a while, unless steps are seen before."""
        from tb_perfadvisor.instrument.loopless_windows import LooplessWindows

        windows = LooplessWindows(self.settings, self.parts, self._hear)
        windows.framework = self._framework_of_loop
        windows.has_requests = self._is_spread
        self._loopless = windows
        self._windows.append(windows)
        windows.start(
            lambda: self._is_spread or (self._framework_of_loop() != "jax" and self._computes(None))
        )

    def _hear(self, what: str, text: str) -> None:
        """Tell the command what was recorded by time, or why nothing was."""
        self.said[what] = text
        self.tell()

    def _framework_of_loop(self) -> str:
        """Whose profiler records a loop."""
        imported = self.said["imported"]
        if "jax" in imported and jax_is_used():
            return "jax"
        if "torch" in imported:
            return "torch"
        if "tensorflow" in imported or "keras" in imported:
            return "keras"
        return "python"

    def _say_step(self, rank: Rank) -> None:
        place = self._loop_seen.place if self._loop_seen is not None else ""
        if rank is Rank.LOOP:
            self._what, self._why = f"a round of the loop at {place}", self._because
        else:
            where = f" in the loop at {place}" if self._is_settled else ""
            self._what, self._why = _ENDS_STEP[rank] + where, _BECAUSE.get(rank, "")

    # --- frameworks -------------------------------------------------------------------------------

    def _on_numpy(self, module: ModuleType) -> None:
        self.uses("numpy")
        self._find_loop()

    def _on_modules(self, module: ModuleType) -> None:
        from tb_perfadvisor.instrument.parts import watch_models

        watch_models(self.parts, vars(module)["Module"])

    def _on_loaders(self, module: ModuleType) -> None:
        from tb_perfadvisor.instrument.parts import watch_loaders

        watch_loaders(self.parts, vars(module)["DataLoader"])

    def _on_whole_torch(self, module: ModuleType) -> None:
        from tb_perfadvisor.instrument.step_hooks import ModelCalls, watch_gradients

        watch_gradients(vars(module)["autograd"], partial(self._ended, "torch"))
        self._model_calls = ModelCalls(partial(self._ended, "torch"))
        self._watching_models = SideThread(self._watch_models)
        self._watching_models.start()
        self._find_loop()

    def _watch_models(self) -> None:
        """Watch calls of models while the program does not train."""
        while self._may_not_train() and not self._watching_models.ends.wait(_LOOK_EVERY_S):
            if self._sources.rank not in (None, Rank.CALL):
                continue
            if not self._may_train_soon():
                with suppress(Exception):
                    self._model_calls.watch(self.parts.living("model"))
        self._model_calls.stop()

    def _may_train_soon(self) -> bool:
        """Whether the program has made an optimizer not long ago."""
        made_s = self._optimizer_made_s
        is_new = made_s is not None and time.monotonic() - made_s <= _UNUSED_S
        return is_new and not self._has_rested

    def _may_not_train(self) -> bool:
        """Whether calls of models may turn out to be the steps."""
        if self._sources.rank in (None, Rank.CALL):
            return True
        if self._has_rested or self._framework != "torch" or self._trained_s is None:
            return not self._has_rested and self._framework in ("", "torch")
        first_s, last_s = self._trained_s
        trained_s, rest_s = last_s - first_s, time.monotonic() - last_s
        if rest_s > max(_REST_S, _RESTS_LONGER * trained_s):
            self._has_rested, self._is_settled = True, False
            self._sources.forget()
        return trained_s < _TRAINED_S

    def _on_functions(self, module: ModuleType) -> None:
        self.uses("tensorflow")
        self._calls.watch_functions(vars(module)["Function"])

    def _on_tapes(self, module: ModuleType) -> None:
        self._calls.watch_tapes(vars(module)["GradientTape"])

    def _on_keras_optimizers(self, module: ModuleType) -> None:
        self._calls.watch_optimizers(vars(module)["BaseOptimizer"])

    def _on_keras(self, module: ModuleType) -> None:
        super()._on_keras(module)
        self._calls.watch_models(vars(module)["Model"])

    def _on_jax(self, module: ModuleType) -> None:
        """Record by time, until a loop is found."""
        from tb_perfadvisor.instrument.jax_windows import JaxWindows

        self.uses("jax")
        self._windows.append(JaxWindows(self.settings, self.parts, self._hear))
        self._windows[-1].start(lambda: self._sources.rank is None)


def _is_keras_on_torch() -> bool:
    import keras

    return bool(keras.backend.backend() == "torch")
