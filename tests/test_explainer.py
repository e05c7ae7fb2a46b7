"""The drawn pictures of the documentation: they are what their scripts draw, and safe and light to show."""

from __future__ import annotations

import importlib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

IMAGES = Path(__file__).parents[1] / "docs/images"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module", params=["explainer", "figures"])
def pictures(request) -> dict[str, str]:
    return importlib.import_module(request.param).pictures()  # below scripts/


def test_the_kept_pictures_are_what_the_script_draws(pictures):
    for name, svg in pictures.items():
        assert (IMAGES / name).read_text(encoding="utf-8") == svg, f"draw {name} again"


@pytest.mark.parametrize("name", ["explainer", "explainer-narrow"])
def test_the_moving_picture_is_one_loop_of_valid_animations(name):
    root = ET.fromstring((IMAGES / f"{name}.svg").read_text(encoding="utf-8"))
    animations = list(root.iter(f"{SVG}animate"))
    assert animations and {animation.get("dur") for animation in animations} == {"20s"}
    for animation in animations:
        times = [float(time) for time in animation.get("keyTimes", "").split(";")]
        assert times[0] == 0 and times[-1] == 1 and times == sorted(times)
        assert len(animation.get("values", "").split(";")) == len(times)


def test_the_others_stand_still_and_within_their_frame(pictures):
    for name, svg in pictures.items():
        root = ET.fromstring(svg)
        width, height = (float(side) for side in root.get("viewBox", "").split()[2:])
        assert name in ("explainer.svg", "explainer-narrow.svg") or not list(root.iter(f"{SVG}animate"))
        for text in root.iter(f"{SVG}text"):
            assert 0 < float(text.get("x", "")) < width and 0 < float(text.get("y", "")) < height


def test_the_pictures_load_nothing_and_run_nothing(pictures):
    for svg in pictures.values():
        assert "<script" not in svg and "href" not in svg and len(svg) < 100_000


@pytest.mark.parametrize("name", ["explainer", "explainer-still", "explainer-narrow", "explainer-narrow-still"])
def test_no_line_of_the_explainer_is_cut(name):
    root = ET.fromstring((IMAGES / f"{name}.svg").read_text(encoding="utf-8"))
    width = float(root.get("viewBox", "").split()[2])
    for text in root.iter(f"{SVG}text"):
        kinds = text.get("class", "").split()
        size = 13 if {"small", "in"} & set(kinds) else 15 if "caption" not in kinds or "narrow" in name else 17
        long = len(text.text or "") * size * (0.6 if {"caption", "satword"} & set(kinds) else 0.49)  # a wide font
        start = float(text.get("x", "")) - long * (1 if "end" in kinds else 0.5 if {"mid", "in"} & set(kinds) else 0)
        assert start >= 0 and start + long <= width, text.text


def test_a_telephone_gets_the_narrow_explainer_with_letters_of_their_own_size():
    root = ET.fromstring((IMAGES / "explainer-narrow.svg").read_text(encoding="utf-8"))
    assert float(root.get("viewBox", "").split()[2]) <= 360
    for page in (IMAGES.parents[1] / "README.md", IMAGES.parent / "README.md"):
        first = page.read_text(encoding="utf-8").partition("<picture>")[2].partition("</picture>")[0]
        assert first.index("explainer-narrow.svg") < first.index("explainer-still.svg") < first.index("explainer.svg")
