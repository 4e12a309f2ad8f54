"""Where the time changed by the program's own structure."""

from __future__ import annotations

import pytest

from tb_perfadvisor.comparison.compare import compare_facts
from tb_perfadvisor.comparison.run_facts import ModuleTime, ModuleTimes, RunFacts
from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.model import OperationChange, OperationChanges
from tb_perfadvisor.report.formats.comparison.text import render_text
from tb_perfadvisor.report.formats.comparison.wording import render_markdown
from tb_perfadvisor.testing import TraceBuilder, ms
from tb_perfadvisor.trace import Trace
from tests.support.comparison_facts import facts, facts_of

STEPS = 4


def run(times: dict[str, int | list[int]], *, device: bool = True, step: int = ms(100)) -> RunFacts:
    """Steps of which modules, `outer/inner`, take some time; a number is that of each step."""
    rows = [
        ModuleTime(
            path=tuple(name.split("/")) if name else (),
            step_ns=time if isinstance(time, list) else [time] * STEPS,
        )
        for name, time in times.items()
    ]
    modules = ModuleTimes(is_device_time=device, rows=rows)
    return facts(*[step] * STEPS, modules=modules)


def changes(base: RunFacts, target: RunFacts) -> OperationChanges | None:
    (compared,) = compare_facts(base, [target]).targets
    return compared.modules


def rows(base: RunFacts, target: RunFacts) -> dict[str, OperationChange]:
    found = changes(base, target)
    return {row.name: row for row in found.rows} if found is not None else {}


def test_modules_are_paired_by_name() -> None:
    base = run({"Net/Attention": ms(40), "Net/Loss": ms(3), "Net/Old": ms(2), "": ms(5)})
    target = run({"Net/Attention": ms(30), "Net/Loss": ms(3), "Net/New": ms(1), "": ms(6)})
    found = rows(base, target)
    assert [(row.name, row.status, row.change_ns) for row in found.values()] == [
        ("Net/Attention", "faster", -ms(10)),
        ("Net/Old", "removed", -ms(2)),
        ("Net/New", "added", ms(1)),
        ("outside of modules", "slower", ms(1)),
    ]
    assert (found["Net/Old"].target_ns, found["Net/New"].base_ns) == (None, None)
    assert found["Net/Old"].speed_up is None


def test_the_printed_times_divide_to_the_printed_speed_up() -> None:
    row = rows(run({"Net": 42_049_999}), run({"Net": 29_950_001}))["Net"]
    # 42.0 ms and 30.0 ms (29.95 rounds up) are shown.
    assert row.speed_up == 42.0 / 30.0
    assert row.is_certain


def test_modules_that_differ_by_number_are_one_row() -> None:
    base = run({f"Encoder_0/Layer_{place}/Attention_{place}": ms(4) for place in range(12)})
    target = run({f"Encoder_0/Layer_{place}/Attention_{place}": ms(3) for place in range(12)})
    (row,) = rows(base, target).values()
    assert (row.name, row.base_ns, row.target_ns) == (
        "Encoder_*/Layer_*/Attention_*",
        ms(48),
        ms(36),
    )
    assert (row.base_count, row.target_count) == (12, 12)


def test_a_module_with_most_of_what_changed_is_a_row() -> None:
    layers = {f"encoder.layers.{place}.attention": ms(3) for place in range(4)}
    slow = layers | {"encoder.layers.3.attention": ms(9)}
    base = run(dict(slow))
    target = run(
        {name: time - ms(1) if name[15] != "3" else ms(3) for name, time in layers.items()}
    )
    # Layer 3 saves 6 of 9 ms, the three others 1 ms each.
    assert {name: (row.base_ns, row.target_ns) for name, row in rows(base, target).items()} == {
        "encoder.layers.3.attention": (ms(9), ms(3)),
        "encoder.layers.*.attention": (ms(9), ms(6)),
    }


def test_numbers_that_shift_are_no_change() -> None:
    """Keras and PyTorch count the modules that a process made."""
    base = run({"sequential_11/dense_4": ms(20), "sequential_11/conv_4": ms(30)})
    target = run({"sequential_13/dense_6": ms(20), "sequential_13/conv_6": ms(25)})
    (row,) = rows(base, target).values()
    assert (row.name, row.change_ns) == ("sequential_*/conv_*", -ms(5))


@pytest.mark.parametrize("name", ["Conv2d", "layer1", "float16"])
def test_digits_of_a_word_are_no_number(name: str) -> None:
    (row,) = rows(run({name: ms(2), "a": ms(1)}), run({name: ms(1), "a": ms(1)})).values()
    assert row.name == name


def test_changes_within_the_noise_are_marked() -> None:
    base = run({"even": ms(20), "uneven": [ms(20), ms(30), ms(20), ms(30)]})
    target = run({"even": ms(24), "uneven": [ms(36), ms(20), ms(36), ms(20)]})
    # Means of 25 and 28 ms, whose steps differ by 10 and 16 ms.
    found = rows(base, target)
    assert (found["even"].is_certain, found["uneven"].is_certain) == (True, False)
    # A hundredth is within what any two recordings differ by.
    near = rows(run({"a": ms(40)}), run({"a": ms(40) + ms(0.4)}))["a"]
    assert near.is_certain is False


def test_only_whole_periods_count() -> None:
    # Every third step is long, and the eleventh is the second of its period.
    waits = [ms(10), ms(10), ms(40)] * 3 + [ms(10), ms(10)]
    base = facts(
        *waits,
        cause_step_ns={"compute-32": waits},
        modules=ModuleTimes(is_device_time=True, rows=[ModuleTime(path=("Net",), step_ns=waits)]),
    )
    target = run({"Net": ms(10)}, step=ms(10))
    # The mean of three whole periods is 60 / 3 ms, that of all eleven steps less.
    assert rows(base, target)["Net"].base_ns == ms(20)


def test_without_steps_whole_recordings_are_compared() -> None:
    base = facts(causes={"compute-32": ms(100)}, modules=run({"Net": ms(10)}).modules)
    (row,) = rows(base, run({"Net": ms(5)})).values()
    # The sums over four steps, in both: the base has no known steps.
    assert (row.base_ns, row.target_ns) == (ms(40), ms(20))
    assert (row.speed_up, row.is_certain) == (None, None)


def test_rows_take_no_more_than_the_step() -> None:
    times = {f"{chr(97 + place)}": [ms(2) + 1, ms(2), ms(2), ms(2)] for place in range(20)}
    target = {name: [2 * ns for ns in step_ns] for name, step_ns in times.items()}
    found = changes(run(dict(times)), run(dict(target), step=ms(200)))
    assert found is not None
    # Each mean of 2,000,000.25 ns is rounded down.
    assert sum(row.base_ns or 0 for row in found.rows) == 20 * ms(2)


@pytest.mark.parametrize(
    "target",
    [
        facts(*[ms(100)] * STEPS),
        run({"Other": ms(1)}),
        run({"Net": ms(1)}, device=False),
        run({"Net": ms(10), "": ms(90)}),
    ],
    ids=["without modules", "none in common", "on the host", "none that changed"],
)
def test_nothing_without_a_common_module_that_changed(target: RunFacts) -> None:
    assert changes(run({"Net": ms(10)}), target) is None


def program(kernels: tuple[str, str], lengths: tuple[int, int], device: str) -> Trace:
    """Three steps of attention and a linear layer, whose kernels run one after the other."""
    builder = TraceBuilder().device(device)
    for step in range(3):
        at = ms(20 * step)
        builder.step(step, at, at + ms(20))
        builder.annotation("nn.Module: Block_0", at, at + ms(2))
        start = at + ms(1)
        for place, (module, kernel, length) in enumerate(
            zip(("Attention_0", "Linear_0"), kernels, lengths, strict=True)
        ):
            call = at + ms(place)
            key = f"{step} {place}"
            builder.annotation(f"nn.Module: {module}", call, call + ms(1))
            builder.operator("aten::mm", call, call + ms(1), launches=False)
            builder.launch(call + 1, call + 2, key=key)
            builder.kernel(kernel, start, start + ms(length), launched_by=key)
            start += ms(length)
    return builder.build()


def test_programs_on_devices_of_two_vendors_have_modules_in_common() -> None:
    names = ("fmha_cutlassF_bf16_aligned_64x64_sm80", "nvjet_tst_128x160_64x5_2x4_v_bz_NTT")
    base = facts_of(program(names, (4, 6), "NVIDIA H100 80GB HBM3"), name="h100")
    names = ("paged_attention_ll4mi_QKV_mfma16_kernel", "Cijk_Alik_Bljk_BBS_BH_MT32x16x512")
    target = facts_of(program(names, (8, 6), "AMD Instinct MI300X"), name="mi300")
    comparison = compare_facts(base, [target])
    (compared,) = comparison.targets
    assert compared.kernels is not None
    assert {row.status for row in compared.kernels.rows} == {"added", "removed"}
    assert compared.modules is not None
    (row,) = compared.modules.rows
    assert (row.name, row.base_ns, row.target_ns) == ("Block_0/Attention_0", ms(4), ms(8))
    document = model.ComparisonDocument(
        schema_version=1,
        generator=model.Generator(name="x", version="1"),
        comparisons=[comparison],
        notes=[],
    )
    (line,) = (text for text in render_text(document).splitlines() if "Attention_0" in text)
    assert line.split() == [
        "Block_0/Attention_0",
        "4.00",
        "ms",
        "8.00",
        "ms",
        "+4.00",
        "ms",
        "0.50×",
    ]
    assert "| Block_0/Attention_0 | 4.00 ms | 8.00 ms | +4.00 ms | 0.50× |" in render_markdown(
        document
    ).replace("\\_", "_")
