"""The files of the frontend bundle, and no others."""

from pathlib import Path

from tests.support.served_tab import Tab, error_of


def test_static_serves_the_bundle_and_nothing_else(tab: Tab, tmp_path: Path) -> None:
    static = tmp_path / "static"
    (static / "sub").mkdir(parents=True)
    (static / "index.js").write_text("export const render = 1;")
    (static / "index.css").write_text("a {}")
    (static / "notes.py").write_text("secret")
    (tmp_path / "outside.js").write_text("secret")
    (static / "sub" / "inner.js").write_text("secret")
    tab.plugin.static_directory = static
    script = tab.get("static/index.js")
    assert script.text == "export const render = 1;"
    assert script.content_type == "text/javascript; charset=utf-8"
    assert script.headers["X-Content-Type-Options"] == "nosniff"
    assert tab.get("static/index.css").content_type == "text/css; charset=utf-8"
    for name in (
        "../outside.js",
        "%2e%2e/outside.js",
        "..%2foutside.js",
        "sub/inner.js",
        "sub",
        "notes.py",
        "",
        str(tmp_path / "outside.js"),
    ):
        answer = tab.get(f"static/{name}")
        assert answer.status_code == 404, name
        assert "secret" not in answer.text


def test_the_bundle_is_kept_by_browsers_until_it_changes(tab: Tab, tmp_path: Path) -> None:
    static = tmp_path / "static"
    static.mkdir()
    (static / "index.js").write_text("export const render = 1;")
    tab.plugin.static_directory = static
    address = tab.plugin.frontend_metadata().es_module_path.lstrip("/")
    assert address.startswith("static/index.js?v=")
    kept = tab.get(address)
    assert kept.headers["Cache-Control"] == "private, max-age=31536000"
    assert kept.text == "export const render = 1;"
    # An address that names no content, or another one, is asked for again.
    for other in ("static/index.js", "static/index.js?v=0123456789abcdef"):
        assert "no-cache" in tab.get(other).headers["Cache-Control"]
    (static / "index.js").write_text("export const render = 22;")
    assert tab.plugin.frontend_metadata().es_module_path.lstrip("/") != address
    assert "no-cache" in tab.get(address).headers["Cache-Control"]


def test_missing_bundle_is_reported(tab: Tab, tmp_path: Path) -> None:
    tab.plugin.static_directory = tmp_path / "none"
    answer = tab.get("static/index.js")
    assert answer.status_code == 404
    assert error_of(answer)["message"] == "the frontend bundle is not installed."
