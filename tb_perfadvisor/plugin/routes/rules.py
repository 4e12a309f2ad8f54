"""The catalog of rules."""

from __future__ import annotations

from werkzeug import wrappers

from tb_perfadvisor.plugin.answers import ApiError, answer


def rules(request: wrappers.Request) -> wrappers.Response:
    """All rules."""
    from tb_perfadvisor.rules.page import rule_summary
    from tb_perfadvisor.rules.registry import all_rules

    return answer(request, {"rules": [rule_summary(one) for one in all_rules()]})


def rule(request: wrappers.Request, rule_id: str) -> wrappers.Response:
    """One rule, with its page."""
    from tb_perfadvisor.rules.page import rule_page
    from tb_perfadvisor.rules.registry import all_rules

    for one in all_rules():
        if one.id == rule_id:
            body = {"id": one.id, "title": one.title, "page": rule_page(one)}
            return answer(request, body)
    raise ApiError(404, "there is no such rule.", where=rule_id)
