"""A rule's page: its docstring, plus what is metadata."""

from __future__ import annotations

from typing import Any

from tb_perfadvisor.rules.base import SECTIONS, Limit, Rule
from tb_perfadvisor.units import format_bytes, format_duration, format_share


def rule_page(rule: type[Rule]) -> str:
    """The page in Markdown."""
    summary = (rule.__doc__ or "").strip().splitlines()[0]
    sections = rule.sections()
    stage = "preview: not found in a real profile yet" if rule.is_preview else "stable"
    facts = [f"*Category*: {rule.category}", f"*Stage*: {stage}"]
    if rule.refines:
        facts.append(f"*Refines*: `{rule.refines}`")
    if rule.needs:
        facts.append("*Needs*: " + ", ".join(need.value for need in rule.needs))
    if rule.needs_on_cpu:
        facts.append("*On the CPU*: " + ", ".join(need.value for need in rule.needs_on_cpu))
    blocks = [f"# {rule.id}", f"**{rule.title}.** {summary}", " · ".join(facts)]
    blocks += [f"## {heading}\n\n{sections.get(heading, '')}" for heading in SECTIONS]
    limits = rule.limits()
    if limits:
        lines = [
            f"- `{rule.id}.{name}` = {_limit_text(limit)}: {limit.why}"
            for name, limit in limits.items()
        ]
        blocks.append("## Limits\n\n" + "\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _limit_text(limit: Limit) -> str:
    """The value as written in a configuration, and as people read it."""
    value = f"{limit.value:g}" if abs(limit.value) < 1e6 else f"{limit.value:.0f}"
    if limit.unit == "share":
        return f"{value} ({format_share(limit.value)})"
    if limit.unit == "ns":
        return f"{value} ({format_duration(limit.value)})"
    if limit.unit == "bytes":
        return f"{value} ({format_bytes(limit.value)})"
    return f"{value} {limit.unit}"


def rule_summary(rule: type[Rule]) -> dict[str, Any]:
    """The rule's entry in the catalog, for JSON."""
    return {
        "id": rule.id,
        "title": rule.title,
        "category": rule.category,
        "refines": rule.refines,
        "is_preview": rule.is_preview,
        "needs": [need.value for need in rule.needs],
        "limits": [
            {"name": name, "value": limit.value, "unit": limit.unit, "why": limit.why}
            for name, limit in rule.limits().items()
        ],
    }
