"""Bundles in a dump of libtpu 0.0.52, shortened."""

# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

from tb_perfadvisor.tpu_compiler.kernels import count_cycles, dumped_cycles

LEGEND = """\
= control target key start
LB: loop body
= control target key end

"""
LOOP = (
    LEGEND
    + """\
     0   :  { %3 = vsyncpa [#allocation4], 0 }
   0x3   :  { %s85469_s11 = smov.u32 0 /* copy for cssa */ } /* End region 24562 */
   0x4 LB: > { %s85442_s11 = sphi %s85469_s11, %s12_s11 } /* Start region 24567 :: Start region 22 */
   0x5   : > { %p29_p0 = scmp.ge.s32.totalorder %s27_s13, 8 }
   0xb   : > { %109 = sbr.rel (%p29_p0) target = $region25 }
   0xc   : > { %s12_s11 = sadd.s32 1, %s85442_s11 }
0x1eae PF: > { %p9_p0 = scmp.ge.s32.totalorder %s12_s11, 10 /* loop exit test */ } /* End region 4 */
0x1eb3   :  { %11 = sbr.rel (!%p9_p0) target = $region24567 }
0x1eb4   :  {}
"""
)


def test_a_loop_counts_as_often_as_it_runs() -> None:
    # Two bundles before the loop, six in it, one after.
    assert count_cycles(LOOP) == 2 + 10 * 6 + 1


def test_nested_loops_multiply() -> None:
    text = """\
     0 LB: > { %s1 = sphi %s0, %s2 } /* Start region 1 */
   0x1 LB: >> { %s3 = sphi %s0, %s4 } /* Start region 2 */
   0x2   : >> { %p5_p0 = scmp.ge.s32.totalorder %s4, 4 /* loop exit test */ }
   0x3   : >> { %6 = sbr.rel (!%p5_p0) target = $region2 }
   0x4   : > { %p7_p1 = scmp.ge.s32.totalorder %s2, 3 /* loop exit test */ }
   0x5   : > { %8 = sbr.rel (!%p7_p1) target = $region1 }
"""
    # The inner loop has 3 bundles and 4 trips; the outer one has 3 more, and 3 trips.
    assert count_cycles(text) == 3 * (1 + 4 * 3 + 2)


def test_a_loop_without_a_known_limit_counts_once() -> None:
    assert count_cycles(LOOP.replace("%s12_s11, 10", "%s12_s11, %s7")) == 9


def test_files_are_named_after_instructions(tmp_path: Path) -> None:
    (tmp_path / "1795372218314570156-fusion.2-01-final_bundles.txt").write_text(LOOP)
    (tmp_path / "1795372217959628472-TLP-02-final_bundles.txt").write_text(LOOP)
    (tmp_path / "1795372217959628472-<late-finalization>-01-final_bundles.txt").write_text(LOOP)
    schedule = "1795372218314570156-fusion.2-00-schedule-analysis_final_bundles.txt"
    (tmp_path / schedule).write_text("total scheduled bundles: 7867")
    assert dumped_cycles(tmp_path) == {"fusion.2": 63}


def test_equal_kernels_share_a_schedule(tmp_path: Path) -> None:
    (tmp_path / "1795372218314570156-fusion.2-01-final_bundles.txt").write_text(LOOP)
    (tmp_path / "1795372217959628472-TLP-00-deduplication-map.txt").write_text(
        "key:slice.7\nordinal:1\nequivalent_hlos[size=1]:\n  slice.7\n"
        "key:fusion.2\nordinal:9\nequivalent_hlos[size=2]:\n  fusion.2\n  fusion.5\n"
    )
    assert dumped_cycles(tmp_path) == {"fusion.2": 63, "fusion.5": 63}
