"""Programs are compiled again in steady steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Saving, Series, Table, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.attribution import Attribution
from tb_perfadvisor.signals.core.operator_shapes import Shape
from tb_perfadvisor.signals.host.compiled_regions import ChangingInput, changing_inputs
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import intersect, join, overlap_ns, total_ns, union
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.whatif import Remove

_MOST = 0.5
_FIRST_RUN_SHARE = 0.2
"""Of a CPU's work in steps that compile, what it may save to run the same program again. Its
first run touches memory and fills caches: of a jit made anew in each step the operators took 1.25
to 1.45 times what they take from the second run on (benchmarks/recorded_pairs, jax-new-jit)."""
_INPUTS, _SHAPES, _FEW = 20, 8, 3
"""How many are listed, and named in the summary."""

_REMEDIES = (
    Remedy(
        text="Pad batches and sequences to a few fixed sizes, and mark what must vary as dynamic.",
        snippet=(
            "torch._dynamo.mark_dynamic(tokens, 1)  # this dimension varies: compile it once\n"
            "# TORCH_LOGS=recompiles python train.py names the guard that fails"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/torch.compiler_troubleshooting.html",
    ),
    Remedy(
        text="Give tf.function one signature, and pass tensors rather than Python numbers.",
        snippet=(
            "tokens = tf.TensorSpec([None, 128], tf.int32)\n\n"
            "@tf.function(input_signature=[tokens], reduce_retracing=True)\n"
            "def train_step(tokens): ..."
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/function",
    ),
    Remedy(
        text="Pad inputs to a few fixed shapes; keep jit outside the loop and its static "
        "arguments constant.",
        snippet=(
            "def pad(batch, multiple=128):\n"
            "    missing = -batch.shape[1] % multiple\n"
            "    return jnp.pad(batch, ((0, 0), (0, missing)))\n\n"
            'jax.config.update("jax_log_compiles", True)  # says what is compiled and why'
        ),
        framework="jax",
        reference="https://docs.jax.dev/en/latest/jit-compilation.html",
    ),
)


class Recompilation(Rule):
    """The program is traced or compiled again in steps that should be steady.

    What it finds
    -------------
    Time in which nothing runs because a program is being traced, lowered or compiled, in steps
    after warm-up: torch.compile, retracing of a tf.function, new XLA programs.

    Why it matters
    --------------
    A compiled program is cached by the shapes and types of its inputs. Where those change from
    step to step, each change costs a compilation, hundreds of times a step's own time.

    How it is measured
    ------------------
    The exclusive time of the cause *compiling* in the used steps, of which warm-up steps are no
    part, and the time in Python and the unexplained time of the steps that compile: tracing runs
    there, and only part of it is recorded. High is both, and on the CPU a fifth of the work of
    these steps, up to what compiling takes, as a program's first run takes longer than its
    second. Expected is what the steps save when they are re-timed without compiling; on the CPU it
    is compiling and what steps that compile spend in Python and unexplained beyond those that
    don't. Low is the compiling, less its standard error over the steps, where most of them
    compile, which will go on; otherwise 0, since the last of it may be over. Where shapes were
    recorded, inputs of torch.compile's regions that change from call to call are listed.

    When to ignore
    --------------
    When the profile begins with the program: the first steps compile once. Skip them with the
    profiler's schedule.

    How to verify
    -------------
    The compile events are gone from all steps but the first, and the step times are even.

    References:
    ----------
    JAX documentation, "Just-in-time compilation"; TensorFlow guide, "Better performance with
    tf.function: Rules of tracing"; PyTorch documentation, "torch.compile Troubleshooting".
    """

    id = "recompilation"
    title = "Compile once"
    category = "launch"
    reads_sums = True
    needs = (Need.WORK, Need.HOST_EVENTS, Need.STEPS)
    is_preview = False

    minimum_share = Limit(
        0.02,
        "share",
        "A cache look-up and its guards take up to a percent or two of a short step.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when steady steps compile."""
        attribution = signals.attribution
        compiling_time = attribution.intervals[Cause.COMPILING]
        compiling_ns = total_ns(compiling_time)
        if compiling_ns == 0:
            return
        if self.is_minor(compiling_ns, signals):
            return
        trace, by_step = signals.trace, attribution.step_total_ns[Cause.COMPILING]
        events, rows = trace.events, trace.rows(EventKind.COMPILE)
        idle = overlap_ns(compiling_time, events.start_ns[rows], events.end_ns[rows])
        rows, idle = rows[idle > 0], idle[idle > 0]
        compiled = int((by_step > 0).sum())
        goes_on = compiled > _MOST * len(by_step)
        steps = signals.steps
        tracing = intersect(
            attribution.of(Cause.PYTHON, Cause.UNEXPLAINED),
            union(steps.start_ns[by_step > 0], steps.end_ns[by_step > 0]),
        )
        claims = join(compiling_time, tracing)
        expected_ns, first_ns = compiling_ns, 0
        if signals.device.is_host_only:
            expected_ns += _tracing_ns(attribution, by_step > 0)
            work_ns = int(attribution.step_total_ns[Cause.HOST_COMPUTE][by_step > 0].sum())
            first_ns = min(round(_FIRST_RUN_SHARE * work_ns), compiling_ns)
        changing = changing_inputs(signals)
        yield Finding(
            summary=(
                f"{compiled} of {len(by_step)} steps compile:"
                f" {per_step(compiling_ns, signals)} goes into it{_named(changing)}."
            ),
            saving=Saving(
                max(compiling_ns - _standard_error_ns(by_step), 0) if goes_on else 0,
                expected_ns,
                total_ns(claims) + first_ns,
                claims,
                "measured",
                (Remove(union(events.start_ns[rows], events.end_ns[rows])),),
                first_ns,
            ),
            evidence=(
                Series(
                    "Compiling by step",
                    "count",
                    "ns",
                    tuple(
                        (float(number), float(total))
                        for number, total in zip(
                            steps.number.tolist(), by_step.tolist(), strict=True
                        )
                    ),
                ),
                events_by_name(
                    "What compiles (one stage may hold another)",
                    "Stage",
                    trace,
                    rows,
                    ((Column("idle_ns", "Nothing runs meanwhile", "ns"), idle),),
                ),
                costliest("The longest compilations", signals.worker, rows, idle),
                *_changing(changing),
            ),
            remedies=_REMEDIES,
        )


def _standard_error_ns(by_step: Int64) -> int:
    """How far the steps recorded may be from what more of them would show, of all together.

    Single compilations take twice as long as others: a collection of garbage falls into them, or
    a larger graph.
    """
    count = len(by_step)
    return round(float(by_step.std(ddof=1)) * count**0.5) if count > 1 else 0


def _named(found: Sequence[ChangingInput]) -> str:
    """The input with most shapes, in words."""
    if not found:
        return ""
    most = max(found, key=lambda one: len(one.shapes))
    first = ", ".join(_in_words(shape) for shape in most.shapes[:_FEW])
    more = ", …" if len(most.shapes) > _FEW else ""
    return f"; an input comes in {len(most.shapes)} shapes ({first}{more})"


def _in_words(shape: Shape) -> str:
    return " × ".join(map(str, shape)) or "scalar"


def _changing(found: Sequence[ChangingInput]) -> tuple[Table, ...]:
    """The inputs that torch.compile meets in several shapes, where they were recorded."""
    if not found:
        return ()
    return (
        Table(
            "Inputs of compiled code that change their shape",
            (
                Column("frame", "Compiled frame"),
                Column("position", "Input"),
                Column("count", "Shapes", "count"),
                Column("shapes", "The first of them"),
            ),
            tuple(
                (
                    str(one.frame),
                    str(one.position),
                    len(one.shapes),
                    ", ".join(map(_in_words, one.shapes[:_SHAPES])),
                )
                for one in found[:_INPUTS]
            ),
        ),
    )


def _tracing_ns(attribution: Attribution, compiles: NDArray[np.bool_]) -> int:
    """Python and unexplained time of steps that compile, beyond that of as many that don't.

    Args:
        attribution: of the worker.
        compiles: whether a step compiles; shape (used,).
    """
    by_step = attribution.step_total_ns
    host_ns = by_step[Cause.PYTHON] + by_step[Cause.UNEXPLAINED]
    usual_ns = float(host_ns[~compiles].mean()) if not compiles.all() else 0.0
    return max(0, int(host_ns[compiles].sum() - usual_ns * compiles.sum()))
