"""Replaces the worker: does what the environment variable FAKE_WORKER says."""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tb_perfadvisor.plugin import worker, worker_process

FAKE_WORKER = (sys.executable, str(Path(__file__).resolve()))


def say(**line: object) -> None:
    print(json.dumps(line), file=sys.stderr, flush=True)


def until(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def parser() -> argparse.ArgumentParser:
    options = worker.parser_of_options("fake_worker")
    options.add_argument("--report-id")
    return options


def run(module: str, arguments: Sequence[str]) -> int:
    options, _ = parser().parse_known_args(arguments)
    log = Path(os.environ["FAKE_WORKER_LOG"])
    with log.open("a") as stream:
        stream.write(f"{os.getpid()} {options.report_id}\n")
    match os.environ["FAKE_WORKER"]:
        case "good":
            pass
        case "large":
            worker_process._most_bytes = lambda: 2 << 30
        case "gate":
            say(stage="checking rules", progress=0.25)
            until(log.with_name("gate"))
        case "forever":
            time.sleep(600)
        case "crash":
            print("Traceback: something internal /secret/path", file=sys.stderr)
            return 1
        case "signal":
            os.abort()
        case "killed":
            os.kill(os.getpid(), 9)
        case "input":
            error = {"kind": "input", "message": "it is broken.", "where": "a.json", "hint": "h"}
            say(error=error)
            return 2
        case "memory":
            try:
                bytearray(4 << 30)
            except MemoryError as error:
                say(error=worker._describe(error, options))
                return 2
    for name in ("report.json", "views.json", "window.npz"):
        (options.output / name).write_bytes(b"{}")
    row = {
        "framework": "pytorch",
        "device": "CPU",
        "is_synthetic": False,
        "step_time_ns": 1_000_000,
        "headline": "h",
        "first_change": "Use workers",
        "finding": "loader-in-main-process",
        "saves_share": 0.25,
        "severity": "high",
    }
    (options.output / "row.json").write_text(json.dumps({"row": row, "pace": None}))
    return 0


if __name__ == "__main__":
    sys.exit(worker_process.serve(run, lambda: None))
