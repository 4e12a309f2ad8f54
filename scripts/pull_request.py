"""Analyzes a profile for a pull request or a merge request, and keeps one comment on it up to date.

The action in `action.yml` and the GitLab job in docs/ci.md run it:

    python scripts/pull_request.py runs/new --base runs/base --repo . --fail-on-regression 5

It writes SARIF, a comment in Markdown to standard output, and with `--comment true` the comment to
GitHub (GITHUB_TOKEN, GITHUB_EVENT_PATH) or GitLab (GITLAB_TOKEN, CI_MERGE_REQUEST_IID).

Exit status: 1 if a limit was reached, 2 if nothing could be read, 3 if the recordings do not tell
whether the step is slower, unless `--undecided warn` is given.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

MARK = "<!-- perf-advisor -->"
"""The first line of our comment, by which the next run finds it."""
MOST_CHARACTERS = 60_000
"""GitHub refuses comments above 65,536 characters."""
_TIMEOUT_S = 30
_PAGES = 10
_PER_PAGE = 100
_UNDECIDED = 3
"""The exit status of `perfadvisor compare` if it cannot tell."""


def main(arguments: list[str] | None = None) -> int:
    """Analyze, compare, comment; return the exit status."""
    given = _parse(arguments)
    where = ["--repo", given.repo] if given.repo else []
    analyze = ["analyze", given.profile, *where]
    status = _run([*analyze, "--format", "sarif", "--output", given.sarif])[0]
    if status:
        return status
    gate = ["--fail-on", given.fail_on] if given.fail_on else []
    status, report = _run([*analyze, "--format", "markdown", *gate])
    parts = [report]
    if given.base:
        limit = given.fail_on_regression
        gate = ["--fail-on-regression", limit] if limit else []
        regression, comparison = _run(
            ["compare", given.base, given.profile, "--format", "markdown", *gate]
        )
        parts = [
            *([_warning(limit)] if regression == _UNDECIDED else []),
            comparison,
            f"<details><summary>The whole report</summary>\n\n{report}\n</details>",
        ]
        if regression != _UNDECIDED:
            status = max(status, regression)
        elif given.undecided == "fail":
            status = status or _UNDECIDED
    comment = shortened("\n\n".join([MARK, *parts]))
    sys.stdout.write(f"{comment}\n")
    if given.comment == "true":
        try:
            publish(comment, os.environ)
        except OSError as error:
            # A fork's token may not write comments; the verdict stays the same.
            sys.stderr.write(f"the comment could not be written: {error}\n")
    return status


def _warning(limit: str) -> str:
    return (
        f"> ⚠ The recordings do not tell whether a step is slower by more than {limit} %. "
        "Record more steps."
    )


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile")
    parser.add_argument("--base", default="")
    parser.add_argument("--repo", default="")
    parser.add_argument("--sarif", default="perf-advisor.sarif")
    parser.add_argument("--fail-on", default="")
    parser.add_argument("--fail-on-regression", default="")
    parser.add_argument("--undecided", default="fail", choices=["fail", "warn"])
    parser.add_argument("--comment", default="false", choices=["true", "false"])
    return parser.parse_args(arguments)


def _run(arguments: list[str]) -> tuple[int, str]:
    command = [sys.executable, "-m", "tb_perfadvisor", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=False)
    return done.returncode, done.stdout


def shortened(comment: str) -> str:
    """A comment that is short enough for GitHub."""
    if len(comment) <= MOST_CHARACTERS:
        return comment
    return f"{comment[:MOST_CHARACTERS]}\n\n… shortened; SARIF has every finding."


def publish(comment: str, environment: Mapping[str, str]) -> None:
    """Write the comment, or update the one of an earlier run.

    Args:
        comment: With `MARK` at its beginning.
        environment: The variables of GitHub's or GitLab's runner.

    Raises:
        OSError: If the server refuses it or does not answer.
    """
    if "GITHUB_EVENT_PATH" in environment:
        _publish_on_github(comment, environment)
    elif "CI_MERGE_REQUEST_IID" in environment:
        _publish_on_gitlab(comment, environment)


def _publish_on_github(comment: str, environment: Mapping[str, str]) -> None:
    event = json.loads(Path(environment["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    if "pull_request" not in event:
        return
    repository = f"{environment['GITHUB_API_URL']}/repos/{environment['GITHUB_REPOSITORY']}"
    headers = {"Authorization": f"Bearer {environment['GITHUB_TOKEN']}"}
    comments = f"{repository}/issues/{event['pull_request']['number']}/comments"
    found = _ours(comments, headers)
    if found is None:
        _send("POST", comments, headers, comment)
    else:
        _send("PATCH", f"{repository}/issues/comments/{found}", headers, comment)


def _publish_on_gitlab(comment: str, environment: Mapping[str, str]) -> None:
    project = f"{environment['CI_API_V4_URL']}/projects/{environment['CI_PROJECT_ID']}"
    notes = f"{project}/merge_requests/{environment['CI_MERGE_REQUEST_IID']}/notes"
    headers = {"PRIVATE-TOKEN": environment["GITLAB_TOKEN"]}
    found = _ours(notes, headers)
    if found is None:
        _send("POST", notes, headers, comment)
    else:
        _send("PUT", f"{notes}/{found}", headers, comment)


def _ours(comments: str, headers: Mapping[str, str]) -> int | None:
    """The id of the comment of an earlier run."""
    for page in range(1, _PAGES + 1):
        entries = _send("GET", f"{comments}?per_page={_PER_PAGE}&page={page}", headers)
        for entry in entries:
            if str(entry["body"]).startswith(MARK):
                return int(entry["id"])
        if len(entries) < _PER_PAGE:
            break
    return None


def _send(method: str, url: str, headers: Mapping[str, str], body: str | None = None) -> Any:
    data = None if body is None else json.dumps({"body": body}).encode()
    request = Request(url, data, {**headers, "Content-Type": "application/json"}, method=method)
    with urlopen(request, timeout=_TIMEOUT_S) as answer:
        return json.loads(answer.read() or b"null")


if __name__ == "__main__":
    sys.exit(main())
