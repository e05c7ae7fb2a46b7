"""A hook of mkdocs: links out of docs/, which are right in the repository, lead from the site to its pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?\)")
"""A link to a file: what stands before it, its path, its anchor."""


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The text of a page with its links to files that are not on the site rewritten."""
    docs = Path(config.docs_dir)
    here = Path(page.file.abs_src_path).parent
    return LINK.sub(lambda link: _rewritten(link, here, docs, config.extra["repository"]), markdown)


def _rewritten(link: re.Match[str], here: Path, docs: Path, repository: str) -> str:
    target = (here / link[2]).resolve()
    on_the_site = target.is_relative_to(docs) and not target.is_dir()
    if on_the_site or not target.exists():  # mkdocs itself tells what is missing
        return link[0]
    kind = "tree" if target.is_dir() else "blob"
    return f"{link[1]}{repository}/{kind}/main/{target.relative_to(docs.parent)}{link[3] or ''})"
