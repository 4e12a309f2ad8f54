"""Routes of the rules."""

from tests.support.served_tab import Tab


def test_rules_and_their_pages(tab: Tab) -> None:
    rules = {rule["id"]: rule for rule in tab.get("api/v1/rules").json["rules"]}
    stall = rules["input-stall"]
    assert stall["category"] == "input"
    assert isinstance(stall["is_preview"], bool)
    page = tab.get("api/v1/rules/input-stall").json
    assert (page["id"], page["title"]) == ("input-stall", stall["title"])
    assert page["page"].startswith("# input-stall")
    assert tab.get("api/v1/rules/none").status_code == 404
