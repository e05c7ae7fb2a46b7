"""A hook of mkdocs: README is the home, the reference is made from the code, links out of docs/ lead to where they are,
and mathematics becomes MathML, which browsers show without a script.

A hand-written page links to the source of what it names, which is there in the repository too; where the reference has
a page of that source, the site links to it.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
MATHEMATICS = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
FORMULA = {"(": ("inline", "{}"), "[": ("block", '<div class="formula">{}</div>')}
"""A formula of its own scrolls where a narrow screen has no room for it; one within a line wraps with it."""
INLINE_CODE = re.compile(r"(?<!<pre>)<code>[^<]*</code>")
FLAG = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?\)")
"""A link to a file: what stands before it, its path, its anchor."""

KINDS = ("clips", "sat", "gates", "scores", "method")
"""The modules of the objective that have stabilizers."""
FIELDS_ALONE = """
    options:
      heading_level: 3
      members_order: source
      show_if_no_docstring: false
      show_attribute_values: true
      show_labels: false
      show_bases: false
      filters: ["!^_", "!^(scores|values|factor|radii|threshold_of)$"]
"""


def methods() -> str:
    """Every stabilizer with its formula, its source and its settings."""
    blocks = (f"## {kind.capitalize()}\n\n::: sat_slime.objective.{kind}{FIELDS_ALONE}" for kind in KINDS)
    return _page("Methods", "The same in a terminal: `sat-slime methods NAME`.", *blocks)


def python() -> str:
    """The public names of the objective."""
    modules = ("sat_slime.objective", "sat_slime.objective.mismatch_parts")
    return _page("Python", "The public names of `sat_slime.objective`.", *(f"::: {module}" for module in modules))


def metrics() -> str:
    """Every column of metrics.jsonl and eval.jsonl."""
    from sat_slime.objective.metrics import EVALUATION, run_metrics

    head = "| metric | unit | over micro-batches | meaning |\n|---|---|---|---|\n"
    tables = [
        head
        + "".join(f"| `{each.pattern}` | {each.unit} | {each.reduction} | {_meaning(each)} |\n" for each in entries)
        for entries in (run_metrics(), EVALUATION)
    ]
    return _page("Metrics", "## Of an optimizer step", tables[0], "## Of an evaluation", tables[1])


def _meaning(metric: Any) -> str:
    only = f" In {metric.runtime} runs only." if metric.runtime else ""
    slime = f" slime: {', '.join(f'`{name}`' for name in metric.slime)}." if metric.slime else ""
    return (metric.meaning + only + slime).replace("|", "\\|").replace("](", "](../")


def commands() -> str:
    """Every command with its options: what `--help` says."""
    from typer.main import get_command

    from sat_slime.cli import app

    return _page("Command line", *_help(get_command(app), ()))


def _help(command: Any, words: tuple[str, ...]) -> Iterator[str]:
    from typer.testing import CliRunner

    from sat_slime.cli import app

    said = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"})
    yield f"## {' '.join(['sat-slime', *words])}\n\n```text\n{said.output.strip()}\n```"
    for name, below in getattr(command, "commands", {}).items():
        yield from _help(below, (*words, name))


def settings(runtime: str) -> str:
    """Every setting of a run with its default."""
    text = (ROOT / "configs" / runtime / "base.yaml").read_text()
    return _page(f"Settings of {'a laptop run' if runtime == 'lab' else 'a run on slime'}", f"```yaml\n{text}```")


def home() -> str:
    """README.md, its links as seen from docs/."""
    text = (ROOT / "README.md").read_text()
    return re.sub(r"\]\((?!https?:|#)", "](../", text).replace("](../docs/", "](")


PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "index.md": ("README.md", home),
    "reference/methods.md": ("sat_slime/objective/method.py", methods),
    "reference/metrics.md": ("sat_slime/objective/metrics.py", metrics),
    "reference/laptop-settings.md": ("configs/lab/base.yaml", lambda: settings("lab")),
    "reference/slime-settings.md": ("configs/slime/base.yaml", lambda: settings("slime")),
    "reference/commands.md": ("sat_slime/cli/app.py", commands),
    "reference/python.md": ("sat_slime/objective/__init__.py", python),
}
"""The home and the reference: the file that a page written by hand links to in its place, and what makes the page."""


def _page(title: str, *blocks: str) -> str:
    return "\n\n".join([f"# {title}", *blocks]) + "\n"


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """The site's files with the figures of the studies and the pages below."""
    for figure in sorted(ROOT.glob("studies/*/*.svg")):
        files.append(File.generated(config, str(figure.relative_to(ROOT)), abs_src_path=str(figure)))
    for name, (_source, text) in PAGES.items():
        files.append(File.generated(config, name, content=text()))
    return files


def on_page_content(content: str, **_: Any) -> str:
    """The page with its mathematics, which arithmatex has marked, as MathML, and flags that no line end divides."""
    content = MATHEMATICS.sub(_formula, content)
    return INLINE_CODE.sub(lambda code: FLAG.sub(r'<span class="flag">\g<0></span>', code[0]), content)


def _formula(found: re.Match[str]) -> str:
    mode, place = FORMULA[found[2]]
    text = html.unescape(found[3]).replace(r"\%", "%")  # the converter would show the backslash
    return place.format(convert(text, display=mode))


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The text of a page, its links to files outside of docs/ rewritten."""
    docs = Path(config.docs_dir)
    here = (docs / page.file.src_uri).parent
    return LINK.sub(lambda link: _rewritten(link, here, docs, config.extra["repository"]), markdown)


def _rewritten(link: re.Match[str], here: Path, docs: Path, repository: str) -> str:
    target = Path(os.path.normpath(here / link[2]))  # configs/ is a link
    on_the_site = target.is_relative_to(docs) and not target.is_dir()
    if on_the_site or not target.exists():  # mkdocs itself says what is missing
        return link[0]
    source = str(target.relative_to(docs.parent))
    if target.suffix == ".svg":
        return f"{link[1]}{os.path.relpath(docs / source, here)})"
    for page, (written_in_its_place, _) in PAGES.items():
        if source == written_in_its_place:
            return f"{link[1]}{os.path.relpath(docs / page, here)}{link[3] or ''})"
    kind = "tree" if target.is_dir() else "blob"
    return f"{link[1]}{repository}/{kind}/main/{source}{link[3] or ''})"
