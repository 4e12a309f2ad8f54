"""Routes of the rules."""

from __future__ import annotations

from werkzeug import wrappers

from tb_perfadvisor.plugin.imports import import_whole
from tb_perfadvisor.plugin.responses import ApiError, respond


def rules(request: wrappers.Request) -> wrappers.Response:
    """All rules."""
    import_whole("tb_perfadvisor.signals")
    from tb_perfadvisor.rules.page import rule_summary
    from tb_perfadvisor.rules.registry import all_rules

    return respond(request, {"rules": [rule_summary(rule) for rule in all_rules()]})


def rule(request: wrappers.Request, rule_id: str) -> wrappers.Response:
    """A rule with its page."""
    import_whole("tb_perfadvisor.signals")
    from tb_perfadvisor.rules.page import rule_page
    from tb_perfadvisor.rules.registry import all_rules

    for candidate in all_rules():
        if candidate.id == rule_id:
            body = {"id": candidate.id, "title": candidate.title, "page": rule_page(candidate)}
            return respond(request, body)
    raise ApiError(404, "there is no such rule.", where=rule_id)
