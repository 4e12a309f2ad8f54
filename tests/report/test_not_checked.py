from __future__ import annotations

from tb_perfadvisor import analyze
from tb_perfadvisor.testing import draw, run_of

GPU = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""
CPU = """
    cell 1ms
    step   |..........|..........|
    main   |OOOOOOOOOO|OOOOOOOOOO|
"""


def test_only_what_another_recording_would_contain_is_listed() -> None:
    report = analyze(run_of(draw(GPU)))
    gaps = {signal: gap for gap in report.not_checked for signal in gap.signals}
    assert "memory-near-capacity" in gaps["memory"].rule_ids
    assert "profile_memory=True" in gaps["memory"].remedy
    # A single process has no collectives, and a GPU has no tiled layouts.
    assert not {"collectives", "tiled-layouts", "iterators"} & set(gaps)
    remedies = [gap.remedy for gap in report.not_checked]
    assert len(remedies) == len(set(remedies))
    counts = [len(gap.rule_ids) for gap in report.not_checked]
    assert counts == sorted(counts, reverse=True)


def test_a_program_on_the_cpu_needs_no_device_memory() -> None:
    report = analyze(run_of(draw(CPU)))
    gaps = {signal for gap in report.not_checked for signal in gap.signals}
    assert "memory" not in gaps
    assert "device-events" not in gaps
