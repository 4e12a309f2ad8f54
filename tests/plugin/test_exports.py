"""The route that downloads a report."""

from tests.support.served_tab import Tab, error_of


def test_export_needs_an_analysis_and_a_known_format(tab: Tab) -> None:
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}/export"
    assert tab.get(f"{address}?format=json").status_code == 409
    answer = tab.get(f"{address}?format=pdf")
    assert answer.status_code == 404
    assert error_of(answer)["hint"].startswith("Formats: html, json, markdown")
