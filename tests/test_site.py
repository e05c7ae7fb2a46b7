"""The site of the documents: it builds without a warning, has every page in its menu, loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import site_links

from sat_slime import objective

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS) for path in DOCS.rglob("*.md"))
LOADED = {"script", "img", "source", "iframe", "video", "audio", "embed"}
"""Tags whose `src` a browser loads by itself; `link` is told by its `rel`."""
LINKS_LOADED = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(folder of the site, what mkdocs said)."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # material's word on mkdocs 2, on every build
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=quiet)
    assert done.returncode == 0, done.stderr
    return folder, done.stderr


def test_it_builds_without_a_warning(built):
    """Strict: a link or an anchor that leads nowhere, a page outside the menu, or an odd docstring ends the build."""
    _, said = built
    assert "WARNING" not in said, said


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_page_is_there_and_in_the_menu(page, built):
    folder, _ = built
    home = (folder / "index.html").read_text()
    place = page.parent if page.name == "README.md" else page.with_suffix("")
    assert (folder / place / "index.html").is_file()
    menu = re.search(r'<nav class="md-nav md-nav--primary.*', home, re.DOTALL)
    assert menu and f'href="{"." if place == Path(".") else f"{place}/"}"' in menu[0]


class Addresses(HTMLParser):
    """What a browser loads of a page by itself, as its tags and its inline style have it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "link" and LINKS_LOADED & set(values.get("rel", "").split()):
            self.found.append(values.get("href", ""))
        self.found.append(values.get("src", "") if tag in LOADED else "")
        self.found += [part.split()[0] for part in values.get("srcset", "").split(",") if part.strip()]
        self.found += in_style(values.get("style", ""))


def in_style(css: str) -> list[str]:
    """What a style sheet loads."""
    named = re.findall(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", css)
    return [first or second for first, second in named]


def loaded(folder: Path) -> Iterator[tuple[Path, str]]:
    """(file, address) of all that the site's pages and style sheets load."""
    for path in folder.rglob("*.html"):
        text = path.read_text()
        parser = Addresses()
        parser.feed(text)
        inline = [address for css in re.findall(r"<style.*?</style>", text, re.DOTALL) for address in in_style(css)]
        yield from ((path, address) for address in (*parser.found, *inline))
    for path in folder.rglob("*.css"):
        yield from ((path, address) for address in in_style(path.read_text()))


def is_elsewhere(address: str) -> bool:
    return re.match(r"(?:[a-z]+:)?//", address) is not None


def test_nothing_is_loaded_from_elsewhere(built):
    folder, _ = built
    addresses = list(loaded(folder))
    assert any(path.suffix == ".css" for path, _ in addresses) and len(addresses) > 10 * len(PAGES)
    assert [(str(path), address) for path, address in addresses if is_elsewhere(address)] == []


@pytest.mark.parametrize(
    "text",
    [
        "<script src='https://cdn.example/x.js'></script>",
        "<link rel='preload stylesheet' href='//fonts.example/x.css'>",
        "<p style='background: url(http://example.org/x.png)'>",
        "<img src=x.png srcset='https://example.org/x.png 2x'>",
        "<style>@import 'https://example.org/x.css'</style>",
    ],
)
def test_what_is_elsewhere_is_seen(text, tmp_path):
    (tmp_path / "page.html").write_text(text)
    assert any(is_elsewhere(address) for _, address in loaded(tmp_path))


def test_nothing_asks_material_for_what_it_would_load_itself(built):
    """Its script fetches mermaid where a page has a diagram, and a repository's stars where the site names one."""
    folder, _ = built
    for path in folder.rglob("*.html"):
        assert not re.search(r'class="mermaid"|data-md-component="source"', path.read_text()), path


def test_the_page_of_python_names_shows_every_public_one(built):
    folder, _ = built
    page = (folder / "reference" / "api" / "index.html").read_text()
    shown = set(re.findall(r'id="sat_slime\.objective\.(?:\w+\.)?(\w+)"', page))
    assert set(objective.__all__) - shown == set()


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("../configs/embedded/base.yaml", "https://here/blob/main/sat_slime/configs/embedded/base.yaml"),
        ("../sat_slime/objective", "https://here/tree/main/sat_slime/objective"),
        ("../CONTRIBUTING.md#x", "https://here/blob/main/CONTRIBUTING.md#x"),
        ("images", "https://here/tree/main/docs/images"),
        ("images/lag.svg", "images/lag.svg"),
        ("slime.md#settings", "slime.md#settings"),
        ("#here", "#here"),
        ("../gone.md", "../gone.md"),
        ("https://example.org/x", "https://example.org/x"),
    ],
)
def test_links_out_of_the_documents_lead_to_the_repository(link, expected):
    page = SimpleNamespace(file=SimpleNamespace(abs_src_path=str(DOCS / "objective.md")))
    config = SimpleNamespace(docs_dir=str(DOCS), extra={"repository": "https://here"})
    assert site_links.on_page_markdown(f"see [x]({link}).", page=page, config=config).startswith(
        f"see [x]({expected})."
    )


def test_terms_of_the_glossary_explain_themselves(built):
    folder, _ = built
    terms = re.findall(r"^\| \*\*(.+?)\*\*", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert len(terms) >= 15
    page = (folder / "objective" / "index.html").read_text()
    assert re.search(r'<abbr title="staleness-adaptive trust region[^"]*">SAT</abbr>', page)
