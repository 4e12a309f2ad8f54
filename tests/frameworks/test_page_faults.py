"""New pages of memory that results of PyTorch need, counted by the system."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")

from tb_perfadvisor.instrument.examination import findings  # noqa: E402
from tb_perfadvisor.instrument.examination.clocks import fault_ns, thread_faults  # noqa: E402
from tb_perfadvisor.instrument.examination.examiner import Examiner  # noqa: E402
from tb_perfadvisor.instrument.examination.watching import Watching  # noqa: E402
from tb_perfadvisor.machine.facts import Observed  # noqa: E402

SIZE_BYTES = 40 << 20
"""glibc takes blocks of more than 32 MiB from the system each time."""
PAGES = SIZE_BYTES // mmap.PAGESIZE

pytestmark = pytest.mark.skipif(fault_ns() is None, reason="another allocator than glibc's")


def _found(step: Callable[[], object]) -> tuple[Observed, ...]:
    """What is found in a loop on this thread, after some steps that nobody looks at."""
    examiner = Examiner()
    for _ in range(4):
        step()
        assert not examiner.step()
    examiner.begin(4)
    is_complete = False
    while not is_complete:
        step()
        is_complete = examiner.step()
    assert examiner.found is not None
    assert examiner.found.failed == ()
    return examiner.found.all_of("page faults")


@pytest.fixture
def x() -> Iterator[torch.Tensor]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # others touch pages of their own
    yield torch.ones(SIZE_BYTES // 4)
    torch.set_num_threads(threads)


def test_results_that_are_freed_in_each_step(x: torch.Tensor) -> None:
    before = thread_faults()
    x + 1
    faults = thread_faults() - before  # less than the pages if the system has huge ones
    (found,) = _found(lambda: (x + 1) * 0.5)
    assert found.operator in ("aten::add", "aten::mul")
    assert found.calls == 2
    assert found.amount == pytest.approx(2 * faults, rel=0.05)
    assert faults <= 1.01 * PAGES


def test_results_that_are_kept(x: torch.Tensor) -> None:
    kept = torch.empty_like(x)
    assert _found(lambda: torch.add(x, 1, out=kept).mul_(0.5)) == ()


PROGRAM = f"""
import resource, torch
torch.set_num_threads(1)
def faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
x = torch.ones({SIZE_BYTES // 4})
for _ in range(12):
    before = faults()
    y = torch.relu(x + 1.0) * 0.5
    print(faults() - before)
"""


def test_the_advised_variables_keep_memory() -> None:
    def faults(**variables: str) -> int:
        environment = {key: each for key, each in os.environ.items() if "MALLOC" not in key}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment | variables,
            capture_output=True,
            text=True,
            check=True,
        )
        return sum(map(int, done.stdout.split()[4:]))  # the first ones are a warm-up

    kept = faults(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_="1000000000000")
    # Blocks of other sizes in between may still need a new place now and then.
    assert kept < 0.5 * faults()


@pytest.mark.parametrize(
    ("usual_faults", "price_ns", "share"),
    [
        (1_000, 2_000, 0.2),  # 1,000 pages of 2 µs, of 10 ms
        (500, 2_000, 0.1),  # half of them only while somebody looks
        (0, 2_000, None),  # the allocator keeps memory
        (1_000, None, None),  # another allocator, or another system
        (9_000, 20_000, 1.0),  # never more than the operator takes
    ],
)
def test_counts_pages_that_each_step_needs(
    monkeypatch: pytest.MonkeyPatch, usual_faults: int, price_ns: float | None, share: float | None
) -> None:
    tensor, watching, ends = torch.zeros(8), Watching(), [0]
    with watching:
        for _ in range(3):
            tensor + 1
            ends.append(len(watching.calls))
    counted = (5_000, 3_000, 1_000)  # the first step may need memory once, the second by chance
    calls = [
        replace(call, ns=10_000_000, faults=faults)
        for call, faults in zip(watching.calls, counted, strict=True)
    ]
    monkeypatch.setattr(findings, "fault_ns", lambda: price_ns)
    found = findings.examined([calls[a:b] for a, b in pairwise(ends)], watching, usual_faults)
    assert found.failed == ()
    shares = [each.share for each in found.all_of("page faults")]
    assert shares == ([] if share is None else [pytest.approx(share)])
