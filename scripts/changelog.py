"""Collect the fragments in changelog.d/ into CHANGELOG.md.

python scripts/changelog.py             print the section as it would be
python scripts/changelog.py VERSION     write it into CHANGELOG.md and delete the fragments
python scripts/changelog.py --check     fail if a fragment has an unknown type or no text
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHANGELOG = ROOT / "CHANGELOG.md"
FRAGMENTS = ROOT / "changelog.d"
# In the order in which they appear. A type says what a user has to know about the change.
HEADINGS = {
    "removed": "Removed and renamed",
    "new_rule": "New rules",
    "false_positive": "Findings that no longer appear, because they were wrong",
    "false_negative": "Findings that appear now, because they were missed",
    "feature": "Features",
    "fix": "Fixes",
    "performance": "Performance",
    "docs": "Documentation",
}
# New sections go below this line.
MARK = "<!-- new sections below -->\n"


def read_fragments() -> dict[str, list[str]]:
    """The fragments' texts by type; `SUBJECT.TYPE.md` holds a sentence or two.

    Raises:
        SystemExit: When a fragment has an unknown type or no text.
    """
    texts: dict[str, list[str]] = {}
    for path in sorted(FRAGMENTS.glob("*.md")):
        if path.name == "README.md":
            continue
        kind = path.stem.rpartition(".")[2]
        text = " ".join(path.read_text(encoding="utf-8").split())
        if kind not in HEADINGS or "." not in path.stem:
            sys.exit(f"{path.name}: name it SUBJECT.TYPE.md; types: {', '.join(HEADINGS)}")
        if not text:
            sys.exit(f"{path.name}: it is empty; write one or two sentences")
        texts.setdefault(kind, []).append(text)
    return texts


def section(title: str, texts: dict[str, list[str]]) -> str:
    """A version's section in Markdown."""
    parts = [f"## {title}\n"]
    for kind, heading in HEADINGS.items():
        if kind in texts:
            parts.append(f"### {heading}\n")
            parts.append("".join(f"- {text}\n" for text in texts[kind]))
    return "\n".join(parts)


def main() -> None:
    """Print, check or write the section."""
    texts = read_fragments()
    argument = sys.argv[1] if len(sys.argv) > 1 else ""
    if argument == "--check":
        return
    if not argument:
        print(section("Next version", texts))
        return
    title = f"{argument} ({datetime.date.today().isoformat()})"
    before, mark, after = CHANGELOG.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        sys.exit(f"{CHANGELOG.name} lacks the line {MARK!r}")
    CHANGELOG.write_text(
        f"{before}{MARK}\n{section(title, texts)}{after}", encoding="utf-8", newline="\n"
    )
    for path in FRAGMENTS.glob("*.md"):
        if path.name != "README.md":
            path.unlink()


if __name__ == "__main__":
    main()
