from __future__ import annotations

import pytest

from tb_perfadvisor.rules.compute.amount_of_work import Recompute
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import ms, us
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import EventKind, Trace
from tests.support.program_values import SLOW, drawn, program

# Names from HolisticTraceAnalysis' recordings (trace_diff_control, A100).
NODE = "autograd::engine::evaluate_function: AddmmBackward0"
KERNEL = "ampere_sgemm_128x64_nn"
GIB = 1 << 30


def trace(
    *, recomputes: bool = True, used_bytes: int = 20 * GIB, shapes: tuple[int, int] = (64, 64)
) -> Trace:
    length = ms(10 if recomputes else 7)
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB)
    for step in range(2):
        start = at = length * step
        builder.step(step, start, start + length)
        builder.memory(start, GIB, allocated_bytes=used_bytes)
        names = ("forward", "again", "backward") if recomputes else ("forward", "backward")
        for place, name in enumerate(names):
            begin, key = start + us(60 * place), f"{step}:{name}"
            if name != "forward":
                builder.operator(NODE, begin, begin + us(50), launches=False)
            rows = shapes[0] if name == "forward" else shapes[1]
            inner = "aten::mm" if name == "backward" else "aten::linear"
            builder.operator(
                inner,
                begin + us(10),
                begin + us(40),
                key=key,
                shapes=[[rows, 64], [64, 64]],
                dtypes=["float", "float"],
            )
            duration = ms(4 if name == "backward" else 3)
            builder.kernel(KERNEL, at, at + duration, launched_by=key)
            at += duration
        builder.synchronize(start + us(200), start + length)
    return builder.build()


def test_saves_at_most_what_the_fix_saves() -> None:
    checked = check_rule(Recompute, slow=trace(), fixed=trace(recomputes=False), saves="3ms")
    assert checked.expected_ns == 1_500_000  # half of the recomputation
    (finding,) = checked.findings
    assert "60.0 GiB of device memory (75.0 %)" in finding.summary
    table = finding.evidence[0]
    assert isinstance(table, Table)
    assert table.rows == (("aten::linear", NODE, "[[64,64],[64,64]]", "", 2, 6_000_000),)


def blocks(used_gib: int, kept_gib: int) -> Trace:
    """Two steps of 10 ms with five checkpointed blocks, each recomputed in 0.6 ms.

    The gradients of each block need a fifth of `kept_gib`, and free it before the next block.
    """
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB)
    shape = {"shapes": [[64, 64], [64, 64]], "dtypes": ["float", "float"]}
    for step in range(2):
        start = ms(10 * step)
        builder.step(step, start, start + ms(10))
        builder.operator("aten::linear", start, start + us(40), key=f"{step}f", **shape)
        builder.kernel(KERNEL, start, start + ms(3), launched_by=f"{step}f")
        for block in range(5):
            begin, key = start + us(60 + 60 * block), f"{step} {block}"
            builder.operator(NODE, begin, begin + us(50), launches=False)
            builder.operator("aten::linear", begin + us(5), begin + us(30), key=key, **shape)
            at = start + ms(3) + us(600 * block)
            builder.kernel(KERNEL, at, at + us(600), launched_by=key)
            # A temporary is freed before the recomputed operator ends.
            for offset, size, address, total in (
                (10, kept_gib * GIB // 5, 1, used_gib * GIB),
                (15, GIB, 2, used_gib * GIB),
                (20, -GIB, 2, used_gib * GIB),
                (45, -kept_gib * GIB // 5, 1, used_gib * GIB - kept_gib * GIB // 5),
            ):
                builder.memory(
                    begin + us(offset), size, allocated_bytes=total,
                    reserved_bytes=used_gib * GIB, address=address, thread="main",
                )  # fmt: skip
        builder.operator(NODE, start + us(400), start + us(440), launches=False)
        builder.operator("aten::mm", start + us(405), start + us(430), key=f"{step}g")
        builder.kernel(KERNEL, start + ms(6), start + ms(10), launched_by=f"{step}g")
        builder.synchronize(start + us(500), start + ms(10))
    return builder.build()


@pytest.mark.parametrize(
    ("used_gib", "kept_gib", "expected_ns", "advice"),
    [
        # 90 % of 80 GiB are 72: 52 are free.
        (20, 50, 3_000_000, "takes 50.0 GiB, which fits: checkpoint none."),
        (20, 60, 1_500_000, "60.0 GiB. About half of that fits: checkpoint only every second"),
        # 22 of 50 GiB: one in three blocks.
        (50, 50, 1_000_000, "A third of that fits"),
    ],
)
def test_as_much_is_kept_as_fits(
    used_gib: int, kept_gib: int, expected_ns: int, advice: str
) -> None:
    (finding,) = find(Recompute, blocks(used_gib, kept_gib)) or ()
    assert advice in finding.summary
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2 * expected_ns
    assert finding.saving.low_ns == expected_ns
    # High is what fits to the byte: all, 52 of 60, 22 of 50.
    fitting = min((72 - used_gib) / kept_gib, 1)
    assert finding.saving.high_ns == pytest.approx(6_000_000 * fitting, abs=10)  # 10 events


def test_nothing_is_said_if_hardly_anything_fits() -> None:
    # 12 of 50 GiB: less than every fourth block.
    assert find(Recompute, blocks(60, 50)) == ()
    assert find(Recompute, blocks(60, 48))


def checkpointed(*, reentrant: bool, numbers: bool = True, records: bool = False) -> Trace:
    """Two steps of 10 ms: a layer of 3 ms forward, recomputed, and 4 ms of gradients.

    Names as in PyTorch's recordings; autograd numbers the operators that it will differentiate.
    """
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB)
    node = f"autograd::engine::evaluate_function: {'CheckpointFunction' if reentrant else 'Relu'}"
    for step in range(2):
        start = ms(10 * step)
        builder.step(step, start, start + ms(10))
        if records:
            builder.memory(start, GIB, allocated_bytes=70 * GIB)
        number = {"sequence": 7} if numbers else {}
        shape = {"shapes": [[64, 64], [64, 64]], "dtypes": ["float", "float"]}
        builder.operator("aten::linear", start, start + us(40), key=f"{step}f", **shape, **number)
        builder.operator(f"{node}Backward", start + us(50), start + us(250), launches=False)
        builder.operator(
            f"{'CheckpointFunction' if reentrant else 'Relu'}Backward",
            start + us(51),
            start + us(249),
            launches=False,
            sequence=9,
        )
        # An addition is no module; its gradient formula would not be numbered.
        for index, (name, more) in enumerate((("aten::linear", shape), ("aten::add_", {}))):
            at = start + us(60 + 40 * index)
            key = f"{step}{name}"
            builder.operator(name, at, at + us(30), key=key, **more, **number)
        builder.operator(
            "aten::threshold_backward", start + us(200), start + us(220), key=f"{step}g"
        )
        for key, at, length in (
            (f"{step}f", 0, 3),
            (f"{step}aten::linear", 3, 2),
            (f"{step}aten::add_", 5, 1),
            (f"{step}g", 6, 4),
        ):
            builder.kernel(KERNEL, start + ms(at), start + ms(at + length), launched_by=key)
    return builder.build()


@pytest.mark.parametrize("reentrant", [True, False])
def test_without_memory_a_quarter_is_expected(*, reentrant: bool) -> None:
    (finding,) = find(Recompute, checkpointed(reentrant=reentrant)) or ()
    assert finding.saving is not None
    # 3 ms in each of two steps: all of it if memory is free, nothing if it is full.
    saving = finding.saving
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (0, 1_500_000, 6_000_000)
    # The layer takes 2 ms again, and the addition 1 ms.
    assert finding.summary.startswith("Device work of 3.00 ms of each step (30.0 %) recomputes")
    table = finding.evidence[0]
    assert isinstance(table, Table)
    assert [(row[0], row[4], row[5]) for row in table.rows] == [
        ("aten::linear", 2, 4_000_000),
        ("aten::add_", 2, 2_000_000),
    ]


def test_without_numbers_only_operators_of_modules_count() -> None:
    (finding,) = find(Recompute, checkpointed(reentrant=False, numbers=False)) or ()
    assert "2.00 ms of each step (20.0 %)" in finding.summary


def test_nothing_is_said_if_memory_is_known_to_be_full() -> None:
    assert find(Recompute, checkpointed(reentrant=True, records=True)) == ()


def test_passes_if_memory_is_used() -> None:
    assert find(Recompute, trace(used_bytes=70 * GIB)) == ()


def test_matrix_products_of_the_gradient_do_not_count() -> None:
    assert find(Recompute, trace(shapes=(64, 128))) == ()


# How JAX 0.10 names what jax.checkpoint recomputes, recorded on the CPU.
PATH = "jit(step)/transpose(jvp(jvp()))/checkpoint/rematted_computation/dot_general"


def on_a_tpu(
    name: str, path: str, *, recomputes: bool = True, launches: bool = True, **inside: str
) -> Trace:
    """Two steps of 10 ms: 3 ms forward, 3 ms recomputation, 4 ms backward."""
    builder = TraceBuilder("jax").device("TPU v5 lite", kind="tpu", memory_bytes=16 * GIB)
    length = ms(10 if recomputes else 7)
    for step in range(2):
        start = at = length * step
        builder.step(step, start, start + length)
        builder.memory(start, GIB, allocated_bytes=4 * GIB)
        if launches:
            builder.launch(start, start + us(10))
        operations = [("fusion.1", "jit(step)/jvp()/dot_general", 3), (name, path, 3)]
        operations.append(("fusion.2", "jit(step)/transpose(jvp())/checkpoint/dot_general", 4))
        for op, of, duration in operations if recomputes else (operations[0], operations[2]):
            builder.xla_op(
                op,
                at,
                at + ms(duration),
                text=f"%{op} = f32[8,128]{{1,0:T(8,128)}} fusion()",
                path=of,
                source_line="model.py:37",
                **(inside if op == name else {}),
            )
            at += ms(duration)
    return builder.build()


def test_xla_recomputation_is_known_by_path_and_name() -> None:
    checked = check_rule(
        Recompute,
        slow=on_a_tpu("fusion.7", PATH),
        fixed=on_a_tpu("fusion.7", PATH, recomputes=False),
        saves="3ms",
    )
    assert checked.expected_ns == 1_500_000
    table = checked.findings[0].evidence[0]
    assert isinstance(table, Table)
    assert table.rows == (("fusion.7", "", "", "model.py:37", 2, 6_000_000),)


def test_what_a_short_step_writes_shows_that_everything_fits() -> None:
    array = "bf16[4096,4096]{1,0:T(8,128)(2,1)}"
    fusion = f"%fusion = {array} fusion({array} %x), kind=kLoop"
    text = f"""
        %x = {array} parameter(0)
        %y = {array} tanh({array} %x) // in fusion, result
    """
    trace = drawn(SLOW, fusion, program(text), path=PATH)
    (finding,) = find(Recompute, trace) or ()
    assert finding.saving is not None
    # 32 MiB are read and 32 MiB are written, on a device of 16 GiB: all of 2 x 400 µs can go.
    assert "is 64.0 MiB" in finding.summary
    assert finding.saving.expected_ns == finding.saving.high_ns == 800_000
    assert finding.saving.low_ns == 400_000
    # Arguments that leave no room.
    full = program(text.replace("4096,4096", "65536,122880"))
    (finding,) = find(Recompute, drawn(SLOW, fusion, full, path=PATH)) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 200_000


BACKWARD = "jit(step)/transpose(jvp(jvp()))/checkpoint/dot_general"


@pytest.mark.parametrize(
    ("product", "paths", "is_recomputed"),
    [
        # As libtpu 0.0.52 fuses them: the product is recomputed, and the backward pass adds to it.
        (PATH, f"{PATH}\n{BACKWARD}\n{BACKWARD}/mul", True),
        # A product of the backward pass reads what is recomputed in the same fusion.
        (BACKWARD, f"{PATH}\n{PATH}/sub\n{BACKWARD}", False),
        ("", f"{PATH}/sub\n{PATH}/tanh\n{BACKWARD}/mul", True),
        ("", f"{PATH}/sub\n{BACKWARD}/mul", False),
    ],
)
def test_what_is_inside_a_fusion_decides(product: str, paths: str, *, is_recomputed: bool) -> None:
    text = f'%convolution.1 = bf16[8,128] convolution(), metadata={{op_name="{product}"}}'
    inside = {"inside_paths": paths, **({"product": text} if product else {})}
    for path in (PATH, BACKWARD):
        found = find(Recompute, on_a_tpu("fusion.7", path, **inside)) or ()
        assert len(found) == is_recomputed


@pytest.mark.parametrize(
    ("name", "path", "is_recomputed"),
    [
        ("fusion.7", PATH, True),
        ("splash_mha_dkv_segmented_block_kv", PATH, False),  # a backward kernel of its own
        ("fusion.7.remat", "jit(step)/dot_general", True),
        ("fusion.7.remat2", "jit(step)/dot_general", True),
        ("fusion.7.remat.1", "jit(step)/dot_general", True),
        ("fusion.7.rematch", "jit(step)/dot_general", False),
        # The gradient of the checkpointed layer itself.
        ("fusion.7", "jit(step)/transpose(jvp(jvp()))/checkpoint/dot_general", False),
    ],
)
def test_which_operations_are_recomputed(name: str, path: str, *, is_recomputed: bool) -> None:
    assert len(find(Recompute, on_a_tpu(name, path)) or ()) == is_recomputed
    # Launches are not needed: the operations suffice.
    assert len(find(Recompute, on_a_tpu(name, path, launches=False)) or ()) == is_recomputed


def test_fires_only_beyond_the_limits() -> None:
    def count_with(name: str, value: float) -> int:
        return len(find(Recompute, trace(), settings={name: value}) or ())

    # Recomputation takes 3 of 10 ms; 20 of 80 GiB are used.
    assert (count_with("minimum_share", 0.29), count_with("minimum_share", 0.31)) == (1, 0)
    assert (count_with("maximum_memory", 0.24), count_with("maximum_memory", 0.26)) == (0, 1)


def test_at_best_what_fusions_of_the_backward_pass_also_recompute_is_not_needed() -> None:
    builder = TraceBuilder("jax").device("TPU v5 lite", kind="tpu", memory_bytes=16 * GIB)
    text = "%{0} = f32[8,128]{{1,0:T(8,128)}} fusion()"
    mixed = f"{PATH}\n{BACKWARD}/mul\n{BACKWARD}/add\n{BACKWARD}/sub"
    for step in range(2):
        start = ms(10 * step)
        builder.step(step, start, start + ms(10))
        builder.launch(start, start + us(10))
        builder.xla_op(
            "fusion.7", start, start + ms(2), text=text.format("fusion.7"), path=PATH,
            source_line="model.py:37",
        )  # fmt: skip
        builder.xla_op(
            "fusion.8", start + ms(2), start + ms(10), text=text.format("fusion.8"), path=BACKWARD,
            source_line="model.py:37", inside_paths=mixed,
        )  # fmt: skip
    (finding,) = find(Recompute, builder.build()) or ()
    assert finding.saving is not None
    # In each step, 2 ms are recomputed, and one of four operations in a fusion of 8 ms.
    assert finding.saving.high_ns == 2 * (ms(2) + ms(2))
    assert finding.saving.expected_ns == 2 * ms(2) // 4
    assert finding.summary.startswith("Device work of 2.00 ms of each step (20.0 %)")


def on_the_cpu(repeated: str) -> dict[str, Symbol]:
    """A forward, a repeated and a backward operation of a JAX program on the CPU."""
    dot = "%dot.3 = f32[256,1024]{1,0} dot(f32[256,512]{1,0} %x, f32[512,1024]{1,0} %w)"
    paths = {"f": "jit(step)/jvp()/dot_general", "r": repeated, "b": f"{BACKWARD}/transpose"}
    return {
        letter: Symbol(EventKind.OPERATOR, f"dot.{letter}", hlo={"text": dot, "path": path})
        for letter, path in paths.items()
    }


SLOW_ON_THE_CPU = """
    cell 1ms
    step |..........|..........|
    main |.ffrrrbbb.|.ffrrrbbb.|
"""
FIXED_ON_THE_CPU = """
    cell 1ms
    step |.......|.......|
    main |.ffbbb.|.ffbbb.|
"""


def test_a_host_has_memory_for_all_activations() -> None:
    checked = check_rule(
        Recompute,
        slow=SLOW_ON_THE_CPU,
        fixed=FIXED_ON_THE_CPU,
        saves="3ms",
        legend=on_the_cpu(PATH),
        framework="jax",
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 90 % of 3 ms in each of two steps; half at least, all at most.
    assert finding.saving.expected_ns == 2 * 2_700_000
    assert (finding.saving.low_ns, finding.saving.high_ns) == (3_000_000, 6_000_000)
    assert [remedy.change for remedy in finding.remedies] == ["less-checkpointing"]


@pytest.mark.parametrize("path", [BACKWARD, "jit(step)/dot_general"])
def test_gradients_are_needed_on_the_cpu_too(path: str) -> None:
    assert find(Recompute, SLOW_ON_THE_CPU, legend=on_the_cpu(path), framework="jax") == ()


def test_pytorch_on_the_cpu_does_not_tell_what_is_recomputed() -> None:
    text = SLOW_ON_THE_CPU.translate(str.maketrans("frb", "OOO"))
    assert find(Recompute, text) is None
