"""What it brings to do without a loader's worker processes, where the samples are in memory."""

from __future__ import annotations

from msgspec import Struct

from tb_perfadvisor.machine.facts import Made
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.input.loader_workers import has_loader_workers, worker_batches
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.intervals import total_ns

_BATCH_NS = 60_000
"""What the loader does for a batch: indices of its samples, and a tensor for each part of it."""
_TENSOR_NS = (3_000, 7_000, 12_000)
"""To take a sample from tensors, and its part of stacking them: least, expected, most. Batches of
32 to 128 samples took 0.15 to 0.9 ms without workers, with PyTorch 2.13."""
_OTHER_NS = (5_000, 40_000, 150_000)
"""The same of other datasets that hold arrays, which may prepare each sample."""
_PER_BYTE_NS = 0.4
"""To copy a sample into its batch: 2.5 GB/s."""


class NeedlessWorkers(Struct, frozen=True):
    """A loader whose worker processes cost more than they bring."""

    loader: Made
    fetch_ns: int
    """What a batch is expected to take without them."""
    low_ns: int
    """What is saved over the used steps."""
    expected_ns: int
    high_ns: int


@memoized
def needless_workers(signals: Signals) -> NeedlessWorkers | None:
    """The loader, in a program on the CPU; None unless all loaders with workers are in memory."""
    if not signals.device.is_host_only or not has_loader_workers(signals):
        return None
    loaders = [
        made
        for made in signals.trace.facts.program.all_made("loader")
        if made.number("num_workers") > 0
    ]
    if not loaders or not all(made.number("dataset_bytes") for made in loaders):
        return None
    loader = max(loaders, key=lambda made: made.number("samples"))
    samples, batch = loader.number("samples"), loader.number("batch_size")
    if not samples or not batch:
        return None
    stall_ns = total_ns(signals.attribution.intervals[Cause.INPUT])
    copy_ns = _PER_BYTE_NS * loader.number("dataset_bytes") / samples
    prices = _TENSOR_NS if loader.facts.get("dataset") == "TensorDataset" else _OTHER_NS
    least_ns, usual_ns, most_ns = (
        int(_BATCH_NS + batch * (sample_ns + copy_ns)) for sample_ns in prices
    )
    timed = worker_batches(signals)
    if timed is not None:
        least_ns = usual_ns = most_ns = int(timed.cpu_ns.mean())
    steps = max(signals.steps.count, 1)
    return NeedlessWorkers(
        loader,
        usual_ns,
        stall_ns - steps * most_ns,
        stall_ns - steps * usual_ns,
        stall_ns - steps * least_ns,
    )
