"""What is stored beside a profile that the program records itself, as beside one of `run`."""

from __future__ import annotations

import sys
from pathlib import Path

from tb_perfadvisor.instrument.capture_facts import LoadMeter, add_seen, write_facts
from tb_perfadvisor.instrument.examination.examiner import Examiner
from tb_perfadvisor.instrument.parts import Parts
from tb_perfadvisor.instrument.stack_samples import StackSamples
from tb_perfadvisor.machine.facts import Recording

_SEEN_STEPS = 3
"""The first steps show which loop makes them."""


class ProfileFacts:
    """Sees the steps around a profile: their lines, and after it the tensors of a few."""

    def __init__(self, parts: Parts, *, is_rich: bool, steps: int) -> None:
        self._parts = parts
        self._is_rich = is_rich
        self._steps = steps
        self._number = 0
        self._files: tuple[Path, ...] = ()
        self._looked_at = 0
        """So many of them know what was found in their loop."""
        self._samples = StackSamples()
        self._samples.step_path = parts.step_path
        self._examiner = Examiner()
        self._load = LoadMeter()
        self._load.begin()

    def step(self) -> None:
        """A step ended."""
        self._number += 1
        if self._number <= _SEEN_STEPS:
            self._parts.add_step("step", sys._getframe(1))
        self._samples.step()
        if self._examiner.step():
            self._samples.go_on()
            self._add_found()

    def began(self) -> None:
        """The profiler runs from now on."""
        self._samples.pause()

    def written(self, capture: Path) -> None:
        """A profile was written, and the next step begins."""
        recording = Recording(by="profile", is_rich=self._is_rich)
        load = self._load.end()
        self._files += write_facts([capture], recording, load, self._parts, self._samples)
        self._samples.go_on()
        self._load.begin()
        self._examiner.begin(self._steps)
        if self._examiner.is_running:
            self._samples.pause()

    def close(self) -> None:
        """The program records no more."""
        self._examiner.end()
        self._samples.stop()
        self._add_found()
        add_seen(self._files, self._samples, None)

    def _add_found(self) -> None:
        add_seen(self._files[self._looked_at :], self._samples, self._examiner.found)
        self._looked_at = len(self._files)
