"""Also fires on the operations of a recorded training on a TPU v5 (tests/corpus)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.xla.moved_elements import DataShuffling
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import Symbol, xla_op
from tests.support.program_values import MODULE, drawn, program
from tests.support.xla_operation import FIXED, FUSION, SLOW, check_limit, fires, legend, saved_ns

MATCHING = (
    (
        "%dynamic-update-slice.33 = f32[16,7168,512]{2,0,1:T(8,128)} dynamic-update-slice"
        "(f32[16,7168,512]{2,0,1:T(8,128)} %get-tuple-element.1342, f32[1,7168,512]{2,0,1"
        ":T(1,128)} %copy.490, s32[]{:T(128)S(6)} %select.145, s32[]{:T(128)} %c, s32[]{:"
        "T(128)} %c)",
        "jit(train_step)/while/body/dynamic_update_slice:",
    ),
    (
        "%sort = (s32[8192]{0:T(1024)}, s32[8192]{0:T(1024)}) sort(s32[8192]{0:T(1024)} %"
        "b, s32[8192]{0:T(1024)} %i), dimensions={0}, to_apply=%compare",
        "",
    ),
    (
        "%gather.1 = f32[8,1024]{1,0:T(8,128)} gather(f32[32000,1024]{1,0:T(8,128)} %t, s"
        "32[8,1]{1,0:T(8,128)} %i), offset_dims={1}",
        "",
    ),
)
OTHER = (
    (
        "%all-gather.276 = bf16[2048,32000]{1,0:T(8,128)(2,1)} all-gather(bf16[512,32000]"
        "{1,0:T(8,128)(2,1)} %convert.658), channel_id=21, dimensions={0}",
        "",
    ),
    (
        "%slice.1 = f32[1024,128]{1,0:T(8,128)} slice(f32[1024,1024]{1,0:T(8,128)} %p0), "
        "slice={[0:1024], [128:256]}",
        "",
    ),
    (FUSION, "jit(f)/gather"),
)


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        DataShuffling, slow=SLOW, fixed=FIXED, saves="4ms", legend=legend(*MATCHING[0])
    )
    # Half of the 8 ms in both steps is expected.
    assert saved_ns(checked) == (0, 4_000_000, 8_000_000)


@pytest.mark.parametrize(("text", "path"), MATCHING)
def test_fires_on_matching_operations(text: str, path: str) -> None:
    assert fires(DataShuffling, text, path)


@pytest.mark.parametrize(("text", "path"), OTHER)
def test_ignores_other_operations(text: str, path: str) -> None:
    assert not fires(DataShuffling, text, path)


def test_fires_only_above_the_limit() -> None:
    check_limit(DataShuffling, *MATCHING[0])


def test_an_operation_that_takes_many_times_what_its_bytes_need_is_named() -> None:
    slow = SLOW.replace("cell 1ms", "cell 100us")
    (finding,) = find(DataShuffling, slow, legend=legend(*MATCHING[0]), device="TPU v5p") or ()
    # 7,168 x 512 x 4 B are read and written: 29.36 MB at 85 % of 2,765 GB/s take 12.49 us, which is
    # a thirty-second of 400 us. At 2,765 GB/s they take 10,618 ns.
    assert finding.summary.endswith(
        "dynamic-update-slice.33 takes 400 µs, 32 times the 12.5 µs that its bytes need."
    )
    assert finding.saving is not None
    assert finding.saving.high_ns == pytest.approx(2 * (400_000 - 10_618), abs=4)


def test_a_fusion_that_only_gathers_is_found_by_what_is_inside() -> None:
    text = "%gather_fusion = bf16[16384,1024]{1,0:T(8,128)(2,1)} fusion(%t, %i), kind=kCustom"
    for opcodes, fires_on in (
        ("custom-call gather reshape slice transpose", True),
        ("add convolution gather", False),
        ("convert multiply", False),
    ):
        symbols = {"s": xla_op("gather_fusion", text, inside_opcodes=opcodes)}
        assert bool(find(DataShuffling, SLOW, legend=symbols)) == fires_on


def gather(words: int) -> dict[str, Symbol]:
    text = (
        f"%gather_fusion = bf16[8192,512]{{1,0:T(8,128)(2,1)S(1)}} fusion(bf16[{words},512]"
        "{1,0:T(8,128)(2,1)S(1)} %copy-done, s32[8192]{0:T(1024)S(1)} %fusion.16), kind=kCustom"
    )
    return {"s": xla_op("gather_fusion", text, inside_opcodes="gather reshape transpose")}


def test_a_gather_gets_no_faster_than_a_product_with_a_one_hot_matrix() -> None:
    (finding,) = find(DataShuffling, SLOW, legend=gather(32), device="TPU v5e") or ()
    (larger,) = find(DataShuffling, SLOW, legend=gather(4096), device="TPU v5e") or ()
    assert finding.saving is not None
    assert larger.saving is not None
    # 2 x 8,192 x 512 x 32 = 0.268 GFLOP at 197 TFLOP/s take 1,363 ns, and of 4,096 rows 174,414 ns,
    # in each of two steps.
    assert finding.saving.high_ns == pytest.approx(8_000_000 - 2 * 1_363, abs=4)
    assert larger.saving.high_ns == pytest.approx(8_000_000 - 2 * 174_414, abs=4)


def test_a_gather_from_a_large_table_has_no_alternative() -> None:
    # 2 x 8,192 x 512 x 131,072 FLOP take 7.4 ms, more than the 4 ms of the gather.
    assert find(DataShuffling, SLOW, legend=gather(131_072), device="TPU v5e") == ()


def test_nothing_of_a_sort_has_to_remain() -> None:
    text = (
        "%sort.6 = (f32[256,8192]{0,1:T(8,128)}, s32[256,8192]{0,1:T(8,128)}) sort("
        "f32[256,8192]{0,1:T(8,128)} %fusion, s32[256,8192]{0,1:T(8,128)} %iota.clone)"
    )
    (finding,) = find(DataShuffling, SLOW, legend=legend(text, ""), device="TPU v5e") or ()
    assert finding.saving is not None
    assert finding.saving.high_ns == 8_000_000


def test_the_sort_of_an_approximate_maximum_is_what_replaces_a_sort() -> None:
    text = "%approx_top_k.0 = f32[256,256]{0,1:T(8,128)} sort(f32[256,256]{0,1:T(8,128)} %copy.1)"
    assert not fires(DataShuffling, text, "jit(rank)/approx_top_k")
    assert fires(DataShuffling, text, "jit(rank)/sort")
    # Libtpu 0.0.52 fuses it with the slice of the largest.
    fused = "%sort_prefixfusion = f32[64,64]{1,0:T(8,128)} fusion(f32[64,2048]{1,0:T(8,128)} %x)"
    for path, is_found in (("jit(rank)/approx_top_k", False), ("jit(rank)/sort", True)):
        symbols = {"s": xla_op("sort_prefixfusion", fused, inside_opcodes="slice sort", path=path)}
        assert bool(find(DataShuffling, SLOW, legend=symbols)) == is_found


def rows_in_loop(**columns: int) -> dict[str, Symbol]:
    """A gather of 64 rows from a large table in a loop, and what computes their places."""
    table, places = "bf16[16384,256]{1,0:T(8,128)(2,1)} %table", "s32[1024]{0:T(1024)S(1)} %places"
    texts = {
        "g": f"%rows = bf16[64,256]{{1,0:T(8,128)(2,1)S(1)}} fusion({table}, {places}), kind=kLoop",
        "p": "%places = s32[1024]{0:T(1024)S(1)} fusion(s32[256,64]{0,1:T(8,128)} %ids)",
    }
    return {
        "g": xla_op("rows", texts["g"], inside_opcodes="gather", traffic_bytes=32_768, **columns),
        "p": xla_op(
            "places", texts["p"], inside_opcodes="dynamic-slice reduce", traffic_bytes=32_768
        ),
    }


LOOP = """
    cell 1us
    step  |..........|..........|
    main  |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0 |ppggppggXX|ppggppggXX|
"""


def test_a_gather_that_is_known_before_its_loop_needs_no_other_operation() -> None:
    (finding,) = (
        find(DataShuffling, LOOP, legend=rows_in_loop(before_loop=1), device="TPU v5e") or ()
    )
    assert finding.saving is not None
    # Half of 8 us in each of two steps. At best, each gather, and what computes its places, moves
    # 32,768 B at 819 GB/s, in 40 ns: 16 us less eight times that.
    assert finding.saving.expected_ns == 8_000
    assert finding.saving.high_ns == pytest.approx(2 * 8_000 - 8 * 40, abs=4)


@pytest.mark.parametrize("before_loop", [0, -1])
def test_a_gather_that_depends_on_the_trip_before_it_has_no_alternative(before_loop: int) -> None:
    # A product of 64 x 16,384 x 256 takes 2.7 us, longer than the gather.
    symbols = rows_in_loop(before_loop=before_loop)
    assert find(DataShuffling, LOOP, legend=symbols, device="TPU v5e") == ()


def scatter(rows: int) -> dict[str, Symbol]:
    table = f"f32[{rows},512]{{1,0:T(8,128)}}"
    text = (
        f"%scatter_fusion = {table} fusion({table} %copy-done, s32[8192]{{0:T(1024)S(1)}} %ids,"
        " f32[8192,512]{1,0:T(8,128)S(1)} %rows), kind=kCustom"
    )
    return {"s": xla_op("scatter_fusion", text, inside_opcodes="scatter reshape transpose")}


def test_a_scatter_gets_no_faster_than_a_product_with_a_one_hot_matrix() -> None:
    (finding,) = find(DataShuffling, SLOW, legend=scatter(4096), device="TPU v5e") or ()
    assert finding.saving is not None
    # 2 x 8,192 x 512 x 4,096 FLOP at 197 TFLOP/s take 174,414 ns, in each of two steps.
    assert finding.saving.high_ns == pytest.approx(8_000_000 - 2 * 174_414, abs=4)
    assert find(DataShuffling, SLOW, legend=scatter(131_072), device="TPU v5e") == ()


@pytest.mark.parametrize(("trips", "is_found"), [(64, True), (65, False)])
def test_slices_of_long_loops_cannot_be_unrolled(trips: int, is_found: bool) -> None:
    array, row = "bf16[256,32,4096]{2,1,0:T(8,128)(2,1)}", "bf16[1,32,4096]{2,1,0:T(8,128)(2,1)}"
    text = f"%slice_fusion = {row} fusion({array} %x), kind=kLoop"
    values = program(f"""
        %x = {array} parameter(0)
        %slice = {row} dynamic-slice({array} %x) // in slice_fusion runs={trips} result
    """)
    trace = drawn(SLOW, text, values, inside_opcodes="dynamic-slice")
    assert bool(find(DataShuffling, trace)) == is_found


def test_a_scatter_that_adds_up_many_rows_can_be_a_gather_and_a_sum() -> None:
    table, rows, places = "f32[16384,128]{1,0:T(8,128)}", "f32[262144,128]", "s32[262144]"
    text = f"%sums = {table} fusion({places} %places, {rows} %rows), kind=kCustom"
    values = program(f"""
        %zeros = {table} parameter(0)
        %places = {places}{{0}} parameter(1)
        %rows = {rows}{{1,0}} parameter(2)
        %scaled = {rows}{{1,0}} multiply({rows}{{1,0}} %rows, {rows}{{1,0}} %rows) // in sums
        %sums = {table} scatter({table} %zeros, {places}{{0}} %places, {rows}{{1,0}} %scaled) // result
    """)  # noqa: E501
    slow = pictured(2_000)
    trace = drawn(slow, text, values, inside_opcodes="multiply scatter", traffic_bytes=1 << 20)
    (finding,) = find(DataShuffling, trace) or ()
    assert finding.saving is not None
    # Of 16 rows for each of the table's, a gather takes 5 cycles each, and 2 at best. The clock of
    # a TPU v5e is 1.503 GHz: 872 and 349 of 1,600 µs. Nothing tells whether rows are even.
    assert finding.saving.expected_ns == pytest.approx(2 * (1_600_000 - 872_088), rel=0.001)
    assert finding.saving.high_ns == pytest.approx(2 * (1_600_000 - 348_835), rel=0.001)
    assert finding.saving.low_ns == 0
    assert finding.remedies[0].change == "rows-of-sums"
    # The same scatter into as many rows has no such form.
    large = program("\n".join(values.texts.values()).replace("16384,128", "262144,128"))
    trace = drawn(slow, text.replace("16384", "262144"), large, inside_opcodes="multiply scatter")
    assert find(DataShuffling, trace) == ()


def pictured(step_us: int) -> str:
    """Two steps of an operation that takes most of each."""
    return f"""
        cell {step_us // 10}us
        step  |..........|..........|
        main  |LSSSSSSSSS|LSSSSSSSSS|
        tpu 0 |XXssssssss|XXssssssss|
    """


def test_a_gather_of_many_rows_from_a_small_table_is_sure_to_be_slow() -> None:
    table, rows, places = "bf16[32,8]{1,0:T(8,128)(2,1)}", "bf16[65536,8]", "s32[65536]"
    text = f"%bias = {rows}{{1,0:T(8,128)(2,1)}} fusion({table} %t, {places} %i), kind=kCustom"
    values = program(f"""
        %t = {table} parameter(0)
        %i = {places}{{0}} parameter(1)
        %bias = {rows}{{1,0}} gather({table} %t, {places}{{0}} %i) // result
    """)
    trace = drawn(pictured(1_000), text, values, inside_opcodes="gather")
    (finding,) = find(DataShuffling, trace) or ()
    assert finding.saving is not None
    # A product with a one-hot matrix takes under a tenth of the 800 µs. Half is expected.
    assert finding.saving.expected_ns == pytest.approx(800_000, rel=0.001)
    assert finding.saving.low_ns == pytest.approx(400_000, rel=0.001)


def test_a_gather_of_more_matrices_than_there_are_is_worth_nothing() -> None:
    table, taken = "bf16[8,1024,2048]{2,1,0:T(8,128)(2,1)}", "bf16[32,1024,2048]"
    tiled = f"{taken}{{2,1,0:T(8,128)(2,1)}}"
    text = f"%taken = {tiled} fusion({table} %w, s32[32] %i), kind=kCustom"
    values = program(f"""
        %w = {table} parameter(0)
        %i = s32[32]{{0}} parameter(1)
        %taken = {tiled} gather({table} %w, s32[32]{{0}} %i) // result
    """)
    trace = drawn(pictured(1_000), text, values, inside_opcodes="gather")
    (finding,) = find(DataShuffling, trace) or ()
    assert finding.saving is not None
    # 32 matrices of 8: multiplying all rows by all 8 reads a quarter of that, and writes nothing.
    assert finding.saving.expected_ns == pytest.approx(1_600_000, rel=0.001)
    assert finding.remedies[0].change == "all-matrices"
    # Fewer than there are have to be taken out.
    fewer = program("\n".join(values.texts.values()).replace("[32", "[4"))
    trace = drawn(pictured(1_000), text.replace("[32", "[4"), fewer, inside_opcodes="gather")
    (finding,) = find(DataShuffling, trace) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns <= 800_000


def test_a_copy_to_the_layout_of_a_gather_belongs_to_it() -> None:
    slow = """
        cell 100us
        step  |..........|..........|
        main  |LSSSSSSSSS|LSSSSSSSSS|
        tpu 0 |XXccccgggX|XXccccgggX|
    """
    table = "bf16[8192,27,27]"
    texts = {
        "copy.1": f"%copy.1 = {table}{{0,2,1}} copy({table}{{2,1,0}} %pairs)",
        "half": f"%half = bf16[351,8192]{{1,0:T(8,128)}} gather({table}{{0,2,1}} %copy.1,"
        " s32[351,2] %places)",
    }
    values = program(f"""
        %pairs = {table}{{2,1,0}} parameter(0)
        %places = s32[351,2]{{1,0}} parameter(1)
        {texts["copy.1"]}
        {texts["half"]} // result
    """)
    symbols = {
        "c": xla_op("copy.1", texts["copy.1"], module=MODULE),
        "g": xla_op("half", texts["half"], module=MODULE),
    }
    trace = replace(draw(slow, legend=symbols, device="TPU v5 lite"), programs=(values,))
    (finding,) = find(DataShuffling, trace) or ()
    assert "most in copy.1" in finding.summary
    assert finding.saving is not None
    # 700 µs in each step, of which half is expected: a product takes 8,192 x 729 x 351 x 2 FLOP,
    # which is 4.2 GFLOP in 21 µs.
    assert finding.saving.expected_ns == pytest.approx(700_000, rel=0.001)


@pytest.mark.parametrize(("width", "is_found"), [(64, True), (1, False)])
def test_products_with_narrow_tables_leave_most_of_the_matrix_unit_empty(
    width: int, is_found: bool
) -> None:
    table, taken = f"f32[131072,{width}]{{1,0:T(8,128)}}", f"f32[2080,{width}]{{1,0:T(8,128)}}"
    text = f"%taken = {taken} fusion({table} %t, s32[2080] %i), kind=kCustom"
    values = program(f"""
        %t = {table} parameter(0)
        %i = s32[2080]{{0}} parameter(1)
        %taken = {taken} gather({table} %t, s32[2080]{{0}} %i) // result
    """)
    # 2 x 2,080 x 64 x 131,072 FLOP, in half of each square, take 472 µs of 800 at 75 % of the peak.
    # One number for each place fills one of 128 columns, and takes as long.
    trace = drawn(pictured(1_000), text, values, inside_opcodes="gather", traffic_bytes=1 << 20)
    quick = drawn(pictured(500), text, values, inside_opcodes="gather", traffic_bytes=1 << 20)
    assert bool(find(DataShuffling, trace if is_found else quick)) == is_found
    assert find(DataShuffling, quick) == ()


@pytest.mark.parametrize(("cell_ns", "is_found"), [(10_000, True), (1_000, False)])
def test_a_gather_before_the_loop_takes_cycles_for_each_row_as_well(
    cell_ns: int, is_found: bool
) -> None:
    table, taken = "f32[131072,1]{1,0:T(8,128)}", "f32[2300,1]{1,0:T(8,128)}"
    text = f"%taken = {taken} fusion({table} %t, s32[2300] %i), kind=kCustom"
    values = program(f"""
        %t = {table} parameter(0)
        %i = s32[2300]{{0}} parameter(1)
        %taken = {taken} gather({table} %t, s32[2300]{{0}} %i) // result
    """)
    # 2,300 rows take 11,500 cycles, 7.7 µs, before the loop as well: of 80 µs, but not of 8.
    slow = pictured(cell_ns // 100).replace(f"{cell_ns // 1000}us", f"{cell_ns}ns")
    trace = drawn(slow, text, values, inside_opcodes="gather", traffic_bytes=4096, before_loop=1)
    assert bool(find(DataShuffling, trace)) == is_found
