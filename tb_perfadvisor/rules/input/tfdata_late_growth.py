"""A tf.data shuffle buffer holds elements after they have grown."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tfdata_pipelines import MAPS, SHUFFLES, iterator_table
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.tfdata import Pipelines, tfdata
from tb_perfadvisor.signals.input.tfdata_elements import element_bytes
from tb_perfadvisor.units import format_bytes


class TfdataLateGrowth(Rule):
    """A shuffle buffer holds decoded elements, many times the size of the encoded records.

    What it finds
    -------------
    A large `Shuffle` buffer after a map whose results are much larger than its inputs, or are
    decoded from records.

    Why it matters
    --------------
    The buffer takes host memory that the page cache and more workers could use, and each element
    is written to it and read from it at full size. Before the map, the same buffer shuffles more
    elements in less memory.

    How it is measured
    ------------------
    The size of an element follows from its shape and type; the size of the buffer is its capacity.
    There is no saving in time, so the severity is low.

    When to ignore
    --------------
    When the decoded elements are shuffled after a cache on purpose.

    How to verify
    -------------
    `Shuffle` comes before the map in the chain, and the host uses that much less memory.

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

    minimum_bytes = Limit(256e6, "bytes", "A training host does not miss a quarter of a gigabyte.")
    minimum_growth = Limit(
        4.0,
        "ratio",
        "Bytes grow by a factor of 4 when cast to floats, compressed images by 10 when decoded.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each large buffer of grown elements."""
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
            size_before = "encoded records" if before is None else f"{format_bytes(before)} each"
            yield Finding(
                instance=pipelines.kind[node],
                summary=(
                    f"The {pipelines.kind[node]} buffer takes {format_bytes(total)} of host memory:"
                    f" {elements:,} elements of {format_bytes(size)}, which were {size_before}"
                    " before they were mapped."
                ),
                evidence=(iterator_table(signals),),
                remedies=advise("shuffle-encoded"),
                severity="low",
            )


def _before_maps(pipelines: Pipelines, node: int) -> int | None:
    """The iterator that feeds the maps directly below a buffer; None without maps."""
    first = pipelines.children(node)
    if len(first) != 1 or pipelines.kind[first[0]] not in MAPS:
        return None
    (node,) = first
    while len(below := pipelines.children(node)) == 1 and pipelines.kind[below[0]] in MAPS:
        (node,) = below
    return below[0] if len(below) == 1 else None
