"""The figures of a page in a browser: what they tell a pointer, what a click and a slider change, how they fit."""

from __future__ import annotations

import shutil

import pytest
from synthetic import write_run
from waiting import PATIENCE_S

from sat_slime.report.page import WIDE_STYLE, Sheet
from sat_slime.report.run import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NAMES = ("overview", "reward", "mismatch", "lag", "trust_region", "log_ratio_histogram", "optimization", "time")


@pytest.fixture(scope="module")
def browser():
    """Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=0)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A run's report, whose name is hostile."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "run", 24, lag=4)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("name: synthetic", "name: '</script><img src=x onerror=alert(1)>'"))
    return write_report(folder)


@pytest.fixture
def opened(browser, report):
    """opened(width, ...): the page in a window of its own, and what it complained of or asked a network for."""
    contexts, faults = [], []

    def open_page(width=1200, names=("reward",), **more):
        context = browser.new_context(viewport={"width": width, "height": 800}, **more)
        context.set_default_timeout(1000 * PATIENCE_S)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda one: None if one.url.startswith(("file:", "data:")) else faults.append(one.url))
        page.goto(report.as_uri())
        for name in names:
            page.locator(f"#{name}").scroll_into_view_if_needed()
            page.wait_for_selector(f"#{name}.drawn")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def lines(page, name):
    """The lines of a figure, as SVG paths; one that is not shown has no path."""
    return [
        path
        for path in page.eval_on_selector_all(f"#{name} .mark-line path", "all => all.map(p => p.getAttribute('d'))")
        if path
    ]


def test_every_figure_is_drawn_without_a_network_or_a_complaint(opened):
    page = opened(names=NAMES)
    assert page.locator("figure.drawn .live svg").count() == len(NAMES)
    assert page.locator("figure img:visible").count() == 0
    assert page.evaluate("document.querySelectorAll('img[src=x]').length") == 0


def test_a_pointer_is_told_the_value(opened):
    page = opened()
    page.locator("#reward .mark-symbol path[opacity='0']").nth(11).hover(force=True)
    told = page.locator("#vg-tooltip-element.visible")
    told.wait_for()
    assert "reward of the batch" in told.inner_text() and "step" in told.inner_text()
    assert any(cell.replace(".", "").isdigit() for cell in told.locator("td.value").all_inner_texts())


def test_a_pointer_between_two_steps_is_told_all_lines_of_the_nearest(opened):
    page = opened(names=["mismatch"])
    at = page.locator("#mismatch .mark-symbol path[opacity='0']").nth(11).bounding_box()
    page.mouse.move(at["x"] + at["width"] / 2 + 3, at["y"] - 20)
    told = page.locator("#vg-tooltip-element.visible")
    told.wait_for()
    lines = [row.split("\t") for row in told.inner_text().splitlines() if row]
    assert page.locator("#mismatch .snap").count() == 1 and "step" in told.inner_text(), lines
    page.mouse.move(2, 2)
    page.wait_for_selector("#mismatch .snap", state="detached")


def test_a_click_on_a_name_leaves_its_line_alone(opened):
    page = opened(names=["mismatch"])
    before = lines(page, "mismatch")
    page.locator("#mismatch .role-legend-label text", has_text="policy part").first.click()
    page.wait_for_function(
        "n => [...document.querySelectorAll('#mismatch .mark-line path')].filter(p => p.getAttribute('d')).length < n",
        arg=len(before),
    )
    alone = lines(page, "mismatch")
    assert 0 < len(alone) < len(before)
    page.locator("#mismatch .role-legend-label text", has_text="d_pi").first.click(modifiers=["Shift"])
    page.wait_for_function(
        "n => [...document.querySelectorAll('#mismatch .mark-line path')].filter(p => p.getAttribute('d')).length > n",
        arg=len(alone),
    )


def test_the_slider_chooses_the_step_of_the_histogram(opened):
    page = opened(names=["log_ratio_histogram"])

    def seen():
        text = page.locator("#log_ratio_histogram .mark-text text").all_text_contents()
        bars = page.eval_on_selector_all(
            "#log_ratio_histogram .mark-rect path", "all => all.map(p => p.getAttribute('d'))"
        )
        return text, bars

    last, bars = seen()
    assert any((text or "").startswith("step 24,") for text in last)
    page.locator("#log_ratio_histogram input[type=range]").fill("3")
    page.get_by_text("step 3,").wait_for()
    assert seen()[1] != bars


def test_a_wheel_scrolls_the_page_and_zooms_with_ctrl_alone(opened):
    page = opened()
    axis = "[...document.querySelectorAll('#reward .role-axis-label text')].map(t => t.textContent).sort().join()"
    before, top = page.evaluate(axis), page.evaluate("scrollY")
    page.locator("#reward svg").hover(position={"x": 300, "y": 100})
    page.mouse.wheel(0, 120)
    page.wait_for_function("top => scrollY > top", arg=top)
    assert page.evaluate(axis) == before
    page.locator("#reward svg").hover(position={"x": 300, "y": 100})
    page.keyboard.down("Control")
    page.mouse.wheel(0, -600)
    page.keyboard.up("Control")
    page.wait_for_function(f"before => {axis} !== before", arg=before)
    page.locator("#reward svg").dblclick(position={"x": 300, "y": 100})
    page.wait_for_function(f"before => {axis} === before", arg=before)


def test_the_dark_scheme_reaches_the_figures_and_print_is_light(opened):
    ink = "getComputedStyle(document.querySelector('#reward .role-axis-label text')).fill"
    page = opened(color_scheme="dark")
    assert page.evaluate(ink) == "rgb(230, 230, 227)"
    page.emulate_media(color_scheme="light")
    assert page.evaluate(ink) == "rgb(28, 28, 28)"
    page.emulate_media(color_scheme="dark", media="print")
    assert page.locator("#reward img").is_visible() and not page.locator("#reward .live").is_visible()
    assert page.locator("figure img:visible").count() == len(NAMES)
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 28, 28)"


def test_a_phone_has_the_whole_width_and_readable_letters(opened):
    page = opened(390, names=NAMES)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    sizes = page.eval_on_selector_all(
        "figure svg text", "all => all.map(t => parseFloat(getComputedStyle(t).fontSize))"
    )
    assert sizes and min(sizes) >= 9
    for name in NAMES:
        place, picture = (page.locator(f"#{name} {part}").bounding_box() for part in (".live", "svg"))
        assert place["width"] - 16 <= picture["width"] <= place["width"]


def test_a_figure_grows_with_its_window(opened):
    page = opened(390)
    page.set_viewport_size({"width": 900, "height": 800})
    # a function: an expression would be evaluated, which the page forbids
    page.wait_for_function("() => document.querySelector('#reward svg').getBoundingClientRect().width > 600")


def test_without_scripts_the_pictures_are_there(opened):
    page = opened(names=(), java_script_enabled=False)
    assert page.locator("figure img:visible").count() == len(NAMES)


def test_a_number_and_its_interval_stay_on_a_line_on_a_phone(browser):
    rows = [["GRPO", "65.5 [53.5, 77.5] (128)", "65.5 [53.5, 77.5]", "0.0146 [0.0054, 0.0237]", "3"], [*"ABCDE"]]
    table = Sheet("main", "", "", ["method", "best, %", "late, %", "d_pi, nats", "runs"], rows).as_html()
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.set_content(f'<style>{WIDE_STYLE}</style><div class="wide">{table}</div>')
    heights = page.eval_on_selector_all("tr", "all => all.slice(1).map(row => row.getBoundingClientRect().height)")
    assert heights[0] == heights[1] and page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()
