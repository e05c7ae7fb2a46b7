"""The picture at the head of the documentation: it is what its script draws, and safe and light to show."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def pictures() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("explainer", ROOT / "scripts/explainer.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pictures()


def test_the_kept_pictures_are_what_the_script_draws(pictures):
    for name, svg in pictures.items():
        assert (ROOT / "docs/images" / name).read_text(encoding="utf-8") == svg, "run scripts/explainer.py"


def test_the_moving_picture_is_one_loop_of_valid_animations(pictures):
    root = ET.fromstring(pictures["explainer.svg"])
    animations = list(root.iter(f"{SVG}animate"))
    assert animations and {animation.get("dur") for animation in animations} == {"20s"}
    for animation in animations:
        times = [float(time) for time in animation.get("keyTimes", "").split(";")]
        assert times[0] == 0 and times[-1] == 1 and times == sorted(times)
        assert len(animation.get("values", "").split(";")) == len(times)
    assert not list(ET.fromstring(pictures["explainer-still.svg"]).iter(f"{SVG}animate"))


def test_the_pictures_load_nothing_and_run_nothing(pictures):
    for svg in pictures.values():
        assert "<script" not in svg and "href" not in svg and len(svg) < 100_000
