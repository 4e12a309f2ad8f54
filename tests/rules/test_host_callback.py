from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec import structs

from tb_perfadvisor.rules.input.copies import ExposedCopies
from tb_perfadvisor.rules.launch.host_work import PythonOverhead
from tb_perfadvisor.rules.launch.waits import HostCallback
from tb_perfadvisor.rules.placement.devices import OutsideCompilation
from tb_perfadvisor.signals.host.host_callbacks import is_callback
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, host, iterator, operator, xla_op
from tb_perfadvisor.trace import CopyDirection, EventKind

# Names that JAX 0.10 records on the CPU.
CALL = (
    "%pure_callback.1 = f32[512,512]{1,0} custom-call(f32[512,512]{1,0} %fusion), "
    'custom_call_target="xla_ffi_python_cpu_callback"'
)
PATH = "jit(train)/pure_callback"
ON_CPU: Mapping[str, Symbol] = {
    "P": Symbol(EventKind.OPERATOR, "pure_callback.1", hlo={"text": CALL, "path": PATH}),
    "o": Symbol(EventKind.OPERATOR, "dot.3"),
}
SLOW = """
    cell 1ms
    step |..........|..........|
    main |oooPPPPooo|oooPPPPooo|
"""
FIXED = """
    cell 1ms
    step |......|......|
    main |oooooo|oooooo|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        HostCallback, slow=SLOW, fixed=FIXED, saves="4ms", legend=ON_CPU, framework="jax"
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 4 ms in each of two steps; the work of the function may be needed.
    assert (finding.saving.low_ns, finding.saving.expected_ns) == (0, 8_000_000)
    assert finding.summary == (
        "No other operator runs for 4.00 ms of each step (40.0 %) while the step calls Python"
        " (1 call per step), mostly pure_callback.1."
    )


def test_calls_that_overlap_other_threads_cost_nothing() -> None:
    trace = """
        cell 1ms
        step |..........|..........|
        main |oooPPPPooo|oooPPPPooo|
        pool |...ooo....|...ooo....|
    """
    (finding,) = find(HostCallback, trace, legend=ON_CPU, framework="jax") or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2_000_000


def test_finds_python_functions_in_a_tensorflow_step() -> None:
    legend = {"P": operator("EagerPyFunc:EagerPyFunc", launches=False)}
    (finding,) = find(HostCallback, SLOW, legend=legend, framework="tensorflow") or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 8_000_000


def test_a_call_beside_operators_takes_one_of_their_cores() -> None:
    trace = """
        cell 1ms
        step      |..........|..........|
        main      |oooPPPPooo|oooPPPPooo|
        pool      |..ooooo...|..ooooo...|
        tf_data_x |i.........|i.........|
    """
    legend = {"P": operator("PyFunc:PyFunc", launches=False), "i": iterator("Root", cores=2)}
    (finding,) = find(HostCallback, trace, legend=legend, framework="tensorflow") or ()
    assert finding.saving is not None
    # Half of 4 ms in each of two steps, of which three quarters are expected.
    assert (finding.saving.expected_ns, finding.saving.high_ns) == (3_000_000, 4_000_000)
    assert finding.saving.low_ns == 0


def test_python_functions_of_the_input_pipeline_are_left_alone() -> None:
    trace = """
        cell 1ms
        step      |..........|..........|
        main      |oooDDDDooo|oooDDDDooo|
        tf_data_x |...PPPP...|...PPPP...|
    """
    legend = {"P": host("EagerPyFunc:EagerPyFunc", EventKind.INPUT_WORK)}
    assert find(HostCallback, trace, legend=legend, framework="tensorflow") == ()


ON_GPU: Mapping[str, Symbol] = {
    # The copies carry the operation's name; between them the function runs.
    "g": Symbol(
        EventKind.COPY,
        "MemcpyD2H",
        copy={"direction": CopyDirection.DEVICE_TO_HOST},
        hlo={"text": CALL.replace("cpu", "gpu"), "path": PATH},
    ),
    "h": Symbol(
        EventKind.COPY,
        "MemcpyH2D",
        copy={"direction": CopyDirection.HOST_TO_DEVICE},
        hlo={"text": CALL.replace("cpu", "gpu"), "path": PATH},
    ),
}
GPU_SLOW = """
    cell 1ms
    step  |..........|..........|
    main  |LL....L...|LL....L...|
    gpu 7 |KKg....hKK|KKg....hKK|
"""


def test_on_a_gpu_the_device_waits_between_the_copies() -> None:
    (finding,) = find(HostCallback, GPU_SLOW, legend=ON_GPU, framework="jax") or ()
    assert finding.saving is not None
    # Two steps of 4 ms; the copies themselves are copies.
    assert finding.saving.expected_ns == 8_000_000
    assert "(1 call per step)" in finding.summary
    # Without the operation's name the same gaps are reported by python-overhead.
    assert find(PythonOverhead, GPU_SLOW, legend=ON_GPU, framework="jax") == ()
    plain = {letter: structs.replace(symbol, hlo={}) for letter, symbol in ON_GPU.items()}
    assert find(HostCallback, GPU_SLOW, legend=plain, framework="jax") == ()


def _transfer(opcode: str, operand: str) -> Symbol:
    result = "(f32[8,128]{1,0:T(8,128)}, token[])" if "recv" in opcode else "token[]"
    text = (
        f"%{opcode}.1 = {result} {opcode}({operand}), channel_id=3, is_host_transfer=true, "
        'frontend_attributes={_xla_host_transfer_handler_name="pjrt_rendezvous",'
        '_xla_host_transfer_rendezvous="3"}'
    )
    return xla_op(f"{opcode}.1", text, kind=EventKind.COPY, path=PATH)


ON_TPU = {
    "s": _transfer("send", "f32[8,128]{1,0:T(8,128)} %x, token[] %t"),
    "r": _transfer("recv-done", "(f32[8,128]{1,0:T(8,128)}, u32[], token[]) %recv.1"),
}
TPU_SLOW = """
    cell 1ms
    step  |..........|..........|
    main  |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0 |XXXsrrrXXX|XXXsrrrXXX|
"""


def test_on_a_tpu_the_core_waits_for_the_result() -> None:
    (finding,) = find(HostCallback, TPU_SLOW, legend=ON_TPU) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 8_000_000
    assert "mostly recv-done.1" in finding.summary
    # Reported once.
    assert find(ExposedCopies, TPU_SLOW, legend=ON_TPU) == ()
    assert find(OutsideCompilation, TPU_SLOW, legend=ON_TPU) == ()


@pytest.mark.parametrize(
    ("text", "path", "calls_python"),
    [
        (CALL, PATH, True),
        # JAX 0.4
        ('%c = f32[] custom-call(), custom_call_target="xla_python_cpu_callback"', "", True),
        ('%c = opaque[] custom-call(), custom_call_target="x"', "jit(f)/debug_print", True),
        ('%c = f32[] custom-call(), custom_call_target="tpu_custom_call"', "jit(f)/dot", False),
        # A user's function of that name, compiled like any other.
        ("%fusion = f32[] fusion()", "jit(f)/jit(pure_callback)/add", False),
        ('%c = f32[8] custom-call(), custom_call_target="__cublas$gemm"', "callback/dot", False),
    ],
)
def test_recognizes_operations_that_call_python(
    text: str, path: str, *, calls_python: bool
) -> None:
    assert is_callback(text, path) is calls_python


def test_not_applicable_to_pytorch() -> None:
    trace = """
        cell 1ms
        step  |....|....|
        main  |o...|o...|
        gpu 7 |KKKK|KKKK|
    """
    assert find(HostCallback, trace) is None


def test_just_below_and_just_above_the_limit() -> None:
    below, above = {"minimum_share": 0.39}, {"minimum_share": 0.41}
    findings = find(HostCallback, SLOW, legend=ON_CPU, framework="jax", settings=below)
    assert len(findings or ()) == 1
    assert find(HostCallback, SLOW, legend=ON_CPU, framework="jax", settings=above) == ()
