"""Draws the picture at the head of the documentation from the histograms of a run: what lag is, and what SAT does.

    sat-slime launch configs/embedded/quickstart.yaml --method sat-grpo --name explainer
    python scripts/explainer.py runs/explainer    # measure the run, and draw
    python scripts/explainer.py                   # draw what was measured again

In docs/images it writes explainer.json, what the run's histograms say: of the steps of each lag in its second half the
histogram of |d| and the median of SAT's q; explainer.svg, which moves for 20 seconds and starts again; and
explainer-still.svg, one frame of it for print; and both again as explainer-narrow.svg and explainer-narrow-still.svg,
for screens as narrow as a telephone's. The lanes of engine and trainer are a drawing.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from drawing import IMAGES, path, style

from sat_slime.config.loader import load_config
from sat_slime.objective import Clip, contraction_factors

MEASURED = IMAGES / "explainer.json"

SECONDS = 20.0
STEP_SECONDS = 2.2  # of each lag; what is left of the 20 s is the broadcast
LOW, HIGH = 1e-4, 1.0  # the range of |d| that is drawn, nats
MOST = 0.30  # top of the axis of radii

COLOURS = """
  .paper {{ fill: {paper}; }} .axis {{ stroke: {dim}; }} text, .ink {{ fill: {ink}; }} .small, .tip {{ fill: {dim}; }}
  .old {{ fill: {old}; }} .new, .push {{ fill: {new}; }} .in {{ fill: #fff; }} .pushed {{ stroke: {new}; }}
  .drift {{ fill: {old}; stroke: {old}; }} .ppo {{ stroke: {dim}; }} .sat, .q {{ stroke: {sat}; }}
  .ratio {{ stroke: {ink}; }} .cut, .satword {{ fill: {sat}; }}
"""
STYLE = style(
    """
  text { font: 15px system-ui, -apple-system, "Segoe UI", sans-serif; }
  .small, .in { font-size: 13px; } .in, .mid { text-anchor: middle; } .end { text-anchor: end; }
  .caption { font-size: 17px; font-weight: 600; }
  .axis { fill: none; } .pushed { fill: none; stroke-width: 2.5; } .drift { fill-opacity: .3; }
  .curve { fill: none; stroke-width: 2.5; } .ppo { stroke-dasharray: 7 5; } .ratio { stroke-width: 1.2; }
  .q { stroke-dasharray: 3 4; stroke-width: 1.5; } .cut { fill-opacity: .4; } .satword { font-weight: 600; }
""",
    COLOURS,
)


class Frame(NamedTuple):
    """Where things stand in a picture, in pixels. A narrow one has letters of the same size."""

    width: int
    height: int
    left: int
    right: int
    """Ends of both panels over |d|."""
    tokens_top: int
    tokens_base: int
    """Of the panel of the tokens."""
    top: int
    base: int
    """Of the panel of the radii."""
    first: int
    column: int
    """The first box of both lanes, and from one box to the next."""
    engine: int
    trainer: int
    """Tops of the lanes' boxes."""
    named: tuple[tuple[int, int], tuple[int, int]]
    """Places of the lanes' names."""
    captions: int
    """Where captions begin."""
    line: int
    """Characters of a caption's line; 0: as it is written."""

    apart: int
    """From one line of a caption to the next."""

    @property
    def narrow(self) -> bool:
        return self.line > 0

    def x(self, d: float) -> float:
        """Return the place of |d| = `d` nats."""
        return self.left + (self.right - self.left) * math.log(d / LOW) / math.log(HIGH / LOW)

    def y(self, radius: float) -> float:
        """Return the height of a radius."""
        return self.base - (self.base - self.top) * radius / MOST

    def wrapped(self, *lines: str, small: bool = False) -> list[str]:
        """Return the lines of a caption that fit. small: they are in the smaller letters."""
        return textwrap.wrap(" ".join(lines), self.line * 5 // 4 if small else self.line) if self.narrow else [*lines]

    def lower(self, by: int) -> Frame:
        """Return the frame with its panels, and all below them, further down."""
        moved = {name: getattr(self, name) + by for name in ("height", "tokens_top", "tokens_base", "top", "base")}
        return self._replace(**moved)


WIDE = Frame(960, 620, 60, 920, 275, 375, 400, 560, 150, 85, 70, 140, ((40, 92), (40, 162)), 60, 0, 22)
NARROW = Frame(360, 624, 16, 344, 300, 375, 405, 540, 16, 39, 120, 186, ((16, 112), (16, 264)), 16, 34, 20)


AXIS = "|d| = |log π − log μ| of a token, nats: how far the trained policy has moved from the one that sampled it"
STILL = ("Engine and trainer run side by side. The engine keeps its weights,", "so each batch is one step older.")


class Drift(NamedTuple):
    """How far the tokens of one lag have drifted: `heights` (bins,) of the histogram over log |d|, and SAT's `q`."""

    heights: np.ndarray
    q: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="folder of an embedded run of sat-grpo")
    options = parser.parse_args()
    if options.run is not None:
        lag = load_config(options.run / "config.yaml").pipeline.lag
        MEASURED.write_text(json.dumps(measured_drifts(options.run / "histograms.jsonl", lag)) + "\n", encoding="utf-8")
    for name, svg in pictures().items():
        (IMAGES / name).write_text(svg, encoding="utf-8")


def pictures() -> dict[str, str]:
    """Return the SVG files by name, drawn from what was measured."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    drifts = [Drift(np.array(heights), q) for heights, q in zip(measured["share"], measured["q"], strict=True)]
    edges = np.array(measured["edges"])
    return {
        "explainer.svg": picture(drifts, edges, WIDE, moving=True),
        "explainer-still.svg": picture(drifts, edges, WIDE, moving=False),
        "explainer-narrow.svg": picture(drifts, edges, NARROW, moving=True),
        "explainer-narrow-still.svg": picture(drifts, edges, NARROW.lower(152), moving=False),
    }


def measured_drifts(histograms: Path, lag: int) -> dict[str, list[Any]]:
    """Return, of lag 1, 2, ..., `lag`, the `share` (bins,) of tokens in each bin and the median `q` in nats; and the
    bins' `edges` (bins + 1,) in nats, those inside [LOW, HIGH]."""
    rows = [json.loads(line) for line in histograms.read_text(encoding="utf-8").splitlines()]
    edges = np.array(rows[0]["edges"])
    inside = (edges[:-1] >= LOW * 0.99) & (edges[1:] <= HIGH * 1.01)
    measured: dict[str, list[Any]] = {"edges": [*edges[:-1][inside], edges[1:][inside][-1]], "share": [], "q": []}
    for step in range(1, lag + 1):
        of_lag = [row for row in rows[len(rows) // 2 :] if row["lag"] == step]
        counts = np.sum([row["counts"] for row in of_lag], axis=0)
        measured["share"].append([round(share, 6) for share in counts[1:-1][inside] / counts.sum()])
        measured["q"].append(statistics.median(row["q"] for row in of_lag))
    return measured


def picture(drifts: list[Drift], edges: np.ndarray, frame: Frame, *, moving: bool) -> str:
    """Return the SVG; without `moving` the frame of the largest lag, with every caption that fits it."""
    clock = Clock(len(drifts), moving)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {frame.width} {frame.height}" role="img">',
        f"<style>{STYLE}{'.caption { font-size: 15px; }' * frame.narrow}</style>",
        "<title>What lag is, and what SAT does</title>",
        f'<rect class="paper" width="{frame.width}" height="{frame.height}" rx="8"/>',
        *lanes(clock, frame),
        *interval(drifts, edges, clock, frame),
        *captions(clock, frame),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class Clock(NamedTuple):
    """The 20 seconds of the picture: a step of training for each lag, and then a broadcast."""

    lags: int
    moving: bool

    def steps(self, attribute: str, values: list[str], mode: str = "linear") -> str:
        """Return an animation of `attribute` that takes one of `values` at each lag, moving on in a third of a step."""
        if not self.moving:
            return ""
        times, frames = [], []
        for lag, value in enumerate(values):
            times += [lag * STEP_SECONDS + (0.8 if lag else 0.0), (lag + 1) * STEP_SECONDS]
            frames += [value, value]
        times += [(SECONDS + self.lags * STEP_SECONDS) / 2, SECONDS]
        frames += [values[0], values[0]]
        return _animate(attribute, times, frames, mode)

    def shown(self, start: float, end: float) -> str:
        """Return an animation that shows its parent from `start` to `end` seconds."""
        if not self.moving:
            return ""
        times = [0.0, start, min(start + 0.3, end), max(end - 0.3, start), end, SECONDS]
        return _animate("opacity", times, ["0", "0", "1", "1", "0", "0"], "linear")


def _animate(attribute: str, times: list[float], values: list[str], mode: str) -> str:
    ticks = ";".join(f"{time / SECONDS:.4f}" for time in times)
    return (
        f'<animate attributeName="{attribute}" dur="{SECONDS:g}s" repeatCount="indefinite" calcMode="{mode}" '
        f'keyTimes="{ticks}" values="{";".join(values)}"/>'
    )


def lanes(clock: Clock, frame: Frame) -> list[str]:
    """Return the engine's lane, whose weights stay, and the trainer's, whose weights move on with each step."""
    names = zip(frame.named, ("engine makes", "trainer learns"), strict=True)
    parts = [f'<text x="{x}" y="{y}">{name}</text>' for (x, y), name in names]
    engine, trainer, width = frame.engine, frame.trainer, frame.column - (3 if frame.narrow else 6)
    by, at = ("", "") if frame.narrow else ("by ", "at ")
    for lag in range(1, clock.lags + 1):
        x = frame.first + (lag - 1) * frame.column
        middle = x + width // 2
        opacity = ' opacity="0.15"' if clock.moving else ""
        lit = ""
        if clock.moving:
            start = (lag - 1) * STEP_SECONDS
            times = [0.0, max(start, 0.001), start + 0.3, SECONDS - 0.6, SECONDS]
            lit = _animate("opacity", times, ["0.15", "0.15", "1", "1", "0.15"], "linear")
        parts += [
            f'<g{opacity}>{lit}<rect class="old" x="{x}" y="{engine}" width="{width}" height="34" rx="4"/>'
            f'<text class="in" x="{middle}" y="{engine + 22}">{by}v0</text>'
            f'<rect class="old" x="{x}" y="{trainer}" width="{width}" height="34" rx="4"/>'
            f'<rect class="new" x="{x}" y="{trainer}" width="{width}" height="34" rx="4" '
            f'opacity="{lag / clock.lags:.2f}"/>'
            f'<text class="in" x="{middle}" y="{trainer + 22}">{at}v{lag}</text>'
            f'<path class="axis" d="M{middle} {engine + 36}V{trainer - 4}" marker-end="url(#tip)"/>'
            f'<text class="small mid" x="{middle}" y="{trainer + 54}">lag {lag}</text></g>'
        ]
    end = frame.first + clock.lags * frame.column
    out = min(22, frame.width - 14 - end)
    parts += [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
        f"<g>{clock.shown(clock.lags * STEP_SECONDS, SECONDS - 0.1)}"
        f'<path class="pushed" d="M{end} {trainer + 17}h{out}V{engine + 17}h{8 - out}" '
        f'marker-end="url(#tip)"/><text x="{min(end + 58, frame.right)}" y="{engine - 8}" class="push end">broadcast'
        "</text></g>",
    ]
    return parts


def interval(drifts: list[Drift], edges: np.ndarray, clock: Clock, frame: Frame) -> list[str]:
    """Return the lower panel over |d|: the tokens, the ratio they have, PPO's radius and SAT's."""
    radius = Clip().eps_high
    left, right, base = frame.left, frame.right, frame.base
    tokens_top, tokens_base = frame.tokens_top, frame.tokens_base
    grid = np.geomspace(LOW, HIGH, 160)
    largest = max(float(drift.heights.max()) for drift in drifts)

    def tokens(drift: Drift) -> str:
        tops = tokens_base - drift.heights / largest * (tokens_base - tokens_top)
        corners = [
            (x, top)
            for low, high, top in zip(edges[:-1], edges[1:], tops, strict=True)
            for x, top in ((frame.x(low), top), (frame.x(high), top))
        ]
        return path([(left, tokens_base), *corners, (right, tokens_base)]) + "z"

    def contracted(q: float) -> np.ndarray:
        log_ratio = torch.tensor(grid)
        _, factors = contraction_factors(log_ratio, torch.tensor(q, dtype=log_ratio.dtype))
        return radius * factors.numpy()

    def sat(q: float) -> str:
        return path([(frame.x(d), frame.y(eps)) for d, eps in zip(grid, contracted(q), strict=True)])

    def newly_clipped(q: float) -> str:
        ratio = np.exp(grid) - 1
        cut = (ratio > contracted(q)) & (ratio <= radius)
        if not cut.any():
            return path([(frame.x(q), base)] * 4) + "z"
        first, last = frame.x(grid[cut][0]), frame.x(math.log1p(radius))
        return path([(first, base), (first, tokens_top), (last, tokens_top), (last, base)]) + "z"

    frames = {
        "drift": [tokens(drift) for drift in drifts],
        "cut": [newly_clipped(drift.q) for drift in drifts],
        "curve sat": [sat(drift.q) for drift in drifts],
        "q": [path([(frame.x(drift.q), base), (frame.x(drift.q), tokens_top)]) for drift in drifts],
    }
    parts = []
    for name in ("drift", "cut"):
        parts.append(f'<path class="{name}" d="{frames[name][-1]}">{clock.steps("d", frames[name])}</path>')
    ratio = path([(frame.x(d), frame.y(math.expm1(d))) for d in grid if math.expm1(d) <= MOST])
    parts += [
        f'<path class="axis" d="M{left} {tokens_base}H{right}M{left} {base}H{right}"/>',
        f'<path class="curve ratio" d="{ratio}"/>',
        f'<path class="curve ppo" d="M{left} {frame.y(radius):.1f}H{right}"/>',
    ]
    for name in ("curve sat", "q"):
        parts.append(f'<path class="{name}" d="{frames[name][-1]}">{clock.steps("d", frames[name])}</path>')
    for value in (0.0001, 0.001, 0.01, 0.1, 1.0):
        parts.append(f'<text class="small" x="{frame.x(value) - 12:.0f}" y="{base + 18}">{value:g}</text>')
    xs = [f"{frame.x(drift.q) + 6:.0f}" for drift in drifts]
    ratio_at = (right, frame.top - 6) if frame.narrow else (round(frame.x(math.log1p(MOST))) + 65, frame.top + 10)
    sat_at = round(frame.y(0.08)) if frame.narrow else base - 26
    every, what = ("", "") if frame.narrow else (" for every token", ": radius")
    parts += [
        *_lines("small", left, base + 38, frame.wrapped(AXIS, small=True), 17),
        f'<text class="small" x="{left + 4}" y="{frame.y(radius) - 8:.0f}">PPO: radius ε = {radius:g}{every}</text>',
        f'<text class="satword" x="{xs[-1]}" y="{tokens_top + 8}">q{clock.steps("x", xs)}</text>',
        f'<text class="small end" x="{ratio_at[0]}" y="{ratio_at[1]}">ratio − 1</text>',
        f'<text class="small" x="{left + 4}" y="{tokens_top - 6}">tokens of a batch, by |d|</text>',
        f'<text class="satword end" x="{right - (0 if frame.narrow else 25)}" y="{sat_at}">SAT{what}</text>',
    ]
    return parts


def captions(clock: Clock, frame: Frame) -> list[str]:
    """Return the four sentences, one after the other; in the still picture two of them, one above each half."""
    lag = clock.lags
    sentences = [
        (
            "Engine and trainer run side by side. The engine keeps its weights,",
            "so each batch is one step older: that is the lag.",
        ),
        ("The older the data, the further their tokens have drifted:", f"|d| of a real run at lag 1 to {lag}."),
        (
            "PPO clips every token at the same radius. SAT narrows it",
            "for the stalest tenth of the tokens, those past q.",
        ),
        (
            "Shaded: the gradient that only SAT takes away. Where PPO has",
            "clipped already, right of it, SAT changes nothing.",
        ),
    ]
    top = frame.apart + 8
    if not clock.moving:
        second = frame.wrapped(*sentences[2])
        small = frame.wrapped(f"{' '.join(sentences[3])} A real run, at lag {lag}.", small=True)
        below = frame.tokens_top - 22 - 18 * (len(small) - 1)
        return [
            *_lines("caption", frame.captions, top, frame.wrapped(*STILL), frame.apart),
            *_lines("caption", frame.captions, below - 20 - frame.apart * (len(second) - 1), second, frame.apart),
            *_lines("small", frame.captions, below, small, 18),
        ]
    parts = []
    for number, sentence in enumerate(sentences):
        start = number * SECONDS / len(sentences)
        said = "".join(_lines("caption", frame.captions, top, frame.wrapped(*sentence), frame.apart))
        parts.append(f'<g opacity="0">{clock.shown(start, start + SECONDS / len(sentences))}{said}</g>')
    labels = [f"lag {step}" for step in range(1, lag + 1)]
    for step, label in enumerate(labels):
        start = step * STEP_SECONDS
        end = start + STEP_SECONDS if step < lag - 1 else SECONDS
        shown = clock.shown(start, end)
        place = f'x="{frame.right - 60}" y="{frame.tokens_top - 30}"'
        parts.append(f'<text class="caption" {place} opacity="0">{shown}{label}</text>')
    return parts


def _lines(kind: str, x: int, y: int, lines: list[str], apart: int) -> list[str]:
    """Return lines of text, the first of them at `y`."""
    return [f'<text class="{kind}" x="{x}" y="{y + place * apart}">{line}</text>' for place, line in enumerate(lines)]


if __name__ == "__main__":
    main()
