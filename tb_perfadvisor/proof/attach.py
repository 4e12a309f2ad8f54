"""Joins what was tried with the findings of a report, when it is shown.

A proof belongs to a finding if it was measured for the same recording and the same change. The
recording stands for the program, its settings, its data and its machine, and nothing less does:
findings of another recording may have another size, another program may have the same finding, and
the same program on another machine another answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from tb_perfadvisor.contract import model
from tb_perfadvisor.proof.ledger import Proof, digest_of, latest
from tb_perfadvisor.proof.results import Effect, effect_text

R = TypeVar("R", bound=model.Report)


def with_proofs(report: R, proofs: Sequence[Proof]) -> R:
    """A report whose findings say what was tried, ranked by what that showed.

    A finding counts with what was measured in place of what was predicted. One whose every
    mechanical change was tried in vain comes last, is not the one to begin with, and adds nothing
    to what all findings would save together.
    """
    known = latest(proofs)
    digest = digest_of(report) if known else ""
    of_changes = {change: proof for (of, change), proof in known.items() if of == digest}
    findings = [_with_proof(finding, of_changes) for finding in report.findings]
    if not any(finding.proof for finding in findings):
        return report
    before = first = None if report.first is None else findings[report.first.index]
    groups = _ordered(_groups(findings), of_changes)
    ranked = [finding for group in groups for finding in group]
    is_in_best = any(finding is first for finding in groups[0])
    if first is not None and (_is_in_vain(first, of_changes) or not is_in_best):
        first = next((each for each in ranked if not _is_in_vain(each, of_changes)), first)
    return replace(
        report,
        headline=report.headline if first is None or first is before else first.headline,
        findings=_with_places(ranked, findings),
        first=None
        if first is None
        else model.FirstFinding(rule_id=first.rule_id, index=_place(ranked, first)),
        combined_saving=_combined(report.combined_saving, findings, of_changes),
    )


def _with_proof(finding: model.FindingInfo, proofs: dict[str, Proof]) -> model.FindingInfo:
    """The best of what was tried for a finding."""
    tried = [proofs[each.change] for each in finding.remedies if each.change in proofs]
    if not tried:
        return finding
    best = max(tried, key=lambda proof: (_helped(proof), _share(proof.measured)))
    helped = _helped(best)
    if helped and best.measured is not None:
        text = f"proved: {effect_text(best.measured)}"
        if best.results == "close":
            text += ", with slightly different results"
    elif best.verdict == "refused":
        text = f"refused when tried: {best.reason}"
    else:
        text = "did not help here"
        if best.measured is not None:
            text += f": {effect_text(best.measured)}"
    measured = best.measured
    return replace(
        finding,
        proof=model.ProofInfo(
            change=best.change,
            helped=helped,
            text=text,
            low_share=None if measured is None else measured.low,
            share=None if measured is None else measured.estimate,
            high_share=None if measured is None else measured.high,
            pairs=best.pairs,
            tried_unix_s=best.tried_unix_s,
        ),
    )


def _helped(proof: Proof) -> bool:
    return proof.verdict == "faster"


def _share(effect: Effect | None) -> float:
    return 0.0 if effect is None else effect.estimate


def _groups(findings: Sequence[model.FindingInfo]) -> list[list[model.FindingInfo]]:
    """Each finding with those that refine it, which follow it."""
    groups: list[list[model.FindingInfo]] = []
    for finding in findings:
        if groups and finding.refines == groups[-1][0].rule_id:
            groups[-1].append(finding)
        else:
            groups.append([finding])
    return groups


def _is_in_vain(finding: model.FindingInfo, proofs: dict[str, Proof]) -> bool:
    """Whether each change that a program can make was tried, and none helped."""
    mechanical = [each.change for each in finding.remedies if each.fixes]
    return (
        finding.proof is not None
        and not finding.proof.helped
        and all(change in proofs for change in mechanical)
    )


def _ordered(
    groups: Sequence[list[model.FindingInfo]], proofs: dict[str, Proof]
) -> list[list[model.FindingInfo]]:
    """The groups, with what was in vain at the end.

    A proved group goes to where its measured share belongs among the predicted ones; the others
    keep their order, which follows from more than their shares.
    """
    vain = [group for group in groups if _is_all_in_vain(group, proofs)]
    ordered = [group for group in groups if group not in vain and _proved_share(group) is None]
    proved = [group for group in groups if group not in vain and _proved_share(group) is not None]
    for group in sorted(proved, key=lambda group: _proved_share(group) or 0.0):
        share = _proved_share(group) or 0.0
        place = next(
            (at for at, other in enumerate(ordered) if _counted_share(other) < share), len(ordered)
        )
        ordered.insert(place, group)
    return [*ordered, *vain]


def _is_all_in_vain(group: Sequence[model.FindingInfo], proofs: dict[str, Proof]) -> bool:
    advised = [finding for finding in group if finding.remedies]
    return bool(advised) and all(_is_in_vain(finding, proofs) for finding in advised)


def _proved_share(group: Sequence[model.FindingInfo]) -> float | None:
    """The most that a change for the group was proved to save; None if none was."""
    proofs = [finding.proof for finding in group if finding.proof is not None]
    shares = [each.share for each in proofs if each.helped and each.share is not None]
    return max(shares, default=None)


def _counted_share(group: Sequence[model.FindingInfo]) -> float:
    proved = _proved_share(group)
    if proved is not None:
        return proved
    return 0.0 if group[0].saving is None else group[0].saving.share_expected


def _place(findings: Sequence[model.FindingInfo], wanted: model.FindingInfo) -> int:
    return next(place for place, finding in enumerate(findings) if finding is wanted)


def _with_places(
    ranked: list[model.FindingInfo], analyzed: Sequence[model.FindingInfo]
) -> list[model.FindingInfo]:
    """Findings with the places that they had, if any of them moved."""
    places = [_place(analyzed, finding) for finding in ranked]
    if places == sorted(places):
        return ranked
    return [
        replace(finding, analyzed_place=place)
        for finding, place in zip(ranked, places, strict=True)
    ]


def _combined(
    combined: model.CombinedSaving | None,
    findings: Sequence[model.FindingInfo],
    proofs: dict[str, Proof],
) -> model.CombinedSaving | None:
    """What findings save together, without those that were tried in vain.

    What each adds to those above it adds up to the whole.
    """
    if combined is None:
        return None
    vain_ns = sum(
        group[0].saving.marginal_ns
        for group in _groups(findings)
        if group[0].saving is not None and _is_all_in_vain(group, proofs)
    )
    return combined.without(vain_ns)
