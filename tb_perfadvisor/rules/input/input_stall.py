"""The device waits for data."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Saving, Series, Table, costliest
from tb_perfadvisor.rules.savings.input_rate import saving_of_doubled_input_rate_ns
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import Intervals, intersect, overlap_ns, total_ns, union
from tb_perfadvisor.whatif import Remove

_REMEDIES = (
    Remedy(
        text="Load batches in worker processes, ahead of the step, from pinned memory.",
        snippet=(
            "loader = torch.utils.data.DataLoader(\n"
            "    dataset,\n"
            "    batch_size=batch_size,\n"
            "    num_workers=os.cpu_count() // max(torch.cuda.device_count(), 1),\n"
            "    prefetch_factor=4,\n"
            "    persistent_workers=True,\n"
            "    pin_memory=True,\n"
            ")"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/data.html#multi-process-data-loading",
    ),
    Remedy(
        text="Map in parallel, batch, and prefetch last, so that input and step overlap.",
        snippet=(
            "dataset = (\n"
            "    dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE)\n"
            "    .batch(batch_size)\n"
            "    .prefetch(tf.data.AUTOTUNE)\n"
            ")"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/data_performance",
    ),
    Remedy(
        text="Fetch and transfer the next batch while the device computes this one.",
        snippet=(
            "batch = jax.device_put(next(batches))\n"
            "for step in range(steps):\n"
            "    state = train_step(state, batch)  # dispatched, not waited for\n"
            "    batch = jax.device_put(next(batches))\n"
        ),
        framework="jax",
        reference="https://docs.jax.dev/en/latest/async_dispatch.html",
    ),
    Remedy(
        text="With Grain let processes make the batches, and as many ahead as the step takes.",
        snippet=(
            "dataset = grain.MapDataset.source(records).shuffle(seed=0).map(prepare)\n"
            "dataset = dataset.batch(256, drop_remainder=True)\n"
            "options = grain.MultiprocessingOptions(num_workers=8)\n"
            "batches = iter(dataset.to_iter_dataset().mp_prefetch(options))"
        ),
        framework="jax",
        reference="https://google-grain.readthedocs.io/en/latest/",
    ),
)


# Workers are there and yet too slow: loading in processes is no news to this program.
_WORKERS_TOO_SLOW = Remedy(
    text="The workers cannot keep up: give them more processes or less to do (decode smaller, "
    "ahead of training, or on the device), and let them run further ahead.",
    snippet=(
        "loader = torch.utils.data.DataLoader(\n"
        "    dataset,\n"
        "    batch_size=batch_size,\n"
        "    num_workers=2 * num_workers,  # while there are idle cores\n"
        "    prefetch_factor=8,\n"
        "    persistent_workers=True,\n"
        ")"
    ),
    framework="pytorch",
    reference="https://pytorch.org/docs/stable/data.html#multi-process-data-loading",
)


# An iterator's name is the chain from the pipeline's end; tf.data adds the root of its own.
_LAST_PREFETCH = re.compile(r"Iterator::(?:Root|Model)::Prefetch$")


class InputStall(Rule):
    """The device has nothing to do because the step's thread is fetching its next batch.

    What it finds
    -------------
    Idle time of the device (on a CPU-only profile: of the step's operators) while the thread
    that runs the steps is inside the input pipeline: a DataLoader's `__next__`, TensorFlow's
    `IteratorGetNext`, or a TPU's infeed.

    Why it matters
    --------------
    No change to the model can make up for data that arrives late. It is also the cheapest
    thing to mend: input can be read, decoded and copied while the device computes.

    How it is measured
    ------------------
    The exclusive time of the cause *input* in the used steps. Fetching that the device does not
    wait for costs nothing and counts for nothing. Expected is what the steps save when they are
    re-timed without the fetches, or the whole stall; high is the whole stall; low is what
    overlapping input and step alone could hide, the smaller of the stall and the rest of the step;
    where loading overlaps already, half of what input at twice its pace would save. A stall of
    three percent is told of where it is there in more than one step and, unless the step's own
    process loads, beyond what handing over a batch takes. On the CPU, where workers and step share
    the cores, fetches as short as taking over a finished batch don't count.

    When to ignore
    --------------
    When the profile covers the first steps of an epoch, while workers start and caches fill,
    or when the input is slow only because profiling slows the loader's own threads.

    How to verify
    -------------
    Feed one batch again and again: the step time that remains is what a perfect input pipeline
    would give. After the change, the time waiting for input falls and the step with it.

    References:
    ----------
    TensorFlow guide, "Better performance with the tf.data API"; PyTorch documentation,
    "torch.utils.data: Single- and Multi-process Data Loading".
    """

    id = "input-stall"
    title = "Feed the device without making it wait"
    category = "input"
    reads_sums = True
    needs = (Need.WORK, Need.INPUT)
    is_preview = False

    minimum_share = Limit(
        0.05,
        "share",
        "Fetching a batch that is ready takes a few percent of a short step; XProf and the "
        "PyTorch plugin begin to speak of input at five as well.",
    )

    recurring_share = Limit(
        0.02,
        "share",
        "By so much less a stall that comes again is told of: from three hundredths on, where a "
        "finding is of medium weight. Apart from its worst step, and beyond handing the batches "
        "over, that is no chance.",
    )

    hand_over_ns = Limit(
        1_400_000,
        "ns",
        "Of PyTorch's ResNet-50 sample taking a batch over from a worker costs up to 1.4 ms.",
    )

    minimum_wait_ns = Limit(
        3_000_000,
        "ns",
        "Taking a finished batch over from a worker is no wait: unpacking it and mapping its "
        "memory takes up to 2.6 ms on two busy cores.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the stall is worth naming."""
        attribution = signals.attribution
        claims = attribution.intervals[Cause.INPUT]
        stall_ns = total_ns(claims)
        if stall_ns == 0:
            return
        trace = signals.trace
        rows = trace.rows(EventKind.INPUT_WAIT, EventKind.INFEED_WAIT)
        idle = overlap_ns(claims, trace.events.start_ns[rows], trace.events.end_ns[rows])
        rows, idle = rows[idle > 0], idle[idle > 0]
        names = {trace.text(name) for name in distinct(trace.events.name[rows]).tolist()}
        overlaps_already = any("MultiProcessing" in name for name in names)
        # Who loads in the step's own process hands nothing over.
        is_own = bool(names) and all("SingleProcess" in name for name in names)
        hand_over_ns = 0 if is_own else int(self.hand_over_ns)
        if not self._is_worth_naming(claims, hand_over_ns, signals):
            return
        if overlaps_already and signals.device.is_host_only:
            waits = rows[trace.events.duration_ns[rows] >= self.minimum_wait_ns]
            claims = intersect(
                claims, union(trace.events.start_ns[waits], trace.events.end_ns[waits])
            )
            stall_ns = total_ns(claims)
            if not self._is_worth_naming(claims, hand_over_ns, signals):
                return
        low = min(stall_ns, attribution.window_ns - stall_ns)
        if overlaps_already or _prefetches(signals):
            low = saving_of_doubled_input_rate_ns(stall_ns, attribution.window_ns)
        name = trace.name(int(rows[np.argmax(idle)])) if len(rows) else "the input pipeline"
        subject = "The step's operators wait" if signals.device.is_host_only else "The device waits"
        yield Finding(
            summary=(f"{subject} {per_step(stall_ns, signals)} for input, in {name}."),
            saving=Saving(
                low, stall_ns, stall_ns, claims, "measured", (Remove(signals.input_waits),)
            ),
            evidence=(
                costliest("The longest waits", signals.worker, rows, idle),
                _stages(signals)
                or events_by_name(
                    "Where the step's thread fetches",
                    "Fetch",
                    trace,
                    rows,
                    (
                        (
                            Column("duration_ns", "In the call", "ns"),
                            trace.events.duration_ns[rows],
                        ),
                        (Column("idle_ns", "Idle meanwhile", "ns"), idle),
                    ),
                ),
                *_by_step(signals),
            ),
            remedies=(_WORKERS_TOO_SLOW,) if overlaps_already else _REMEDIES,
        )

    def _is_worth_naming(self, stalls: Intervals, hand_over_ns: int, signals: Signals) -> bool:
        """Whether stalls take a good part of the steps, or a smaller one again and again."""
        if not self.is_minor(total_ns(stalls), signals):
            return True
        steps = signals.steps
        if len(steps) < 2:
            return False
        beyond_ns = overlap_ns(stalls, steps.start_ns, steps.end_ns) - hand_over_ns
        length_ns = steps.end_ns - steps.start_ns
        others = np.arange(len(steps)) != beyond_ns.argmax()
        lost_ns = float(np.maximum(beyond_ns[others], 0).sum())
        least_share = self.minimum_share - self.recurring_share
        return lost_ns >= least_share * float(length_ns[others].sum())


def _prefetches(signals: Signals) -> bool:
    """Whether the recorder's list of stages has a pipeline that ends in a prefetch."""
    totals = signals.trace.totals
    stages = totals.input_stages if totals is not None else ()
    return any(_LAST_PREFETCH.match(stage.name) for stage in stages)


def _stages(signals: Signals) -> Table | None:
    """What the input pipeline spent its time on, where the recorder added that up."""
    totals = signals.trace.totals
    if totals is None or not totals.input_stages:
        return None
    return Table(
        "Stages of the input pipeline, over the whole recording and all threads",
        (
            Column("name", "Stage"),
            Column("type", "It does"),
            Column("count", "Times", "count"),
            Column("total_ns", "Time", "ns"),
            Column("self_ns", "Own time", "ns"),
        ),
        tuple(
            (stage.name, stage.type, stage.count, stage.total_ns, stage.self_ns)
            for stage in totals.input_stages
        ),
    )


def _by_step(signals: Signals) -> tuple[Series, ...]:
    steps = signals.steps
    if len(steps) < 2:
        return ()
    stall = signals.attribution.step_total_ns[Cause.INPUT]
    points = zip(steps.number.tolist(), stall.tolist(), strict=True)
    return (Series("Stall by step", "count", "ns", tuple((float(x), float(y)) for x, y in points)),)
