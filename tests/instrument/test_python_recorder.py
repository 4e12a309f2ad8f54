"""What is written of a program without a framework."""

from __future__ import annotations

import gzip
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from tb_perfadvisor import analyze
from tb_perfadvisor.instrument.continuous.python_recorder import PythonRecorder, _functions
from tb_perfadvisor.machine.facts import SUFFIX, Facts, Line, Lines

MS = 1_000_000


def load() -> None:
    pass


def clean() -> None:
    pass


def test_steps_and_functions_are_in_the_report(tmp_path: Path) -> None:
    recorder = PythonRecorder()
    recorder.start(tmp_path, 20, 5, is_rich=False)
    recorder._marks = [(time.time_ns() - 300 * MS, 20)]
    assert [recorder.step() for _ in range(5)] == [False, False, False, False, True]
    recorder._thread.ends.set()
    # Five steps of 30 ms: 20 ms of loading, then 10 ms of cleaning.
    recorder._marks = [(number * 30 * MS, 20 + number) for number in range(6)]
    recorder._looks = [
        (number * 30 * MS + at * MS, [(load if at < 20 else clean).__code__])
        for number in range(5)
        for at in range(30)
    ]
    recorder._looks.append((151 * MS, [load.__code__]))  # after the last step
    recorder.stop()
    report = analyze(tmp_path)
    assert report.framework == "none"
    assert (report.steps.used, report.steps.mean_ns) == (5, 30 * MS)
    (path,) = tmp_path.glob("*.pt.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    spans = {(each["name"].split(": ")[-1], each["dur"]) for each in events}
    assert {("load", 20_000.0), ("clean", 10_000.0)} <= spans
    assert min(each["dur"] for each in events) > 0


def test_short_steps_are_recorded_until_there_are_looks(tmp_path: Path) -> None:
    recorder = PythonRecorder()
    recorder.start(tmp_path, 20, 5, is_rich=False)
    recorder._marks = [(time.time_ns() + 1_000_000 * MS, 20)]  # no time has passed
    assert not any(recorder.step() for _ in range(50))
    recorder._marks[0] = (time.time_ns() - 300 * MS, 20)
    assert recorder.step()
    recorder.stop()


def test_a_recording_without_steps_is_checked(tmp_path: Path) -> None:
    recorder = PythonRecorder()
    recorder.start(tmp_path, 0, 1, is_rich=False)
    recorder._thread.ends.set()
    recorder._looks = [(time.time_ns(), [load.__code__])]
    recorder.stop()
    lines = Lines(10.0, 200, (Line("train.py", 84, 0.5, "callback", side_work="figures"),))
    (path,) = tmp_path.glob("*.pt.trace.json.gz")
    facts = path.with_name(path.name.replace(".pt.trace.json.gz", SUFFIX))
    facts.write_bytes(msgspec.json.encode(Facts(lines=lines)))
    report = analyze(tmp_path)
    assert (report.steps.source, report.steps.used) == ("none", 0)
    assert report.findings[0].rule_id == "side-work-in-loop"


def test_what_a_recorder_calls_is_none_of_the_program() -> None:
    seen: list[list[str]] = []

    def wait() -> None:  # as Python's library does when a thread starts
        seen.append([code.co_name for code in _functions(sys._getframe())])

    recorder: dict[str, Any] = {"__name__": "tb_perfadvisor.instrument.continuous.profiler"}
    exec("def step(wait): wait()", recorder)
    recorder["step"](wait)
    wait()
    assert seen[0] == seen[1][:-1]
    assert seen[1][-2:] == ["test_what_a_recorder_calls_is_none_of_the_program", "wait"]
