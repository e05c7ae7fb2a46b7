"""Draws the picture at the head of the documentation from the histograms of a run: what lag is, and what SAT does.

    sat-slime launch configs/embedded/quickstart.yaml --method sat-grpo --name explainer
    python scripts/explainer.py runs/explainer    # measure the run, and draw
    python scripts/explainer.py                   # draw what was measured again

In docs/images it writes explainer.json, what the run's histograms say: of the steps of each lag in its second half the
histogram of |d| and the median of SAT's q; explainer.svg, which moves for 20 seconds and starts again; and
explainer-still.svg, one frame of it for print. The lanes of engine and trainer are a drawing.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from drawing import IMAGES, path, style

from sat_slime.config.loader import load_config
from sat_slime.objective import contraction_factors
from sat_slime.objective.stabilizers.clips.ppo import Clip

MEASURED = IMAGES / "explainer.json"

SECONDS = 20.0
STEP_SECONDS = 2.2  # of each lag; what is left of the 20 s is the broadcast
LEFT, RIGHT = 60, 920  # of both panels over |d|
TOKENS_TOP, TOKENS_BASE = 275, 375  # the panel of the tokens
TOP, BASE = 400, 560  # the panel of the radii
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
  .small, .in { font-size: 13px; } .in, .mid { text-anchor: middle; }
  .caption { font-size: 17px; font-weight: 600; }
  .axis { fill: none; } .pushed { fill: none; stroke-width: 2.5; } .drift { fill-opacity: .3; }
  .curve { fill: none; stroke-width: 2.5; } .ppo { stroke-dasharray: 7 5; } .ratio { stroke-width: 1.2; }
  .q { stroke-dasharray: 3 4; stroke-width: 1.5; } .cut { fill-opacity: .4; } .satword { font-weight: 600; }
""",
    COLOURS,
)


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
        "explainer.svg": picture(drifts, edges, moving=True),
        "explainer-still.svg": picture(drifts, edges, moving=False),
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


def picture(drifts: list[Drift], edges: np.ndarray, *, moving: bool) -> str:
    """Return the SVG; without `moving` the frame of the largest lag, with every caption that fits it."""
    clock = Clock(len(drifts), moving)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 620" role="img"><style>{STYLE}</style>',
        "<title>What lag is, and what SAT does</title>",
        '<rect class="paper" width="960" height="620" rx="8"/>',
        *lanes(clock),
        *interval(drifts, edges, clock),
        *captions(drifts, clock),
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


def lanes(clock: Clock) -> list[str]:
    """Return the engine's lane, whose weights stay, and the trainer's, whose weights move on with each step."""
    parts = ['<text x="40" y="92">engine makes</text>', '<text x="40" y="162">trainer learns</text>']
    width = 85
    for lag in range(1, clock.lags + 1):
        x = 150 + (lag - 1) * width
        opacity = ' opacity="0.15"' if clock.moving else ""
        lit = ""
        if clock.moving:
            start = (lag - 1) * STEP_SECONDS
            times = [0.0, max(start, 0.001), start + 0.3, SECONDS - 0.6, SECONDS]
            lit = _animate("opacity", times, ["0.15", "0.15", "1", "1", "0.15"], "linear")
        parts += [
            f'<g{opacity}>{lit}<rect class="old" x="{x}" y="70" width="{width - 6}" height="34" rx="4"/>'
            f'<text class="in" x="{x + 39}" y="92">by v0</text>'
            f'<rect class="old" x="{x}" y="140" width="{width - 6}" height="34" rx="4"/>'
            f'<rect class="new" x="{x}" y="140" width="{width - 6}" height="34" rx="4" '
            f'opacity="{lag / clock.lags:.2f}"/>'
            f'<text class="in" x="{x + 39}" y="162">at v{lag}</text>'
            f'<path class="axis" d="M{x + 39} 106 v30" marker-end="url(#tip)"/>'
            f'<text class="small mid" x="{x + 39}" y="194">lag {lag}</text></g>'
        ]
    end = 150 + clock.lags * width
    parts += [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
        f"<g>{clock.shown(clock.lags * STEP_SECONDS, SECONDS - 0.1)}"
        f'<path class="pushed" d="M{end} 157 h22 v-70 h-14" '
        f'marker-end="url(#tip)"/><text x="{end - 14}" y="60" class="push">broadcast</text></g>',
    ]
    return parts


def interval(drifts: list[Drift], edges: np.ndarray, clock: Clock) -> list[str]:
    """Return the lower panel over |d|: the tokens, the ratio they have, PPO's radius and SAT's."""
    radius = Clip().eps_high
    grid = np.geomspace(LOW, HIGH, 160)
    largest = max(float(drift.heights.max()) for drift in drifts)

    def tokens(drift: Drift) -> str:
        tops = TOKENS_BASE - drift.heights / largest * (TOKENS_BASE - TOKENS_TOP)
        corners = [
            (x, top)
            for low, high, top in zip(edges[:-1], edges[1:], tops, strict=True)
            for x, top in ((_x(low), top), (_x(high), top))
        ]
        return path([(LEFT, TOKENS_BASE), *corners, (RIGHT, TOKENS_BASE)]) + "z"

    def contracted(q: float) -> np.ndarray:
        log_ratio = torch.tensor(grid)
        _, factors = contraction_factors(log_ratio, torch.tensor(q, dtype=log_ratio.dtype))
        return radius * factors.numpy()

    def sat(q: float) -> str:
        return path([(_x(d), _y(eps)) for d, eps in zip(grid, contracted(q), strict=True)])

    def newly_clipped(q: float) -> str:
        ratio = np.exp(grid) - 1
        cut = (ratio > contracted(q)) & (ratio <= radius)
        if not cut.any():
            return path([(_x(q), BASE)] * 4) + "z"
        first, last = _x(grid[cut][0]), _x(math.log1p(radius))
        return path([(first, BASE), (first, TOKENS_TOP), (last, TOKENS_TOP), (last, BASE)]) + "z"

    frames = {
        "drift": [tokens(drift) for drift in drifts],
        "cut": [newly_clipped(drift.q) for drift in drifts],
        "curve sat": [sat(drift.q) for drift in drifts],
        "q": [path([(_x(drift.q), BASE), (_x(drift.q), TOKENS_TOP)]) for drift in drifts],
    }
    parts = []
    for name in ("drift", "cut"):
        parts.append(f'<path class="{name}" d="{frames[name][-1]}">{clock.steps("d", frames[name])}</path>')
    ratio = path([(_x(d), _y(math.expm1(d))) for d in grid if math.expm1(d) <= MOST])
    parts += [
        f'<path class="axis" d="M{LEFT} {TOKENS_BASE}H{RIGHT}M{LEFT} {BASE}H{RIGHT}"/>',
        f'<path class="curve ratio" d="{ratio}"/>',
        f'<path class="curve ppo" d="M{LEFT} {_y(radius):.1f}H{RIGHT}"/>',
    ]
    for name in ("curve sat", "q"):
        parts.append(f'<path class="{name}" d="{frames[name][-1]}">{clock.steps("d", frames[name])}</path>')
    for value in (0.0001, 0.001, 0.01, 0.1, 1.0):
        parts.append(f'<text class="small" x="{_x(value) - 12:.0f}" y="{BASE + 18}">{value:g}</text>')
    xs = [f"{_x(drift.q) + 6:.0f}" for drift in drifts]
    parts += [
        f'<text class="small" x="{LEFT}" y="{BASE + 38}">|d| = |log π − log μ| of a token, nats: how far the trained '
        "policy has moved from the one that sampled it</text>",
        f'<text class="small" x="{LEFT + 4}" y="{_y(radius) - 8:.0f}">PPO: radius ε = {radius:g} for every '
        "token</text>",
        f'<text class="satword" x="{xs[-1]}" y="{TOKENS_TOP + 8}">q{clock.steps("x", xs)}</text>',
        f'<text class="small" x="{_x(math.log1p(MOST)) + 8:.0f}" y="{TOP + 10}">ratio − 1</text>',
        f'<text class="small" x="{LEFT + 4}" y="{TOKENS_TOP - 6}">tokens of a batch, by |d|</text>',
        f'<text class="satword" x="{RIGHT - 120}" y="{BASE - 26}">SAT: radius</text>',
    ]
    return parts


def captions(drifts: list[Drift], clock: Clock) -> list[str]:
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
    if not clock.moving:
        return [
            '<text class="caption" x="60" y="38">Engine and trainer run side by side. The engine keeps its weights, so '
            "each batch is one step older.</text>",
            f'<text class="caption" x="60" y="226">{sentences[2][0]} {sentences[2][1]}</text>',
            f'<text class="small" x="60" y="248">{sentences[3][0]} {sentences[3][1]} A real run, at lag {lag}.</text>',
        ]
    parts = []
    for number, (first, second) in enumerate(sentences):
        start = number * SECONDS / len(sentences)
        parts.append(
            f'<g opacity="0">{clock.shown(start, start + SECONDS / len(sentences))}'
            f'<text class="caption" x="60" y="30">{first}</text><text class="caption" x="60" y="54">{second}</text></g>'
        )
    labels = [f"lag {step}" for step in range(1, lag + 1)]
    for step, label in enumerate(labels):
        start = step * STEP_SECONDS
        end = start + STEP_SECONDS if step < lag - 1 else SECONDS
        parts.append(
            f'<text class="caption" x="{RIGHT - 60}" y="245" opacity="0">{clock.shown(start, end)}{label}</text>'
        )
    return parts


def _x(d: float) -> float:
    return LEFT + (RIGHT - LEFT) * math.log(d / LOW) / math.log(HIGH / LOW)


def _y(radius: float) -> float:
    return BASE - (BASE - TOP) * radius / MOST


if __name__ == "__main__":
    main()
