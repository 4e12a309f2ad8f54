"""Records each of a set of small programs with `perfadvisor run`, and compares step times.

python -m tests.frameworks.recorded_programs [NAME...]
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from msgspec import Struct

from tb_perfadvisor import analyze_all
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import load_capture
from tb_perfadvisor.report.report import Report

PROGRAMS = Path(__file__).parent / "programs"
_OWN = re.compile(r"^own step: ([\d.]+) ms$", re.MULTILINE)


class Recorded(Struct, frozen=True):
    """What came of recording a program."""

    name: str
    said: str
    own_ms: float | None
    """The median step by the program's own clock."""
    reports: tuple[Report, ...]
    rich: dict[str, bool]
    """Whether each report is of a rich recording, by its id."""
    whole_s: float

    @property
    def report(self) -> Report | None:
        """Of the last light recording with steps; of a rich one if there is no other."""
        order = sorted(self.reports, key=lambda each: (each.steps.used > 0, not self.rich[each.id]))
        return order[-1] if order else None

    @property
    def step_ms(self) -> float | None:
        """The median step by that report; None without steps."""
        report = self.report
        if report is None or report.steps.median_ns is None:
            return None
        return report.steps.median_ns / 1e6


def record(name: str, folder: Path) -> Recorded:
    """Record one of the programs in a process of its own."""
    program = shutil.copy(PROGRAMS / f"{name}.py", folder)
    command = [sys.executable, "-m", "tb_perfadvisor", "run", "--logdir", str(folder / "run")]
    began_s = time.monotonic()
    done = subprocess.run(
        [*command, "--", sys.executable, Path(program).name],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    whole_s = time.monotonic() - began_s
    assert done.returncode == 0, done.stderr[-3000:]
    own = _OWN.search(done.stdout)
    listing = discover(folder)
    runs = {each.id: load_capture(listing, each) for each in listing.captures}
    return Recorded(
        name,
        "\n".join(line for line in done.stderr.splitlines() if line.startswith("note:")),
        float(own[1]) if own else None,
        tuple(analyze_all(folder)) if runs else (),
        {key: bool(run.traces[0].facts.recording.is_rich) for key, run in runs.items()},
        whole_s,
    )


def main() -> None:
    """Print one line per program."""
    names = sys.argv[1:] or sorted(path.stem for path in PROGRAMS.glob("*.py"))
    with_steps = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            found = record(name, Path(folder))
            report = found.report
            if report is None or found.step_ms is None or found.own_ms is None:
                print(f"{name:24} NOT RECORDED  {found.said}", flush=True)
                if report is not None:
                    print("   ", [note.message for note in report.notes][:3], flush=True)
                continue
            with_steps += 1
            first = report.findings[report.first.index].title if report.first else "-"
            print(
                f"{name:24} {len(found.reports)} recordings, {report.steps.used:3} steps by "
                f"{report.steps.source[:30]:30} {found.step_ms:8.2f} ms, own {found.own_ms:8.2f}, "
                f"ratio {found.step_ms / found.own_ms:.2f}, {report.workload.mode}, {first[:60]}",
                flush=True,
            )
    print(f"{with_steps} of {len(names)} recorded with steps")


if __name__ == "__main__":
    main()
