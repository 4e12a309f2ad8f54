"""Several formats, one truth: whatever is drawn is broken down alike, read from any file."""

from __future__ import annotations

import io
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tb_perfadvisor.ingest.chrome.reader import read_chrome
from tb_perfadvisor.ingest.kineto.reader import read_kineto
from tb_perfadvisor.ingest.xplane.reader import read_xplane
from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.testing.writers import write_chrome, write_kineto, write_xplane
from tb_perfadvisor.trace import Source, Trace
from tb_perfadvisor.trace.intervals import total_ns

SOURCE = Source(path="x", format="")
# Not `d`: a Kineto file has no events of a loader's workers. Not `z`, `Z`, `B`, `u`: what lies
# between steps is told by the names of PyTorch's annotations.
HOST_CELLS = "....DDooOLSARcp"
DEVICE_CELLS = "....KKKHHkNNhqgm"


def breakdown(trace: Trace) -> dict[str, int]:
    attribution = Signals(run_of(trace)).attribution
    return {
        cause.value: total_ns(intervals)
        for cause, intervals in attribution.intervals.items()
        if len(intervals)
    }


def lane(letters: str) -> st.SearchStrategy[str]:
    cells = st.text(st.sampled_from(letters), min_size=10, max_size=10)
    return st.lists(cells, min_size=3, max_size=3).map("|".join)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    main=lane(HOST_CELLS),
    worker=lane(HOST_CELLS),
    compute=lane(DEVICE_CELLS),
    wire=lane(DEVICE_CELLS),
)
def test_the_breakdown_is_the_same(main: str, worker: str, compute: str, wire: str) -> None:
    trace = draw(
        f"""
        cell 1ms
        step   |..........|..........|..........|
        main   |{main}|
        worker |{worker}|
        gpu 7  |{compute}|
        gpu 20 |{wire}|
        """,
        device="NVIDIA H100 80GB HBM3",
    )
    kineto = breakdown(read_kineto(io.BytesIO(write_kineto(trace)), SOURCE))
    assert kineto == breakdown(trace)
    assert kineto == breakdown(read_xplane(io.BytesIO(write_xplane(trace)), SOURCE))
    chrome = read_chrome(io.BytesIO(write_chrome(trace)), SOURCE)
    # The export has no versions: the names of drawn events are of several frameworks.
    source = replace(chrome.source, framework=trace.source.framework)
    assert kineto == breakdown(replace(chrome, source=source))


def test_the_breakdown_sums_to_the_window() -> None:
    trace = draw(
        """
        cell 1ms
        step   |..........|..........|
        main   |DDDDoo....|DDDDoo....|
        gpu 7  |.....KKKKK|.....KKKKK|
        """
    )
    # Of each step's ten cells four are input and five the kernel. In the one between them the
    # launch takes half a millisecond (a quarter of its operator) and 20 us more to arrive; then
    # work is queued.
    assert breakdown(trace) == {
        Cause.INPUT.value: 2 * 4_000_000,
        Cause.LAUNCHING.value: 2 * 520_000,
        Cause.QUEUED.value: 2 * 480_000,
        Cause.COMPUTE_32.value: 2 * 5_000_000,
    }
