from __future__ import annotations

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.report.formats.wording import number_rows
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tb_perfadvisor.trace import Framework, Precision, Trace
from tests.support.transformer import Drawing, Shape


def report_of(trace: Trace) -> Report:
    return analyze(run_of(trace))


def on_the_cpu() -> TraceBuilder:
    """Two steps of 10 ms on the CPU: 6 ms of mm and 2 ms of relu in each."""
    builder = TraceBuilder()
    for number in range(2):
        begin = ms(10 * number)
        builder.step(number, begin, begin + ms(10))
        builder.operator("aten::mm", begin, begin + ms(6))
        builder.operator("aten::relu", begin + ms(6), begin + ms(8))
    return builder


def test_a_program_on_the_cpu_shows_its_own_numbers() -> None:
    numbers = {number.id: number for number in report_of(on_the_cpu().build()).key_numbers}
    assert list(numbers) == ["step-time", "input-wait"]
    assert numbers["step-time"].value == ms(10)
    assert numbers["input-wait"].value is None


@pytest.mark.parametrize(
    ("framework", "peak_mib", "notes"),
    [
        # 3 + 2 MiB. PyTorch's totals on the host leave out what was there before the recording.
        ("pytorch", 5, ["since the recording began"]),
        ("tensorflow", 12, []),
    ],
)
def test_the_peak_of_host_memory(framework: Framework, peak_mib: int, notes: list[str]) -> None:
    builder = TraceBuilder(framework).step(0, 0, ms(9))
    builder.operator("aten::mm", 0, ms(9), launches=False)
    allocated = 7 << 20
    for number, change in enumerate((3 << 20, 2 << 20, -(2 << 20))):
        allocated += change
        builder.memory(ms(number), change, device=-1, allocated_bytes=allocated)
    report = report_of(builder.build())
    assert report.overview.host_memory is not None
    assert report.overview.host_memory.peak_allocated_bytes == peak_mib << 20
    (peak,) = [number for number in report.key_numbers if number.id == "peak-host-memory"]
    assert (peak.value, peak.unit, peak.notes) == (peak_mib << 20, "bytes", notes)


def test_device_memory_without_totals_counts_from_the_start() -> None:
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3").step(0, 0, ms(9))
    builder.launch(0, ms(1), key="first")
    builder.kernel("ampere_sgemm", ms(1), ms(9), launched_by="first")
    for number, change in enumerate((3 << 20, 2 << 20, -(2 << 20))):
        builder.memory(ms(number), change, device=0)
    (peak,) = [each for each in report_of(builder.build()).key_numbers if each.id == "peak-memory"]
    assert (peak.value, peak.notes) == (5 << 20, ["above the start of the recording"])


def test_without_steps_nothing_is_called_per_step() -> None:
    trace = draw("""
        cell 1ms
        main   |DDDDoo....|
        gpu 7  |.....KKKKK|
    """)
    numbers = report_of(trace).key_numbers
    assert numbers[0].id == "profiled-time"
    assert numbers[0].notes == ["no repeating steps"]  # all of it is analyzed
    texts = [f"{number.label} {number.of} {' '.join(number.notes)}" for number in numbers]
    assert not [text for text in texts if "step time" in text or "Step" in text]


def test_what_a_device_program_lacks_is_unknown_not_absent() -> None:
    trace = draw("""
        cell 1ms
        step   |..........|..........|
        main   |DDDDoo....|DDDDoo....|
        gpu 7  |.....KKKKK|.....KKKKK|
    """)
    numbers = {number.id: number for number in report_of(trace).key_numbers}
    assert numbers["device-compute"].value == 0.5
    assert numbers["peak-memory"].value is None
    assert "exposed-communication" not in numbers  # one rank


def test_weights_in_fewer_bits_are_shown_beside_the_precision() -> None:
    builder = TraceBuilder().step(0, 0, ms(10))
    product = "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu"
    for name, start, end, width in (
        (product, 0, 2, Precision.BITS_16),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", 2, 8, Precision.BITS_16),
    ):
        builder.operator("aten::mm", ms(start), ms(end))
        builder.kernel(name, ms(start), ms(end), precision=width)
    (number,) = [n for n in report_of(builder.build()).key_numbers if n.id == "16-bit-compute"]
    # 2 of 8 ms.
    assert (number.value, number.notes) == (1.0, ["weights in 4 bits 25.0 %"])


def test_mfu_names_its_peak_and_tokens_their_step() -> None:
    drawing = Drawing(Shape(batch=2, length=1024))
    drawing.builder.step(0, 0, ms(2))
    drawing.step()
    report = report_of(drawing.builder.build())
    numbers = {number.id: number for number in report.key_numbers}
    mfu, tokens = numbers["mfu"], numbers["tokens-per-second"]
    assert (mfu.value, mfu.of) == (report.overview.mfu, "989 TFLOP/s")
    assert mfu.notes[0].startswith("HFU ")
    # 2 x 1,024 tokens in 2 ms.
    assert (tokens.value, tokens.notes) == (1_024_000, ["2,048 per step and rank"])
    assert numbers["samples-per-second"].value == 1000
    rows = {label: (value, notes) for label, value, notes in number_rows(report)}
    assert rows["MFU"][1].startswith("of 989 TFLOP/s, HFU ")
    assert rows["Tokens"] == ("1,024,000/s", "2,048 per step and rank")


def test_why_mfu_is_unknown_is_said_in_short_and_at_length() -> None:
    trace = draw("""
        cell 1ms
        step   |..........|..........|
        main   |DDDDoo....|DDDDoo....|
        gpu 7  |.....KKKKK|.....KKKKK|
    """)
    report = report_of(trace)
    (mfu,) = [number for number in report.key_numbers if number.id == "mfu"]
    (row,) = [row for row in number_rows(report) if row[0] == "MFU"]
    assert row[1] == "unknown"
    assert row[2].endswith(" Record with record_shapes=True.")
    assert (mfu.value, mfu.of, mfu.notes) == (None, "", ["no shapes recorded"])
    assert mfu.definition.endswith(
        "Unknown here: The shapes of the operators were not recorded. "
        "Record with record_shapes=True."
    )
