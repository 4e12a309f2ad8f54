"""Can a recording be believed? Checks a trace against what hardware can do, before any signal.

    streams   one stream runs one thing after another, and no call returns before what it waits for
    clocks    no work starts before its launch; a lag that never changes is a shifted clock
    lost      a launch without an event, and a wait that outlasts all recorded work, prove work
              that is missing
    waits     the calls that wait, which the others reason from
    ranges    an optimizer's range means the update, not the closure that runs in it

What can be repaired is repaired, counted and noted. What cannot is stated as `Trace.soundness`:
signals give such time the cause *not recorded*, and the engine decides how far the report can be
trusted. Nothing here depends on names of kernels or programs.
"""

from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.soundness.clocks import on_one_clock
from tb_perfadvisor.soundness.lost import with_lost_work
from tb_perfadvisor.soundness.ranges import updates_alone
from tb_perfadvisor.soundness.streams import one_after_another
from tb_perfadvisor.soundness.waits import stream_work
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.soundness import Soundness

__all__ = ["examined"]


def examined(trace: Trace) -> Trace:
    """The trace, repaired where physics tells how, with what it lacks.

    Sums and recordings of TPUs pass unchanged: sums have no streams, and the readers of TPUs' files
    compare clocks by the runs of programs.
    """
    trace = updates_alone(trace)
    work = stream_work(trace)
    if not len(work):
        return replace(trace, soundness=Soundness(work=_work_count(trace)))
    trace, shift_ns = on_one_clock(trace, work)
    trace, shortened, shortened_ns = one_after_another(trace, stream_work(trace))
    found = with_lost_work(trace, stream_work(trace))
    return replace(
        trace,
        soundness=replace(
            found,
            work=_work_count(trace),
            shortened=shortened,
            shortened_ns=shortened_ns,
            clock_shift_ns=shift_ns,
        ),
    )


def _work_count(trace: Trace) -> int:
    """Kernels and collectives, or operators and collectives of a program on the CPU."""
    count = len(trace.rows(EventKind.KERNEL, EventKind.COLLECTIVE))
    return count or len(trace.rows(EventKind.OPERATOR, EventKind.HOST_COLLECTIVE))
