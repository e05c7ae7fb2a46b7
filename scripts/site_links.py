"""A hook of mkdocs: links out of docs/ lead to the repository's pages, and terms of the glossary explain themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?\)")
"""A link to a file: what stands before it, its path, its anchor."""
TERM = re.compile(r"^\| \*\*(.+?)\*\* \| (.+) \|$", re.MULTILINE)
"""A row of docs/glossary.md."""


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The text of a page, its links to files outside the site rewritten, with the glossary as abbreviations."""
    docs = Path(config.docs_dir)
    here = Path(page.file.abs_src_path).parent
    text = LINK.sub(lambda link: _rewritten(link, here, docs, config.extra["repository"]), markdown)
    return text if here / "glossary.md" == Path(page.file.abs_src_path) else text + abbreviations(docs)


def abbreviations(docs: Path) -> str:
    """Return the terms of the glossary as Markdown's abbreviations, which a browser shows on hovering."""
    rows = TERM.findall((docs / "glossary.md").read_text())
    return "\n".join(
        ["", "", *(f"*[{term}]: {meaning.replace('`', '').replace(chr(92), '')}" for term, meaning in rows)]
    )


def _rewritten(link: re.Match[str], here: Path, docs: Path, repository: str) -> str:
    target = (here / link[2]).resolve()
    on_the_site = target.is_relative_to(docs) and not target.is_dir()
    if on_the_site or not target.exists():  # mkdocs itself tells what is missing
        return link[0]
    kind = "tree" if target.is_dir() else "blob"
    return f"{link[1]}{repository}/{kind}/main/{target.relative_to(docs.parent)}{link[3] or ''})"
