"""Records programs of JAX by time, until a loop is found: no call is made by each once per step.

The first recording begins as soon as nothing has been compiled for a moment, because a loop may
last a few seconds only. Later ones are longer and replace it; steps are inferred from what repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from tb_perfadvisor.instrument.parts import Parts
from tb_perfadvisor.instrument.program_loops import look_at_main
from tb_perfadvisor.instrument.stack_samples import outermost_compiling
from tb_perfadvisor.instrument.time_windows import TimeWindows

_LOOK_EVERY_S: Final = 0.02
_QUIET_S: Final = 0.2
"""Without a compilation for so long, the program runs what it has compiled."""
_LATEST_S: Final = 3.0
_MANY: Final = 10
"""A program that compiles all the time, many functions and not a large one, is recorded, too."""
_COMPILED: Final = "/jax/core/compile/backend_compile_duration"


class JaxWindows(TimeWindows):
    """Records windows of time of a program of JAX."""

    def __init__(
        self, settings: dict[str, Any], parts: Parts, tell: Callable[[str, str], None]
    ) -> None:
        """Prepare; `tell` as for all windows."""
        super().__init__(settings, parts, tell)
        self._compiled_s = 0.0
        self._compilations = self._compiled_before = 0

    def start(self, is_wanted: Callable[[], bool]) -> None:
        """Begin to wait for the program's computations."""
        import jax

        jax.monitoring.register_event_duration_secs_listener(self._on_event)
        super().start(is_wanted)

    def wait_for_work(self) -> bool:
        """Wait for the first compilation."""
        from tb_perfadvisor.instrument.jax_session import require_working_profiler

        while not self._compilations and not self.ends.is_set():
            self.ends.wait(_LOOK_EVERY_S)
        if self.ends.is_set() or not self.is_wanted:
            return False
        require_working_profiler()  # while the program compiles
        return True

    def wait_for_quiet(self) -> None:
        """Wait until the program runs what it has compiled, or has compiled many things."""
        computed_s, began_s, before = 0.0, time.monotonic(), self._compilations
        while computed_s < _LATEST_S and not self.ends.wait(_LOOK_EVERY_S):
            if look_at_main(lambda frame: outermost_compiling(frame) is not None):
                self._compiled_s = time.monotonic()
            else:
                computed_s += _LOOK_EVERY_S
            now_s = time.monotonic()
            compiles_always = self._compilations - before >= _MANY and now_s - began_s >= _LATEST_S
            if now_s - self._compiled_s >= _QUIET_S or compiles_always:
                break

    def start_trace(self, directory: Path, *, is_rich: bool) -> None:
        """Begin a recording."""
        from tb_perfadvisor.instrument.jax_session import start_trace

        look_at_main(partial(self.parts.add_step, "loop"))
        self._compiled_before = self._compilations
        start_trace(directory, is_rich=is_rich)

    def stop_trace(self, directory: Path) -> None:
        """End it, and write it."""
        from tb_perfadvisor.instrument.jax_session import stop_trace

        stop_trace(directory)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was compiled since the last start."""
        return self._compilations == self._compiled_before

    def _on_event(self, event: str, duration_s: float, **_: Any) -> None:
        if event == _COMPILED:
            self._compiled_s = time.monotonic()
            self._compilations += 1
