from __future__ import annotations

from pathlib import Path

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.steps.variation import LongPrefillStep
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.units import NS_PER_MS
from tests.support.server_trace import Served, server_trace

DECODE = Served(decodes=8, device_us=10_000)
WHOLE = Served(decodes=8, prefills=1, prompt_tokens=8000, device_us=80_000)
CHUNK = Served(decodes=8, prefills=1, prompt_tokens=2000, device_us=25_000)
PREFILL = Served(prefills=1, prompt_tokens=8000, device_us=80_000)


def test_smaller_chunks_shorten_the_longest_pause() -> None:
    checked = check_rule(
        LongPrefillStep,
        slow=server_trace([*[DECODE] * 4, WHOLE, *[DECODE] * 4]),
        fixed=server_trace([*[DECODE] * 2, *[CHUNK] * 4, *[DECODE] * 4]),
        scales=False,
    )
    (finding,) = checked.findings
    assert (finding.saving, finding.severity) == (None, "low")
    # Of each step: 100 µs to prepare, 5 to launch, 100 of results and scheduling.
    assert finding.summary == (
        "Requests in the middle of their answers wait for prompts once in 8 steps: 8 of them wait"
        " 80.2 ms for the next token while the step reads 8,000 prompt tokens. Steps that only"
        " decode take 10.2 ms."
    )


def test_a_step_that_only_reads_prompts_holds_up_those_that_go_on_after_it() -> None:
    (found,) = (
        find(LongPrefillStep, server_trace([*[DECODE] * 3, PREFILL, PREFILL, DECODE, DECODE])) or ()
    )
    assert "wait for prompts 2 times in 6 steps: 8 of them wait 80.2 ms" in found.summary
    # Nobody generates before the first prompts have been read, or after the last answer.
    assert find(LongPrefillStep, server_trace([PREFILL, PREFILL, *[DECODE] * 4])) == ()


def test_just_below_and_just_above_the_limits() -> None:
    trace = server_trace([*[DECODE] * 4, WHOLE, *[DECODE] * 4])
    # 80.205 ms, 7.86 times 10.205 ms.
    for settings, count in (
        ({"shortest_pause_ns": 80.3 * NS_PER_MS}, 0),
        ({"shortest_pause_ns": 80.1 * NS_PER_MS}, 1),
        ({"smallest_ratio": 7.9}, 0),
        ({"smallest_ratio": 7.8}, 1),
    ):
        assert len(find(LongPrefillStep, trace, settings=settings) or ()) == count


def test_a_real_step_of_vllm(corpus: Path) -> None:
    # From the raw events: 37 requests decode in the only step, which reads 8,155 prompt tokens and
    # keeps the device busy for 156.086 ms.
    report = analyze(corpus / "tracelens/inference_vllm_prefilldecode_piecewise/2bd22c87")
    (found,) = [finding for finding in report.findings if finding.rule_id == "long-prefill-step"]
    assert found.summary == (
        "37 requests in the middle of their answers wait 156 ms for the next token while the step"
        " reads 8,155 prompt tokens."
    )
    assert "reads 8,155 prompt tokens." in found.summary
    assert any("--max-num-batched-tokens" in (remedy.snippet or "") for remedy in found.remedies)
