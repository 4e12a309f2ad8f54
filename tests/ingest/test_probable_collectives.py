"""Unknown kernels count as communication if their stream otherwise only communicates."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace

from tb_perfadvisor.ingest.kernels.collective_names import with_probable_collectives
from tb_perfadvisor.ingest.kineto.reader import read_kineto
from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.signals import Cause, Signals, collectives_of
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tb_perfadvisor.trace import CopyDirection, EventKind, KernelFamily, Source, Trace
from tests.support.writers import write_kineto, write_xplane

# PyTorch, torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory.cu: a barrier between ranks.
UNKNOWN = "barrier_kernel(unsigned int**, int, int, int, unsigned long)"
NCCL = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "ampere_sgemm_128x64_nn"
CAST = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::float16_copy_kernel_cuda("
    "at::TensorIteratorBase&)"
)


def built(
    *,
    unknown_ms: int = 2,
    collectives: int = 2,
    stream: int = 20,
    known: str = CAST,
    known_ms: float = 0.25,
    computes: bool = True,
    copies: bool = False,
) -> Trace:
    """Collectives of 3 ms each on a stream with an unknown kernel and a known one."""
    builder = TraceBuilder(rank=0, world_size=2, backend="nccl").step(0, 0, ms(20))
    builder.operator("aten::mm", 0, ms(1))
    if computes:
        builder.kernel(GEMM, ms(1), ms(4), family=KernelFamily.MATMUL)
    if copies:
        builder.copy(CopyDirection.HOST_TO_DEVICE, ms(1), ms(4), stream=7)
    for index in range(collectives):
        begin = ms(4 + 3 * index)
        builder.collective(NCCL, begin, begin + ms(3), operation="all-gather", group_size=2)
    family = KernelFamily.MATMUL if known == GEMM else KernelFamily.ELEMENTWISE
    builder.kernel(known, ms(11), ms(11 + known_ms), stream=20, family=family)
    builder.kernel(UNKNOWN, ms(12), ms(12 + unknown_ms), stream=stream)
    return builder.build()


def kind_of(trace: Trace, name: str) -> EventKind:
    (row,) = (row for row in range(len(trace.events)) if trace.name(row) == name)
    return EventKind(trace.events.kind[row])


def test_unknown_kernel_counts_as_communication_with_a_note() -> None:
    trace = with_probable_collectives(built())
    assert kind_of(trace, UNKNOWN) is EventKind.COLLECTIVE
    assert kind_of(trace, CAST) is EventKind.KERNEL
    (note,) = trace.notes
    assert note.id == "probable-communication"
    assert note.message == (
        f"1 kernel of an unknown library ({UNKNOWN}) ran on streams that otherwise only"
        " communicate: 2.00 ms count as communication."
    )
    signals = Signals(run_of(trace))
    # Two collectives of 3 ms and the unknown kernel of 2 ms; nothing overlaps them.
    assert signals.attribution.total_ns(Cause.COMMUNICATION) == ms(2 * 3 + 2)
    assert collectives_of(signals).operation == ("all-gather", "all-gather", "unknown")
    assert collectives_of(signals).size_bytes[2] == -1


def test_the_note_shortens_long_names() -> None:
    with_long_name = built()
    strings = tuple("x" * 200 if text == UNKNOWN else text for text in with_long_name.strings)
    (note,) = with_probable_collectives(replace(with_long_name, strings=strings)).notes
    assert f"({'x' * 80})" in note.message


@pytest.mark.parametrize("suffix", ["json", "pb"])
def test_both_formats(suffix: str) -> None:
    source = Source(path=f"x.{suffix}", format="")
    if suffix == "json":
        trace = next(read_kineto(io.BytesIO(write_kineto(built())), source))
    else:
        trace = read_xplane(io.BytesIO(write_xplane(built())), source)
    assert kind_of(trace, UNKNOWN) is EventKind.COLLECTIVE
    assert "probable-communication" in {note.id for note in trace.notes}


@pytest.mark.parametrize(
    "trace",
    [
        built(stream=7),  # the stream that computes
        built(unknown_ms=7),  # more than all collectives: 6 ms
        built(collectives=1, unknown_ms=1),  # a single collective may run on any stream
        built(known=GEMM, known_ms=0.7),  # 6 of 6.7 ms are less than nine tenths
        built(computes=False),  # no other stream computes
        built(computes=False, copies=True),  # another one only copies
    ],
    ids=[
        "compute stream",
        "more than known",
        "one collective",
        "computes too",
        "only stream",
        "copies",
    ],
)
def test_unknown_kernel_on_other_streams_is_compute(trace: Trace) -> None:
    assert with_probable_collectives(trace) is trace


def test_a_little_compute_may_be_packing() -> None:
    # 6 of 6.6 ms are more than nine tenths.
    trace = with_probable_collectives(built(known=GEMM, known_ms=0.6))
    assert kind_of(trace, UNKNOWN) is EventKind.COLLECTIVE
    assert kind_of(built(stream=7), UNKNOWN) is EventKind.KERNEL
