"""Renders reports as one HTML file: the tab's page, with all the answers that it would request.

The page contains the tab's bundle and the answers of its routes, so it works from a disk, in a
frame without a server, or as an attachment, and makes no network requests. All text from traces is
in one block of JSON, escaped so that nothing can end the block.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.names import run_row
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.ingest.formats import label_of
from tb_perfadvisor.plain_text import printable_json
from tb_perfadvisor.rules.page import rule_page, rule_summary
from tb_perfadvisor.rules.registry import all_rules

STATIC = Path(__file__).resolve().parents[2] / "static"


def render_html(document: model.Document) -> str:
    """The whole document as a page."""
    bundle, licenses = _bundle()
    digest = base64.b64encode(hashlib.sha256(bundle.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    # The policy must come before everything that it applies to.
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>Perf Advisor</title>
</head>
<body>
<noscript>This report needs JavaScript.</noscript>
<script type="application/json" id="perf-advisor-answers">{embeddable(answers(document))}</script>
<script type="text/plain" id="licenses">{licenses}</script>
<script type="module">{bundle}</script>
</body>
</html>
"""


def embeddable(content: Any) -> str:
    """JSON that is safe inside a script element, whatever its strings contain."""
    text = printable_json(msgspec.json.encode(content).decode())
    return text.replace("<", "\\u003c")  # it could end the block; in JSON it occurs in strings only


def answers(document: model.Document) -> dict[str, Any]:
    """The answers of the tab's routes by address, as if each report were an analyzed capture."""
    # Reports from different log directories may have equal ids, so number them.
    by_name = {f"{position}": report for position, report in enumerate(document.reports)}
    listed = {
        "rejected": document.rejected,
        "rejected_count": len(document.rejected) + document.rejected_truncated,
        "scan": {
            "root": "this report",
            "scanned_files": sum(len(report.workers) for report in document.reports),
            "is_complete": True,
            "gaps": [],
            "is_scanning": False,
        },
    }
    captures = [_capture(name, report) for name, report in by_name.items()]
    answer: dict[str, Any] = {
        "captures": {"captures": captures, **listed},
        "doctor": {"notes": [], **listed},
        "rules": {"rules": [rule_summary(rule) for rule in all_rules()]},
    }
    for rule in all_rules():
        page = {"id": rule.id, "title": rule.title, "page": rule_page(rule)}
        answer[f"rules/{rule.id}"] = page
    for name, report in by_name.items():
        answer[f"captures/{name}/report"] = msgspec.structs.replace(report, id=name, views=None)
        for view, content in (report.views or {}).items():
            answer[f"captures/{name}/views/{view}"] = content
    return answer


def _capture(name: str, report: model.Report) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(run_row(report)),
        "id": name,
        "run": report.run,
        "session": report.session,
        "recorded": report.session,
        "format_label": ", ".join(map(label_of, report.formats)),
        "is_for_profile_tab": True,  # beside an exported page, there is no Profile tab to mention
        "files": len(report.workers),
        "size_bytes": None,
        "status": "done",
        "failure": None,
        "partners": [],
        "profile_run": None,
        "profile_host": None,
    }


@cache
def _bundle() -> tuple[str, str]:
    """The tab's module and its licenses, escaped for script elements."""
    try:
        module, licenses = (
            (STATIC / name).read_text(encoding="utf-8") for name in ("index.js", "licenses.txt")
        )
    except OSError as error:
        raise UsageError(
            "the tab's bundle, which the page needs, is not installed.",
            where="static",
            hint="Build it with `npm run build` in frontend/, or install a released package.",
        ) from error
    # These sequences occur only inside strings, where the escape has the same meaning.
    return module.replace("</script", "<\\/script").replace("<!--", "\\x3c!--"), licenses.replace(
        "<", "("
    )
