"""Stores beside a capture what it cannot tell itself: the machine, the program, the load."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from tb_perfadvisor.ingest.trace_names import stem_of
from tb_perfadvisor.instrument.examination.examiner import Examiner
from tb_perfadvisor.instrument.parts import Parts
from tb_perfadvisor.instrument.stack_samples import StackSamples
from tb_perfadvisor.instrument.user_code import is_user_file, shown_path
from tb_perfadvisor.machine.facts import (
    SUFFIX,
    Examined,
    Facts,
    Load,
    Machine,
    Program,
    Recording,
    Threads,
)
from tb_perfadvisor.machine.this_machine import (
    Moment,
    available_bytes,
    family_of,
    load_between,
    moment,
    open_cores,
    this_machine,
)

_CAPTURES: Final = (".pt.trace.json", ".pt.trace.json.gz", ".xplane.pb")
_SECRET: Final = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_MOST_ARGUMENTS: Final = 200
_MOST_FILES: Final = 10_000
_TEXT: Final = 1000


class LoadMeter:
    """Measures how busy the cores are from one moment to another."""

    def __init__(self) -> None:
        self._cores = open_cores()
        self._before: Moment | None = None
        self._began_s = 0.0

    def begin(self) -> None:
        """A recording begins."""
        self._before, self._began_s = self._now(), time.monotonic()

    def end(self) -> Load | None:
        """It has ended; None if the system does not tell."""
        load = load_between(self._before, self._now())
        seconds = round(time.monotonic() - self._began_s, 3)
        return replace(load, seconds=seconds) if load is not None else None

    def _now(self) -> Moment | None:
        return moment(family_of(os.getpid()), self._cores) if self._cores else None


def write_facts(
    files: Iterable[Path],
    recording: Recording,
    load: Load | None,
    parts: Parts | None,
    samples: StackSamples | None,
) -> tuple[Path, ...]:
    """Store facts beside each capture among some files; returns the files that were written."""
    captures = [file for file in files if file.name.endswith(_CAPTURES)]
    if not captures:
        return ()
    facts = Facts(
        machine=replace(_machine(), available_bytes=available_bytes()),
        threads=_threads(),
        load=load,
        program=_program(parts),
        lines=samples.lines if samples is not None else None,
        recording=recording,
    )
    data = msgspec.json.encode(facts)
    written = []
    for capture in captures:
        target = capture.with_name(stem_of(capture.name) + SUFFIX)
        with suppress(OSError):
            target.write_bytes(data)
            written.append(target)
    return tuple(written)


def add_seen(files: Iterable[Path], samples: StackSamples, examined: Examined | None) -> None:
    """Store what has been seen up to now beside captures that were written before.

    Nothing that was examined leaves what is stored as it is.
    """
    lines = samples.lines
    for file in files:
        if file.name.endswith(SUFFIX):
            with suppress(OSError, msgspec.MsgspecError):
                facts = msgspec.json.decode(file.read_bytes(), type=Facts)
                facts = replace(facts, lines=lines, examined=examined or facts.examined)
                file.write_bytes(msgspec.json.encode(facts))


@cache
def _machine() -> Machine:
    return this_machine()


def _program(parts: Parts | None) -> Program:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    modules = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
    own = {Path(file).name for file in modules if file and is_user_file(file)}
    return Program(
        script=shown_path(str(main))[:_TEXT] if main else "",
        arguments=tuple(_without_secrets(sys.argv[1:])),
        start_method=multiprocessing.get_start_method(allow_none=True)
        or multiprocessing.get_all_start_methods()[0],
        made=parts.all() if parts is not None else (),
        files=tuple(sorted(own))[:_MOST_FILES],
    )


def _without_secrets(arguments: list[str]) -> list[str]:
    shown = []
    is_value = False
    for argument in arguments[:_MOST_ARGUMENTS]:
        option, equals, _ = argument.partition("=")
        is_option = argument.startswith("-")
        is_secret = is_option and _SECRET.search(option) is not None
        if is_value and not is_option:
            shown.append("…")
        else:
            shown.append(f"{option}=…" if is_secret and equals else argument[:_TEXT])
        is_value = is_secret and not equals
    return shown


def _threads() -> Threads:
    torch: Any = sys.modules.get("torch")
    tensorflow: Any = sys.modules.get("tensorflow")
    intra = inter = None
    with suppress(Exception):
        if torch is not None:
            intra, inter = torch.get_num_threads(), torch.get_num_interop_threads()
        elif tensorflow is not None:
            # 0 stands for the runtime's default, which is all cores.
            threading = tensorflow.config.threading
            intra = threading.get_intra_op_parallelism_threads() or len(open_cores()) or None
            inter = threading.get_inter_op_parallelism_threads() or len(open_cores()) or None
    return Threads(intra, inter, _threads_of_process())


def _threads_of_process() -> int | None:
    with suppress(OSError):
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - only counted
    return None


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
