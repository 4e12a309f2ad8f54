"""The queue of background analyses."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tb_perfadvisor.execution.limits import limits_from_environment
from tb_perfadvisor.plugin import jobs
from tb_perfadvisor.plugin.jobs import (
    Failure,
    Job,
    JobQueue,
    JobState,
    Limits,
)
from tests.support.fake_worker import FAKE_WORKER
from tests.support.waiting import eventually

Behave = Callable[[str], Path]


class Bench:
    """A queue with the fake worker, and the outcomes of its jobs."""

    def __init__(
        self,
        directory: Path,
        limits: Limits = Limits(60, 0),  # noqa: B008
        at_once: int = 1,
    ) -> None:
        self.directory = directory
        self.queue = JobQueue(limits, FAKE_WORKER, at_once)
        self.finished: list[tuple[str, bool, bool]] = []

    def submit(self, key: str) -> None:
        def prepare() -> Path:
            path = self.directory / f"out-{key}"
            path.mkdir()
            return path

        def finish(path: Path, is_good: bool) -> None:
            self.finished.append((key, is_good, (path / "report.json").exists()))

        self.queue.submit(Job(key, ("--root", "r", "--report-id", key), prepare, finish))

    def failure(self, key: str) -> Failure:
        eventually(lambda: (s := self.queue.state(key)) is not None and s.status == "failed")
        state = self.queue.state(key)
        assert state is not None
        assert state.failure is not None
        return state.failure


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.queue.close()


def test_canceled_job_can_be_queued_again_while_its_process_ends(
    tmp_path: Path, behave: Behave
) -> None:
    log = behave("good")
    ended, made = threading.Event(), []
    queue = JobQueue(Limits(60, 0), FAKE_WORKER)

    def prepare() -> Path:
        made.append(len(made))
        if len(made) == 1:
            assert ended.wait(15)  # like a process that is slow to end
        path = tmp_path / f"out-{len(made)}"
        path.mkdir()
        return path

    job = Job("a", ("--root", "r", "--report-id", "a"), prepare, lambda *_: None)
    try:
        queue.submit(job)
        eventually(lambda: made == [0])
        assert queue.cancel("a")
        queue.submit(job)
        assert queue.state("a") == JobState("queued", "waiting", queue_position=0)
        ended.set()
        eventually(lambda: queue.state("a") is None)
    finally:
        queue.close()
    # The first was canceled before its process started.
    assert len(starts_in(log)) == 1


def test_job_with_an_existing_result_does_not_run(tmp_path: Path, behave: Behave) -> None:
    log = behave("good")
    queue = JobQueue(Limits(60, 0), FAKE_WORKER)
    try:
        queue.submit(Job("a", (), lambda: tmp_path, lambda *_: None, is_done=lambda: True))
        eventually(lambda: queue.state("a") is None)
    finally:
        queue.close()
    assert starts_in(log) == []


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def starts_in(log: Path) -> list[tuple[int, str]]:
    if not log.exists():
        return []
    lines = [line.split() for line in log.read_text().splitlines()]
    return [(int(pid), capture) for pid, capture in lines]


def test_finished_job_hands_over_its_directory(bench: Bench, behave: Behave) -> None:
    behave("good")
    bench.submit("a")
    eventually(lambda: bench.finished == [("a", True, True)])
    eventually(lambda: bench.queue.state("a") is None)


def test_jobs_run_one_at_a_time_in_order(bench: Bench, behave: Behave) -> None:
    log = behave("gate")
    for key in ("a", "b", "c", "b"):
        bench.submit(key)
    expected = JobState("running", "checking rules", 0.25)
    eventually(lambda: bench.queue.state("a") == expected)
    assert [bench.queue.state(k) for k in "bc"] == [
        JobState("queued", "waiting", queue_position=0),
        JobState("queued", "waiting", queue_position=1),
    ]
    assert [capture for _, capture in starts_in(log)] == ["a"]
    log.with_name("gate").touch()
    eventually(lambda: len(bench.finished) == 3)
    assert [capture for _, capture in starts_in(log)] == ["a", "b", "c"]


def test_canceling_a_running_job_kills_its_process(bench: Bench, behave: Behave) -> None:
    log = behave("forever")
    bench.submit("a")
    eventually(lambda: len(starts_in(log)) == 1)
    assert bench.queue.cancel("a")
    eventually(lambda: bench.finished == [("a", False, False)])
    eventually(lambda: not is_alive(starts_in(log)[0][0]))
    assert bench.queue.state("a") == JobState("canceled")
    assert not bench.queue.cancel("a")


def test_a_job_ends_when_no_client_waits_for_it(bench: Bench, behave: Behave) -> None:
    log = behave("forever")
    bench.submit("a")
    for client in ("first", "other", ""):  # the last says no name
        bench.queue.join("a", client)
    eventually(lambda: len(starts_in(log)) == 1)
    assert bench.queue.clients("a") == 2
    assert not bench.queue.cancel("a", "first")
    assert bench.queue.clients("a") == 1
    assert is_alive(starts_in(log)[0][0])
    bench.queue.join("a", "first")  # its page still asks
    assert bench.queue.clients("a") == 1
    assert bench.queue.cancel("a", "other")
    eventually(lambda: bench.finished == [("a", False, False)])
    assert [bench.queue.state("a", name) for name in ("first", "other", "later")] == [
        JobState("canceled"),
        JobState("canceled"),
        None,
    ]


def test_a_client_that_is_gone_does_not_wait(
    bench: Bench, behave: Behave, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave("forever")
    bench.submit("a")
    for client in ("here", "closed its window"):
        bench.queue.join("a", client)
    monkeypatch.setattr(jobs, "_GONE_S", 0.0)
    assert bench.queue.cancel("a", "here")


def test_clients_are_counted_up_to_a_limit(
    bench: Bench, behave: Behave, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave("forever")
    monkeypatch.setattr(jobs, "_MOST_CLIENTS", 3)
    bench.submit("a")
    for number in range(9):
        bench.queue.join("a", str(number))
    assert bench.queue.clients("a") == 3


def test_only_the_next_job_is_waited_for(bench: Bench, behave: Behave) -> None:
    log = behave("gate")
    for key in ("a", "b", "c"):
        bench.submit(key)
    eventually(lambda: len(starts_in(log)) == 1)
    # These would wait for the gate, which opens below.
    assert bench.queue.wait("b", 600) == JobState("queued", "waiting", queue_position=0)
    assert bench.queue.wait("c", 600) == JobState("queued", "waiting", queue_position=1)
    log.with_name("gate").touch()
    assert bench.queue.wait("a", 600) is None


def test_canceled_queued_job_never_starts(bench: Bench, behave: Behave) -> None:
    log = behave("gate")
    for key in ("a", "b", "c"):
        bench.submit(key)
    assert bench.queue.cancel("b")
    assert bench.queue.state("b") == JobState("canceled")
    log.with_name("gate").touch()
    eventually(lambda: len(bench.finished) == 2)
    assert [capture for _, capture in starts_in(log)] == ["a", "c"]


def test_canceled_job_can_be_submitted_again(bench: Bench, behave: Behave) -> None:
    log = behave("gate")
    bench.submit("a")
    bench.submit("b")
    bench.queue.cancel("b")
    bench.submit("b")
    log.with_name("gate").touch()
    eventually(lambda: ("b", True, True) in bench.finished)


def test_job_is_stopped_at_the_time_limit(tmp_path: Path, behave: Behave) -> None:
    log = behave("forever")
    # Long enough for a process to start on a busy machine.
    bench = Bench(tmp_path, Limits(time_s=2.0, memory_bytes=0))
    bench.submit("a")
    failure = bench.failure("a")
    assert failure.kind == "time"
    assert failure.message == "the analysis took longer than 2 s and was stopped."
    assert not is_alive(starts_in(log)[0][0])
    bench.submit("b")  # the queue continues
    assert bench.failure("b").kind == "time"
    bench.queue.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
def test_job_fails_at_the_memory_limit(tmp_path: Path, behave: Behave) -> None:
    behave("memory")
    bench = Bench(tmp_path, Limits(time_s=60, memory_bytes=1 << 30))
    bench.submit("a")
    failure = bench.failure("a")
    assert failure.kind == "memory"
    assert "(1.0 GiB)" in failure.message
    bench.queue.close()


@pytest.mark.parametrize(("behavior", "status"), [("crash", 1), ("signal", -signal.SIGABRT)])
def test_crash_shows_no_traceback(bench: Bench, behave: Behave, behavior: str, status: int) -> None:
    behave(behavior)
    bench.submit("a")
    failure = bench.failure("a")
    assert failure.kind == "crash"
    assert failure.message == f"the analysis ended without a result (status {status})."
    assert "secret" not in failure.message + failure.hint
    assert bench.finished == [("a", False, False)]


def test_a_killed_job_is_not_said_to_need_memory(bench: Bench, behave: Behave) -> None:
    behave("killed")
    bench.submit("a")
    failure = bench.failure("a")
    assert (failure.kind, failure.message) == ("killed", "the analysis was killed from outside.")


def test_errors_for_the_user_are_passed_on(bench: Bench, behave: Behave) -> None:
    behave("input")
    bench.submit("a")
    assert bench.failure("a") == Failure("input", "it is broken.", "a.json", "h")


def test_queue_survives_a_full_disk(bench: Bench, behave: Behave) -> None:
    behave("good")

    def full() -> Path:
        raise OSError(28, "No space left on device")

    bench.queue.submit(Job("a", ("--root", "r", "--report-id", "a"), full, lambda *_: None))
    assert "No space left on device" in bench.failure("a").message
    bench.submit("b")
    eventually(lambda: bench.finished == [("b", True, True)])


def test_close_stops_everything(tmp_path: Path, behave: Behave) -> None:
    log = behave("forever")
    bench = Bench(tmp_path)
    bench.submit("a")
    bench.submit("b")
    eventually(lambda: len(starts_in(log)) == 1)
    bench.queue.close()
    assert not is_alive(starts_in(log)[0][0])
    assert [capture for _, capture in starts_in(log)] == ["a"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_worker_ends_with_a_killed_parent(tmp_path: Path, behave: Behave) -> None:
    log = behave("forever")
    program = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from tb_perfadvisor.plugin.jobs import Job, JobQueue, Limits
        queue = JobQueue(Limits(600, 0), sys.argv[1:3])
        arguments = ("--root", "r", "--report-id", "a")
        queue.submit(Job("a", arguments, lambda: Path(sys.argv[3]), lambda *_: None))
        time.sleep(600)
    """)
    command = [sys.executable, "-c", program, *FAKE_WORKER, str(tmp_path)]
    with subprocess.Popen(command) as parent:
        eventually(lambda: len(starts_in(log)) == 1)
        worker = starts_in(log)[0][0]
        assert is_alive(worker)
        parent.kill()
    eventually(lambda: not is_alive(worker))


def test_modules_in_the_working_directory_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Start the real worker in a directory with a json.py.
    (tmp_path / "json.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "msgspec.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    queue = JobQueue(Limits(60, 0))
    (tmp_path / "out").mkdir()
    arguments = ("--root", str(tmp_path / "none"), "--report-id", "x")
    queue.submit(Job("a", arguments, lambda: tmp_path / "out", lambda *_: None))
    eventually(lambda: (s := queue.state("a")) is not None and s.status == "failed", 60)
    queue.close()
    assert not (tmp_path / "ran").exists()


def test_limits_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFADVISOR_TIME_LIMIT_S", "30")
    monkeypatch.setenv("PERFADVISOR_MEMORY_LIMIT_GIB", "1.5")
    assert limits_from_environment(print) == Limits(30, 1_610_612_736)  # 1.5 x 1024^3
    monkeypatch.setenv("PERFADVISOR_TIME_LIMIT_S", "soon")
    monkeypatch.setenv("PERFADVISOR_MEMORY_LIMIT_GIB", "-1")
    limits = limits_from_environment(print)
    assert limits.time_s == 600
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert limits.memory_bytes == min(8 * 1024**3, machine_bytes * 8 // 10)


def pids_in(log: Path) -> list[int]:
    return [pid for pid, _ in starts_in(log)]


def finish(bench: Bench, *keys: str) -> None:
    for key in keys:
        bench.submit(key)
    eventually(lambda: {key for key, *_ in bench.finished} >= set(keys))


def test_a_worker_stays_for_the_next_job_until_the_queue_closes(
    bench: Bench, behave: Behave
) -> None:
    log = behave("good")
    finish(bench, "a", "b")
    finish(bench, "c")
    first, *others = pids_in(log)
    assert others == [first, first]
    bench.queue.close()
    assert not is_alive(first)  # nor is it a zombie


def test_a_worker_is_ready_before_the_first_job(bench: Bench, behave: Behave) -> None:
    log = behave("good")
    bench.queue.warm_up()
    bench.queue.warm_up()  # one is enough
    (ready,) = bench.queue._idle
    finish(bench, "a")
    assert pids_in(log) == [ready._process.pid]


@pytest.mark.parametrize("behavior", ["input", "crash", "signal", "killed"])
def test_a_worker_that_failed_is_replaced(bench: Bench, behave: Behave, behavior: str) -> None:
    log = behave(behavior)
    bench.submit("a")
    bench.failure("a")
    bench.submit("b")
    bench.failure("b")
    first, second = pids_in(log)
    assert first != second
    assert not is_alive(first)


def test_a_worker_that_has_grown_is_replaced(tmp_path: Path, behave: Behave) -> None:
    log = behave("large")
    bench = Bench(tmp_path)
    finish(bench, "a", "b")
    first, second = pids_in(log)
    assert first != second
    assert [is_good for _, is_good, _ in bench.finished] == [True, True]
    bench.queue.close()


def test_a_worker_that_was_ended_while_idle_is_replaced(bench: Bench, behave: Behave) -> None:
    log = behave("good")
    finish(bench, "a")
    (idle,) = bench.queue._idle
    idle._process.kill()
    eventually(lambda: not idle.is_alive)
    finish(bench, "b")
    first, second = pids_in(log)
    assert first != second


def test_an_idle_worker_ends_after_a_while(
    bench: Bench, behave: Behave, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_MOST_IDLE_S", 0.05)
    log = behave("good")
    finish(bench, "a")
    eventually(lambda: not is_alive(pids_in(log)[0]))
    finish(bench, "b")


def test_several_jobs_run_at_once_in_workers_of_their_own(tmp_path: Path, behave: Behave) -> None:
    log = behave("gate")
    bench = Bench(tmp_path, at_once=2)
    for key in "abc":
        bench.submit(key)
    eventually(lambda: len(starts_in(log)) == 2)
    assert [state.status for key in "abc" if (state := bench.queue.state(key))] == [
        "running", "running", "queued"
    ]  # fmt: skip
    assert bench.queue.cancel("a")
    eventually(lambda: len(starts_in(log)) == 3)  # its place is free
    log.with_name("gate").touch()
    eventually(lambda: {key for key, is_good, _ in bench.finished if is_good} == {"b", "c"})
    bench.queue.close()


def test_workers_share_the_memory_of_the_machine() -> None:
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    queue = JobQueue(Limits(60, machine_bytes), at_once=4)
    assert queue.limits.memory_bytes == machine_bytes * 8 // 10 // 4
    assert JobQueue(Limits(60, 0), at_once=4).limits.memory_bytes == 0
