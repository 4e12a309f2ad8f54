from __future__ import annotations

import msgspec

from tb_perfadvisor.rules.launch.launching import LaunchBound
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import kernel, operator
from tb_perfadvisor.trace import Device

SLOW = """
    cell 10us
    step   |..........|..........|
    main   |o.o.o.o.o.|o.o.o.o.o.|
    gpu 7  |.K.K.K.K.K|.K.K.K.K.K|
"""
# One early launch (a CUDA graph): the device never waits.
FIXED = """
    cell 10us
    step   |.....|.....|
    main   |L....|L....|
    gpu 7  |KKKKK|KKKKK|
"""
# Six launches of one cell each for kernels of two cells, and one more while the device idles.
AHEAD = """
    cell 10us
    step   |..............|..............|
    main   |L'''''......L.|L'''''......L.|
    gpu 7  |K-'-'-'-'-'-.K|K-'-'-'-'-'-.K|
"""
AHEAD_LINKS = {("gpu 7", i): ("main", i) for i in range(14)}


def test_saves_what_the_fix_saves() -> None:
    check_rule(LaunchBound, slow=SLOW, fixed=FIXED, saves="50us")


def test_queued_work_is_not_launch_bound() -> None:
    # All kernels were launched at the beginning, so the gaps between them are not the host's.
    trace = """
        cell 10us
        step   |................|
        main   |L...............|
        gpu 7  |KKKK..KK....KKKK|
    """
    launches = {("gpu 7", 1): ("main", 0), ("gpu 7", 2): ("main", 0)}
    assert find(LaunchBound, trace, links=launches) == ()


def test_idle_time_induced_by_a_wait_is_left_alone() -> None:
    # The host waits 4 cells for the device; the idle cell after it belongs to the wait.
    trace = """
        cell 10us
        step   |.........|.........|
        main   |oSSSo....|oSSSo....|
        gpu 7  |KKKK.KKKK|KKKK.KKKK|
    """
    assert find(LaunchBound, trace) == ()


def test_just_below_and_just_above_the_limit() -> None:
    # The device waits for launches for half of the step.
    assert find(LaunchBound, SLOW, settings={"minimum_share": 0.51}) == ()
    assert len(find(LaunchBound, SLOW, settings={"minimum_share": 0.49}) or ()) == 1


def test_a_long_stretch_of_python_is_left_alone() -> None:
    # 30 µs of Python before each kernel counts only if the limit allows gaps that long.
    trace = """
        cell 10us
        step   |......|......|
        main   |pppo..|pppo..|
        gpu 7  |...KKK|...KKK|
    """
    (finding,) = find(LaunchBound, trace, settings={"longest_gap_ns": 31_000}) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 60_000
    assert find(LaunchBound, trace, settings={"longest_gap_ns": 29_000}) == ()


def test_a_host_that_runs_ahead_is_left_alone() -> None:
    # Short kernels and an idle cell in each step, but only two of seven launches (the first and
    # the last) find an empty queue.
    (finding,) = find(LaunchBound, AHEAD, links=AHEAD_LINKS) or ()
    assert "28.6 % of launches" in finding.summary
    settings = {"minimum_empty_share": 0.29}
    assert find(LaunchBound, AHEAD, links=AHEAD_LINKS, settings=settings) == ()


def test_the_low_estimate_is_discounted_for_the_profiler() -> None:
    # Each operator's recording costs 600 ns, with shapes 1 000 ns; of the 10 in 2 steps the
    # first of each step begins before any gap. A launch call in it takes a tenth of a cell.
    (plain,) = find(LaunchBound, SLOW) or ()
    (shapes,) = find(LaunchBound, SLOW, has_shapes=True) or ()
    assert plain.saving is not None
    assert shapes.saving is not None
    assert plain.saving.low_ns - shapes.saving.low_ns == 10 * 400
    assert plain.saving.high_ns == shapes.saving.high_ns


def test_the_first_remedy_fits_what_takes_the_time() -> None:
    (finding,) = find(LaunchBound, SLOW) or ()  # the host is in launch calls
    assert "reduce-overhead" in finding.remedies[0].snippet
    eager = """
        cell 10us
        step   |......|......|
        main   |OOOOo.|OOOOo.|
        gpu 7  |.....K|.....K|
    """
    (finding,) = find(LaunchBound, eager) or ()  # it is in an operator that launches nothing
    assert finding.remedies[0].snippet == "model = torch.compile(model)"


def test_other_accelerators_have_no_cuda_graphs() -> None:
    trace = draw(SLOW)
    strings = tuple(text.replace("cudaLaunch", "artemisLaunch") for text in trace.strings)
    devices = (Device(0, "ARTEMIS", "other"),)
    other = msgspec.structs.replace(trace, devices=devices, strings=strings)
    (finding,) = find(LaunchBound, other) or ()
    assert not any("graphs" in remedy.text for remedy in finding.remedies)
    assert finding.remedies[0].snippet == "model = torch.compile(model)"


def test_compiled_models_are_not_advised_to_compile() -> None:
    # A name in TraceLens' recording of a compiled diffusion model (MI300X).
    name = "triton_per_fused__to_copy_add_addmm_mean_mul_pow_rsqrt_transpose_view_9"
    (finding,) = find(LaunchBound, SLOW, legend={"K": kernel(name)}) or ()
    (first, *remaining) = finding.remedies
    assert "cudagraphs" in first.snippet
    assert not any("torch.compile(" in remedy.snippet for remedy in (first, *remaining))


def test_what_to_record_comes_first_where_the_host_is_unknown() -> None:
    # Per step, 50 us of launching; and 60 us of gaps in which no call of the host is recorded.
    unknown = """
        cell 10us
        step   |................|................|
        main   |o....o....o.....|o....o....o.....|
        gpu 7  |.K....K....KKKKK|.K....K....KKKKK|
    """
    (finding,) = find(LaunchBound, unknown) or ()
    assert finding.remedies[0].text.startswith("Record with Python stacks")
    assert "nothing in the profile tells what the host does" in finding.summary
    (known,) = find(LaunchBound, SLOW) or ()
    assert not known.remedies[0].text.startswith("Record with Python stacks")
    assert "nothing in the profile" not in known.summary


def test_what_breaks_into_pieces_is_not_to_be_compiled() -> None:
    # Each operator decides on a tensor, so that a compiled graph ends at each launch.
    trace = f"""
        cell 10us
        step   |{"..........|" * 4}
        main   |{"o.o.o.o.o.|" * 4}
        gpu 7  |{".K.K.K.K.K|" * 4}
    """
    (finding,) = find(LaunchBound, trace, legend={"o": operator("aten::nonzero")}) or ()
    assert finding.remedies
    assert not any("compile" in remedy.snippet for remedy in finding.remedies)


def test_old_gpus_record_graphs_without_a_compiler() -> None:
    device = Device(0, "Quadro GP100", "gpu", compute_capability="6.0")
    trace = msgspec.structs.replace(draw(SLOW), devices=(device,))
    (finding,) = find(LaunchBound, trace) or ()
    assert finding.remedies[0].snippet.startswith("model = torch.cuda.make_graphed_callables(")
    assert not any("torch.compile(" in remedy.snippet for remedy in finding.remedies)
