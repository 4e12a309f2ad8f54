"""Writes what a version leaves with its users: settings, a cache and exported reports.

    python -m tests.upgrades.write

Run it once for each release, and commit the archive that it writes. Until a version is released,
its archive may be written again; after that it never changes.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import tempfile
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import msgspec

from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.plugin import worker
from tb_perfadvisor.testing import draw
from tb_perfadvisor.version import VERSION
from tests.support.command import run
from tests.support.writers import write_kineto

FOLDER = Path(__file__).parent
PROFILE = "worker0.1700000000000000000.pt.trace.json"
SLOW = """
    cell 1ms
    step   |..........|..........|..........|..........|
    main   |DDDDoo....|DDDDoo....|DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|.....KKKKK|.....KKKKK|
"""
FIXED = """
    cell 1ms
    step   |......|......|......|......|
    main   |oo....|oo....|oo....|oo....|
    gpu 7  |.KKKKK|.KKKKK|.KKKKK|.KKKKK|
"""
SETTINGS = """\
select = ["input-stall", "loader-in-main-process", "step-gap"]
ignore = ["step-gap"]
parameters = 7_000_000
link_bandwidth_gb_per_s = 50.0
device = "H100 SXM5 80GB"
tokens_per_step = 4096
price_per_device_hour = 2.5
total_steps = 10_000

[limits.input-stall]
minimum_share = 0.1
"""
EXPORTS = ("json", "html", "markdown", "sarif", "brief", "text")


def write_profiles(logdir: Path) -> None:
    """Write a slow and a fixed run."""
    for name, drawing in (("slow", SLOW), ("fixed", FIXED)):
        (logdir / name).mkdir(parents=True)
        (logdir / name / PROFILE).write_bytes(write_kineto(draw(drawing)))


def main() -> None:
    """Write the archive of this version."""
    archive = FOLDER / f"{VERSION}.tar.gz"
    with (
        tempfile.TemporaryDirectory() as scratch,
        patch.dict("os.environ", PERFADVISOR_CACHE_DIR=str(Path(scratch, "used"))),
    ):
        os.chdir(scratch)  # no path of this machine belongs into the files
        logdir, kept = Path("runs"), Path("kept")
        write_profiles(logdir)
        kept.mkdir()
        (kept / "perfadvisor.toml").write_text(SETTINGS, encoding="utf-8")
        for format in EXPORTS:
            output = kept / f"report.{format}"
            run("analyze", logdir / "slow", "--format", format, "--output", output)
        _without_bundle(kept / "report.html")
        runs = (logdir / "slow", logdir / "fixed")
        run("compare", *runs, "--format", "json", "--output", kept / "comparison.json")
        shutil.copytree(Path("used", "entries"), kept / "cache")
        _write_entry_of_the_tab(logdir, kept / "tab")
        with tarfile.open(archive, "w:gz") as file:
            file.add(kept, arcname=".")


def _without_bundle(page: Path) -> None:
    """Leave out the tab's code, which is large and stays the same for all reports."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r'(<script type="(?:module|text/plain)"[^>]*>).*?(</script>)', r"\1\2", text,
                  flags=re.DOTALL)  # fmt: skip
    page.write_text(text, encoding="utf-8")


def _write_entry_of_the_tab(logdir: Path, target: Path) -> None:
    (capture,) = (each for each in discover(logdir).captures if each.run == "slow")
    target.mkdir()
    (target / worker.CAPTURE).write_bytes(msgspec.json.encode(capture))
    with redirect_stderr(StringIO()):
        assert worker.main(["--output", str(target), "--root", str(logdir.absolute())]) == 0


if __name__ == "__main__":
    main()
