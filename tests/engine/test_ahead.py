"""A file read in a fork: the same result, the same errors, and no fork where one may hang."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

DEMO = Path(__file__).resolve().parents[2] / "demo_logs" / "pytorch_input_slow"

forks = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has what this needs")

# In a process that has imported nothing yet, as the command's is; `DO` stands for what follows.
SCRIPT = """
import os, sys
from tb_perfadvisor.execution import ahead
from tb_perfadvisor.ingest.discovery import discover
os.sched_getaffinity = lambda process: {0, 1}
listing = discover(sys.argv[1])
begun = ahead.begin_reading(listing.root, listing.captures)
DO
"""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A real trace, not compressed: large enough for a fork."""
    (packed,) = DEMO.glob("**/*.pt.trace.json.gz")
    file = tmp_path / "worker0.pt.trace.json"
    file.write_bytes(gzip.decompress(packed.read_bytes()))
    assert file.stat().st_size > 300_000
    return file


OPTIONS = ("analyze", "--no-cache", "--format", "json")


def run(do: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("DO", do), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def report(*arguments: object) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "tb_perfadvisor", *OPTIONS, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (found,) = json.loads(done.stdout)["reports"]
    for outcome in found["outcomes"]:
        outcome["elapsed_ms"] = 0
    return found


@forks
def test_a_fork_reads_what_the_process_would(large: Path) -> None:
    assert report(large) == report(large, "--workers", 1)
    done = run(
        "with begun: worker = begun.read()\n"
        "from tb_perfadvisor.ingest.load import read_worker\n"
        "capture = listing.captures[0]\n"
        "own = read_worker(listing.root, capture, capture.files, None, True)\n"
        "assert worker.source == own.source and worker.trace.strings == own.trace.strings\n"
        "for table in ('events', 'operators', 'memory', 'tracks'):\n"
        "    ours, theirs = getattr(worker.trace, table), getattr(own.trace, table)\n"
        "    for name in ours.__struct_fields__:\n"
        "        column = getattr(ours, name)\n"
        "        assert column.tolist() == getattr(theirs, name).tolist(), name\n"
        "        assert not column.flags.writeable, name\n"
        "print(len(worker.trace.events))",
        large,
    )
    assert done.stderr == ""
    assert int(done.stdout) > 1000


@forks
def test_two_forks_decode_the_events_of_an_xplane() -> None:
    (file,) = (DEMO.parent / "jax_recompiling").glob("**/*.xplane.pb")
    done = run(
        "begun.__exit__(None, None, None)\n"
        "os.environ['OPENBLAS_NUM_THREADS'] = '1'\n"
        "from tb_perfadvisor.ingest.load import read_worker\n"
        "from tb_perfadvisor.ingest.xplane import halves\n"
        "halves._WORTH_BYTES = 100_000\n"
        "alone = halves.read_rest\n"
        "def read_rest(stream, middle):\n"
        "    runs = alone(stream, middle)\n"
        "    print(len(runs), 'runs', flush=True)\n"
        "    return runs\n"
        "halves.read_rest = read_rest\n"
        "capture = listing.captures[0]\n"
        "with ahead.begin_reading(listing.root, listing.captures) as begun:\n"
        "    worker = begun.read()\n"
        "own = read_worker(listing.root, capture, capture.files, None, True)\n"
        "for name in own.trace.events.__struct_fields__:\n"
        "    ours, theirs = (getattr(one.trace.events, name) for one in (own, worker))\n"
        "    assert ours.tolist() == theirs.tolist(), name\n"
        "assert worker.trace.strings == own.trace.strings",
        file,
    )
    assert done.stderr == ""
    count, what = done.stdout.split()
    assert (int(count) > 0, what) == (True, "runs")


@forks
def test_what_is_no_profile_is_refused_in_the_same_words(tmp_path: Path) -> None:
    file = tmp_path / "worker0.pt.trace.json"
    # Looks like a trace for as long as one looks before reading it.
    file.write_text('{"schemaVersion": 1, "traceEvents": [' + " " * 400_000 + "nothing")
    said = [
        subprocess.run(
            [sys.executable, "-m", "tb_perfadvisor", "analyze", str(file), *options],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        for options in ((), ("--workers", "1"))
    ]
    assert said[0].returncode == said[1].returncode
    assert said[0].stderr == said[1].stderr
    assert "Traceback" not in said[0].stderr


@forks
def test_a_fork_that_is_killed_is_said(large: Path) -> None:
    done = run(
        "import os, signal\nos.kill(begun._fork._fork, signal.SIGKILL)\n"
        "try: begun.read()\n"
        "except Exception as error: print(type(error).__name__, error)",
        large,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("UnreadableProfileError worker0.pt.trace.json: a process that")


@forks
def test_a_fork_that_nobody_asks_is_gone(large: Path) -> None:
    done = run(
        "with begun: pid = begun._fork._fork\n"
        "try: os.kill(pid, 0)\n"
        "except ProcessLookupError: print('gone')",
        large,
    )
    assert done.stdout == "gone\n", done.stderr


@forks
def test_a_fork_ends_with_its_parent(large: Path) -> None:
    slow = """
begun.__exit__(None, None, None)
class Slow:
    def reader_of(self, format):
        return None
    def open_profile(self, root, file):
        return open(os.path.join(root, file.path), "rb")
    def read_worker(self, *arguments):
        import time
        time.sleep(50)
sys.modules["tb_perfadvisor.ingest.load"] = Slow()
begun = ahead.begin_reading(listing.root, listing.captures)
print(begun._fork._fork, flush=True)
os.kill(os.getpid(), 9)
"""
    fork = Path("/proc", run(slow, large).stdout.strip())
    for _ in range(100):
        if not fork.exists():
            return
        time.sleep(0.05)
    pytest.fail("the fork is still there")


@forks
@pytest.mark.parametrize(
    "start",
    [
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        # One that Python's `threading` does not count, as libraries have.
        "import _thread, time; _thread.start_new_thread(time.sleep, (50,))",
    ],
)
def test_none_beside_threads(large: Path, start: str) -> None:
    again = f"{start}\nprint(ahead.begin_reading(listing.root, listing.captures))"
    assert run(f"begun.__exit__(None, None, None)\n{again}", large).stdout == "None\n"


@forks
def test_none_where_python_lacks_shared_memory(large: Path) -> None:
    do = (
        "begun.__exit__(None, None, None)\n"
        "del os.memfd_create\n"
        "print(ahead.begin_reading(listing.root, listing.captures))"
    )
    done = run(do, large)
    assert (done.stdout, done.stderr) == ("None\n", "")


@forks
def test_what_both_need_is_imported_beside_one_another(large: Path) -> None:
    do = (
        "begun.__exit__(None, None, None)\n"
        "ahead.stand_by()\n"
        "print('numpy' in sys.modules, ahead._standing_by is not None)\n"
        "ahead.dismiss()"
    )
    done = run(do, large)
    assert (done.stdout, done.stderr) == ("False True\n", "")


@forks
@pytest.mark.parametrize(
    "reads",
    [
        "",  # what is read by one leaves the other processor from the beginning on
        # Ended from outside: there is nothing to wait for.
        "import signal; os.kill(begun._fork._fork, signal.SIGKILL)\n",
        "os.sched_getaffinity = lambda process: {0, 1, 2}\n",
    ],
)
def test_one_processor_left_is_not_waited_for(large: Path, reads: str) -> None:
    done = run(f"{reads}begun.make_way()\nprint('way')\nbegun.__exit__()", large)
    assert (done.stdout, done.stderr) == ("way\n", "")


@forks
def test_none_for_small_files_or_several(large: Path) -> None:
    small = run("print(begun)", DEMO)
    assert small.stdout == "None\n", small.stderr
    (large.parent / "worker1.pt.trace.json").write_bytes(large.read_bytes())
    assert run("print(begun)", large.parent).stdout == "None\n"


@forks
def test_a_long_file_is_read_in_halves(large: Path) -> None:
    halves = (
        "begun.__exit__(None, None, None)\n"
        "real = ahead._in_halves\n"
        "def in_halves(*arguments):\n"
        "    from tb_perfadvisor.ingest.kineto import halves, reader\n"
        "    halves._WORTH_BYTES = 100_000\n"
        "    both = reader.both\n"
        "    def told(*arguments):\n"
        "        os.write(1, b'joined ')\n"
        "        return both(*arguments)\n"
        "    reader.both = told\n"
        "    return real(*arguments)\n"
        "ahead._in_halves = in_halves\n"
        "tell = ahead._tell\n"
        "def told_first(idling):\n"
        "    os.write(1, b'half ')\n"
        "    tell(idling)\n"
        "ahead._tell = told_first\n"
        "begun = ahead.begin_reading(listing.root, listing.captures)\n"
        "begun.make_way()\n"
        "os.write(1, b'way ')\n"
        "worker = begun.read()\n"
        "from tb_perfadvisor.ingest.load import read_worker\n"
        "capture = listing.captures[0]\n"
        "own = read_worker(listing.root, capture, capture.files, None, True)\n"
        "for name in ('start_ns', 'duration_ns', 'parent', 'launched_by', 'forward'):\n"
        "    ours, theirs = getattr(worker.trace.events, name), getattr(own.trace.events, name)\n"
        "    assert ours.tolist() == theirs.tolist(), name\n"
        "rows = range(len(own.trace.events))\n"
        "assert list(map(worker.trace.name, rows)) == list(map(own.trace.name, rows))\n"
        "print('alike')"
    )
    done = run(halves, large)
    assert done.stderr == ""
    first, *others, last = done.stdout.split()
    # The halves end in any order; what joins them has both, and the command waits for one.
    assert (first, sorted(others), last) == ("half", ["half", "joined", "way"], "alike")
    assert others.index("half") < others.index("joined")


@forks
@pytest.mark.parametrize("how", ["several files", "nothing", "no such option"])
def test_what_stands_by_in_vain_is_gone(large: Path, how: str) -> None:
    arguments = {
        "several files": [large.parent],
        "nothing": [large.parent / "nothing"],
        "no such option": [large, "--wrong"],
    }[how]
    (large.parent / "worker1.pt.trace.json").write_bytes(large.read_bytes())
    # Through pipes that both hold open: this returns when the last of them has ended.
    done = subprocess.run(
        [sys.executable, "-m", "tb_perfadvisor", *OPTIONS, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == (0 if how == "several files" else 2)
    assert "Traceback" not in done.stderr


@forks
def test_begins_with_what_stands_by(large: Path) -> None:
    do = (
        "begun.__exit__(None, None, None)\n"
        "ahead.stand_by()\n"
        "waiting = ahead._standing_by\n"
        "begun = ahead.begin_reading(listing.root, listing.captures)\n"
        "print(begun is waiting, ahead._standing_by, len(begun.read().trace.events) > 1000)"
    )
    done = run(do, large)
    assert (done.stdout, done.stderr) == ("True None True\n", "")


@forks
def test_one_who_asks_for_help_waits_for_nobody() -> None:
    # Where what stands by takes long to get ready.
    slow = (
        "import sys, time\n"
        "from tb_perfadvisor import __main__\n"
        "from tb_perfadvisor.execution import ahead\n"
        "ahead._prepare = lambda asked, asking: time.sleep(50)\n"
        "ahead.can_fork = lambda: True\n"
        "sys.argv[1:] = ['analyze', '--help']\n"
        "__main__.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", slow], capture_output=True, text=True, timeout=30, check=True
    )
    assert "Analyze every capture" in done.stdout
    assert done.stderr == ""


@forks
def test_a_kept_report_waits_for_no_reader(large: Path, tmp_path: Path) -> None:
    told = (
        "import os, sys\n"
        "from tb_perfadvisor import __main__\n"
        "from tb_perfadvisor.execution import ahead\n"
        "ahead.can_fork = lambda: True\n"
        "ahead.Ahead.make_way = lambda self: os.write(2, b'waits')\n"
        f"sys.argv[1:] = ['analyze', {str(large)!r}, '--format', 'json']\n"
        "__main__.main()"
    )
    first, second = (
        subprocess.run(
            [sys.executable, "-c", told],
            env={**os.environ, "PERFADVISOR_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        for _ in range(2)
    )
    assert (first.stderr, second.stderr) == ("waits", "")
    assert first.stdout == second.stdout
