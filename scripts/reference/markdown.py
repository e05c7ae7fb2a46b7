"""What the pages share: their head, tables, and links from below docs/reference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def page(title: str, introduction: str, *blocks: str) -> str:
    """The text of a page. blocks: headings, paragraphs and tables, empty ones left out."""
    made = "<!-- ./scripts/generate.sh writes this page from the code: change it there. -->"
    return "\n\n".join([f"# {title}", made, introduction, *filter(None, blocks)]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells in Markdown; empty where it has no row."""
    lines = list(rows)
    if not lines:
        return ""
    return "\n".join(map(_line, [head, ["---"] * len(head), *lines]))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def code(text: object) -> str:
    """The text as code."""
    return f"`{text}`"


def linked(text: str, up: str) -> str:
    """A docstring or a meaning on a page: what it names below docs/ becomes a link. up: from the page to docs/."""
    text = re.sub(r"\]\(([\w-]+\.md)", rf"]({up}\1", text)
    return re.sub(r"\(docs/([\w-]+)\.md\)", rf"([\1]({up}\1.md))", text)
