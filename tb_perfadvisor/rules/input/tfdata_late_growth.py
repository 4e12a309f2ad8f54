"""A buffer of tf.data that holds elements after they have grown."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tfdata_pipelines import MAPS, SHUFFLES, iterator_table
from tb_perfadvisor.rules.finding import Finding, Remedy
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.tfdata import Pipelines, tfdata
from tb_perfadvisor.signals.input.tfdata_elements import element_bytes
from tb_perfadvisor.units import format_bytes

_REMEDIES = (
    Remedy(
        text="Shuffle what is small, the encoded records or their names, and decode behind it.",
        snippet=(
            "dataset = records.shuffle(10_000)\n"
            "dataset = dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE)\n"
            "dataset = dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)"
        ),
        reference="https://www.tensorflow.org/guide/data_performance#reducing_memory_footprint",
    ),
)


class TfdataLateGrowth(Rule):
    """A shuffle buffer holds decoded elements, many times the size of what was read.

    What it finds
    -------------
    A large `Shuffle` buffer behind a map whose elements are much larger than those that it is
    given, or are decoded from records.

    Why it matters
    --------------
    The buffer takes the host's memory, which the page cache and further workers want, and each
    element is written to it and read from it at full size. In front of the map the same buffer
    shuffles more elements in less memory.

    How it is measured
    ------------------
    The elements' size follows from their shapes and types; the buffer's is what it may hold. It
    claims no time: the severity is low.

    When to ignore
    --------------
    When decoding before the shuffle is what a cache between them is for.

    How to verify
    -------------
    `Shuffle` lies beneath the map in the chain, and the host's memory falls by as much.

    References:
    ----------
    TensorFlow guide, "Better performance with the tf.data API", section on reducing the memory
    footprint.
    """

    id = "tfdata-late-growth"
    title = "Shuffle before elements grow"
    category = "input"
    needs = (Need.ITERATORS,)
    is_preview = False

    minimum_bytes = Limit(
        256e6, "bytes", "A quarter of a gigabyte is nothing that a training host would miss."
    )
    minimum_growth = Limit(
        4.0, "ratio", "Bytes to floats is a factor of four, and compressed images are ten."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each such buffer."""
        pipelines = tfdata(signals)
        for node in range(len(pipelines)):
            if pipelines.kind[node] not in SHUFFLES:
                continue
            elements = int(pipelines.buffer_size[node])
            size = element_bytes(pipelines.shapes[node], pipelines.types[node])
            source = _before_maps(pipelines, node)
            if size is None or source is None or elements <= 0:
                continue
            total = elements * size
            if total < self.minimum_bytes:
                continue
            before = element_bytes(pipelines.shapes[source], pipelines.types[source])
            if before is None and "string" not in pipelines.types[source]:
                continue
            if before is not None and size < self.minimum_growth * before:
                continue
            was = "encoded records" if before is None else f"{format_bytes(before)} each"
            yield Finding(
                summary=(
                    f"{pipelines.kind[node]} holds {elements:,} elements of {format_bytes(size)},"
                    f" {format_bytes(total)} in all, which were {was} before they were mapped."
                ),
                evidence=(iterator_table(signals),),
                remedies=_REMEDIES,
                severity="low",
            )


def _before_maps(pipelines: Pipelines, node: int) -> int | None:
    """What the maps right beneath a buffer are given; None where there are none."""
    first = pipelines.children(node)
    if len(first) != 1 or pipelines.kind[first[0]] not in MAPS:
        return None
    (node,) = first
    while len(below := pipelines.children(node)) == 1 and pipelines.kind[below[0]] in MAPS:
        (node,) = below
    return below[0] if len(below) == 1 else None
