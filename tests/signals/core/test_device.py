from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.signals import Options, Signals
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tb_perfadvisor.trace import Trace


def signals_of(trace: Trace) -> Signals:
    return Signals(run_of(trace))


def test_busiest_device_represents_the_worker() -> None:
    # Device 0 has more kernel time (4 + 4 overlap: 4 busy), device 1 is busy for longer (5).
    device = signals_of(
        draw(
            """
            cell 1ms
            gpu0 7 |KKKK..|
            gpu0 8 |KKKK..|
            gpu1 7 |KKKKK.|
            """
        )
    ).device
    assert (device.index, device.used) == (1, 2)
    assert device.busy.tolist() == [[0, ms(5)]]


def test_waits_and_containers_are_not_work() -> None:
    device = signals_of(
        draw(
            """
            cell 1ms
            tpu 0 |YYYYYII|
            tpu 0 |XX.XX..|
            """
        )
    ).device
    assert (len(device.rows), len(device.containers)) == (2, 1)
    assert device.busy.tolist() == [[0, ms(2)], [ms(3), ms(5)]]
    assert device.waits.tolist() == [[ms(5), ms(7)]]


def test_a_kernel_that_encloses_another_on_its_stream_is_still_work() -> None:
    device = signals_of(
        draw(
            """
            cell 1ms
            gpu 7 |KKKK|
            gpu 7 |.HH.|
            """
        )
    ).device
    assert (len(device.rows), len(device.containers)) == (2, 0)


def test_cpu_program_has_no_missing_device() -> None:
    signals = signals_of(
        draw(
            """
            cell 1ms
            main |OO|
            """
        )
    )
    assert (signals.device.index, signals.device.is_missing) == (None, False)
    assert signals.device.is_host_only
    assert signals.device_facts is None


@pytest.mark.parametrize("sign", ["a launch", "a listed device", "a backend"])
def test_device_without_events_is_missing(sign: str) -> None:
    builder = TraceBuilder().operator("aten::mm", ms(0), ms(1), launches=False)
    if sign == "a launch":
        builder.launch(ms(0), ms(1))
    elif sign == "a listed device":
        builder.device("NVIDIA A100-SXM4-80GB")
    trace = builder.build()
    if sign == "a backend":  # as in the corpus' hta/rank_unavailable
        trace = replace(trace, source=replace(trace.source, backend="nccl"))
    device = signals_of(trace).device
    assert (device.index, device.is_missing, device.is_host_only) == (None, True, False)


def test_facts_of_the_file_precede_the_device_table() -> None:
    drawing = """
        cell 1ms
        gpu 7 |KK|
    """
    facts = signals_of(draw(drawing, device="NVIDIA H100 80GB HBM3")).device_facts
    assert facts is not None
    # NVIDIA H100 data sheet, SXM: NVLink 900 GB/s in both directions together.
    assert (facts.link, facts.link_bandwidth_bytes_per_s) == ("nvlink", 450e9)
    assert facts.peaks is not None
    unknown = signals_of(draw(drawing, device="Nvidia Fancy 9999")).device_facts
    assert unknown is not None
    assert (unknown.name, unknown.peaks, unknown.memory_bytes) == ("Nvidia Fancy 9999", None, None)


def test_an_unknown_device_takes_the_peaks_that_its_file_states() -> None:
    builder = TraceBuilder("jax").device("TPU v99", kind="tpu", reported_flop_per_s=9e14)
    facts = signals_of(builder.xla_op("fusion", 0, ms(1)).build()).device_facts
    assert facts is not None
    assert facts.peaks is not None


@pytest.mark.parametrize(
    ("stated", "flop_per_s"), [(233.4e12, 233.4e12), (459e12, 459e12), (450e12, 459e12)]
)
def test_a_plane_may_describe_one_of_the_cores_of_a_chip(stated: float, flop_per_s: float) -> None:
    # XProf's training on a TPU v5 lists eight cores with 233.4 TFLOP/s; a v5p chip has 459.
    builder = TraceBuilder("jax").device("TPU v5", kind="tpu", reported_flop_per_s=stated)
    facts = signals_of(builder.xla_op("fusion", 0, ms(1)).build()).device_facts
    assert facts is not None
    assert facts.peaks is not None
    assert facts.peaks.flop_per_s("bf16") == pytest.approx(flop_per_s)


def test_the_users_word_counts_more_than_the_profile() -> None:
    trace = draw("cell 1ms\ngpu 7 |KK|", device="NVIDIA A100-SXM4-40GB")
    facts = Signals(run_of(trace), options=Options(device="H200 NVL")).device_facts
    assert facts is not None
    assert (facts.name, facts.vendor, facts.architecture) == ("H200 NVL 141GB", "nvidia", "9.0")
    assert facts.peaks is not None
    assert facts.peaks.flop_per_s("bf16") == 835.5e12
    assert facts.multiprocessors == 132


def test_the_users_word_is_about_devices_only() -> None:
    trace = draw("cell 1ms\nmain |OO|")
    assert Signals(run_of(trace), options=Options(device="H200 NVL")).device_facts is None


def test_kernels_show_the_device_that_the_file_does_not_describe() -> None:
    # As in kineto-old: the multiprocessors come from the warps of each.
    builder = TraceBuilder().device("", multiprocessors=80)
    facts = signals_of(builder.kernel("volta_sgemm_128x64_nt", 0, ms(1)).build()).device_facts
    assert facts is not None
    assert facts.name == "NVIDIA V100 or V100S"
    assert facts.evidence.startswith("kernels written for Volta (volta_sgemm)")
    assert facts.memory_bytes is None  # 16 or 32 GB
