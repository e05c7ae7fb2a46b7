"""Draws the figures that explain the trust region, lag, the denominator, R3's routes and streaming in the documents.

    python scripts/figures.py                # draw what was measured again
    python scripts/figures.py --measure      # read the kept dump first

What they show is measured or computed by the package: q is that of docs/images/explainer.json, lag and d_pi are those
of the lag's study (seed 0 and medians over five seeds of GSPO in studies/frontier, whose raw rows are in the history
at commit 4057eb7), |d| by denominator and the lengths of responses those of
notebooks/data/lag-7.safetensors. docs/images/figures.json keeps them.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch
from drawing import IMAGES, path, style

from sat_slime.objective import Clip, contraction_factors
from sat_slime.rollout.token_dump import read_dump

ROOT = IMAGES.parents[1]
MEASURED = IMAGES / "figures.json"
DUMP = ROOT / "notebooks/data/lag-7.safetensors"
LAG = 8  # of the run whose steps are drawn
LAGS = (0, 1, 2, 4, 8, 16, 32, 64)

STYLE = style(
    """
  text { font: 15px system-ui, -apple-system, "Segoe UI", sans-serif; }
  .bold { font-weight: 600; } .mid, .in { text-anchor: middle; } .end { text-anchor: end; }
  .line { fill: none; stroke-width: 2.5; } .thin { fill: none; stroke-width: 1.2; } .dash { stroke-dasharray: 7 5; }
  .faint { fill-opacity: .35; } .box { fill: none; stroke-width: 1.5; }
""",
    """
  .paper {{ fill: {paper}; }} text, .ink {{ fill: {ink}; }} text.dim, .tip {{ fill: {dim}; }}
  .old {{ fill: {old}; }} .new {{ fill: {new}; }} .sat {{ fill: {sat}; }} .rule {{ fill: {rule}; }}
  .line.old, .thin.old {{ fill: none; stroke: {old}; }} .line.new {{ fill: none; stroke: {new}; }}
  .line.dim, .thin.dim, .box {{ fill: none; stroke: {dim}; }}
  .line.sat, .thin.sat {{ fill: none; stroke: {sat}; }} .line.ink, .thin.ink {{ fill: none; stroke: {ink}; }}
  .in {{ fill: #fff; }}
""",
)
TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>'
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="read the kept dump first")
    if parser.parse_args().measure:
        MEASURED.write_text(json.dumps(measured()) + "\n", encoding="utf-8")
    for name, svg in pictures().items():
        (IMAGES / name).write_text(svg, encoding="utf-8")


def measured() -> dict[str, Any]:
    """Return what the figures show: `lag` and `d_pi` of a run's steps, the median of `d_pi_by_lag` over seeds, the mean
    |d| of `denominators`, and `lengths` of responses in tokens."""
    dump = read_dump(DUMP)
    pi = dump.log_probs.astype(np.float64)
    denominators = {"rollout": dump.rollout_log_probs, "checkpoint": dump.more["checkpoint_log_probs"]}
    return {
        **json.loads(MEASURED.read_text(encoding="utf-8")),
        "denominators": {name: round(float(np.abs(pi - of).mean()), 5) for name, of in denominators.items()},
        "lengths": np.random.default_rng(0).choice(dump.lengths, 24, replace=False).tolist(),
    }


def pictures() -> dict[str, str]:
    """Return the SVG files by name, drawn from what was measured."""
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))
    q = json.loads((IMAGES / "explainer.json").read_text(encoding="utf-8"))["q"][-1]
    return {
        "trust-region.svg": picture("PPO's interval and SAT's", 560, trust_region(q)),
        "lag.svg": picture("Lag and distance, step by step and by lag", 560, lag(rows)),
        "denominator.svg": picture("What the ratio is taken to", 400, denominator(rows["denominators"])),
        "routes.svg": picture("The way of R3's routes", 470, routes()),
        "streaming.svg": picture("Batches and a stream", 460, streaming(rows["lengths"])),
    }


def picture(title: str, height: int, parts: list[str]) -> str:
    """Return an SVG 480 wide, which reads on a telephone, too."""
    size = f'width="480" height="{height}" viewBox="0 0 480 {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><style>{STYLE}</style>'
    paper = f'<rect class="paper" width="480" height="{height}" rx="8"/>'
    return "\n".join([head, f"<title>{title}</title>", TIP, paper, *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}">{words}</text>'


def bar(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2"/>'


def line(kind: str, points: list[tuple[float, float]]) -> str:
    return f'<path class="{kind}" d="{path(points)}"/>'


def arrow(points: list[tuple[float, float]], kind: str = "thin dim") -> str:
    return f'<path class="{kind}" d="{path(points)}" marker-end="url(#tip)"/>'


def trust_region(q: float) -> list[str]:
    """Return a panel for either sign of the advantage over d: the ratio, PPO's end of the interval, SAT's, and below
    it what becomes of a token's gradient."""
    clip, reach, left, right = Clip(), 0.36, 24, 456
    d = torch.linspace(-reach, reach, 721, dtype=torch.float64)
    c_low, c_high = contraction_factors(d, torch.tensor(q, dtype=d.dtype))
    ratio = d.exp()

    def x(value: float) -> float:
        return left + (right - left) * (value + reach) / (2 * reach)

    parts = []
    sides = (
        ("A &gt; 0: the update raises the token", 0, 1 + clip.eps_high, 1 + clip.eps_high * c_high, 1),
        ("A &lt; 0: the update lowers it", 280, 1 - clip.eps_low, 1 - clip.eps_low * c_low, -1),
    )
    for title, top, ppo, sat, sign in sides:
        low, high = (0.96, 1.28) if sign > 0 else (0.72, 1.04)

        def y(value: float, top: int = top, low: float = low, high: float = high) -> float:
            return top + 45 + 145 * (high - value) / (high - low)

        by_ppo = (ratio - ppo) * sign > 0
        by_sat = ((ratio - sat) * sign > 0) & ~by_ppo
        newly, cut = (d[chosen].tolist() for chosen in (by_sat, by_ppo))
        shown = [(x(a), y(b)) for a, b in zip(d.tolist(), ratio.tolist(), strict=True) if low <= b <= high]
        edges = [x(-reach), *sorted([x(newly[0]), x(newly[-1])]), x(reach)]
        strip = [("old faint", edges[0], edges[1]), ("sat", edges[1], edges[2]), ("dim rule", edges[2], edges[3])]
        if sign < 0:
            strip = [
                ("dim rule", edges[0], edges[1]),
                ("sat", edges[1], edges[2]),
                ("old faint", edges[2], edges[3]),
            ]
        assert cut and (max(cut) if sign < 0 else min(cut)) * sign > 0
        gate = x(q * sign)
        parts += [
            text(left, top + 28, title, "bold"),
            line("line dim dash", [(left, y(ppo)), (right, y(ppo))]),
            line("line sat", [(x(a), y(b)) for a, b in zip(d.tolist(), sat.tolist(), strict=True)]),
            line("thin ink", shown),
            line("thin dim", [(gate, top + 50), (gate, top + 190)]),
            text(gate + (-8 if sign > 0 else 8), top + 182 if sign > 0 else top + 62, "q", "end" if sign > 0 else ""),
            *(bar(kind, start, top + 200, end - start, 26) for kind, start, end in strip),
        ]
        kept, lost = ((edges[0] + edges[1]) / 2, (edges[2] + edges[3]) / 2)[::sign]
        parts += [text(kept, top + 218, "keeps its gradient", "mid"), text(lost, top + 218, "PPO clips", "mid")]
        parts += [text((edges[1] + edges[2]) / 2, top + 245, "SAT clips, too", "mid")]
        if sign > 0:
            parts += [text(left, y(ppo) - 8, f"PPO: {ppo:g}", "dim"), text(x(0.245), y(1.26), "ratio", "")]
            parts += [text(right, y(1.035) - 8, "SAT", "end bold")]
        else:
            parts += [text(right, y(ppo) + 20, f"PPO: {ppo:g}", "dim end"), text(left, y(0.965) + 20, "SAT", "bold")]
    parts += [text(240, 272, "← less likely than when sampled · d · more likely →", "dim mid")]
    parts += [text(240, 548, f"ratio = exp(d);  q = {q:.3f} nats, of a real run at lag 8", "dim mid")]
    return parts


def lag(rows: dict[str, Any]) -> list[str]:
    """Return the sawtooth of the lag and d_pi over the steps of a run, and d_pi of runs by lag."""
    steps, left, right = len(rows["lag"]), 56, 460
    width = (right - left) / steps
    most = max(rows["d_pi"])
    parts = [text(16, 28, f"Each step: lag of its batch (pipeline.lag: {LAG})", "bold")]
    parts += [bar("old faint", left + i * width, 130 - 10 * of, width - 2, 10 * of) for i, of in enumerate(rows["lag"])]
    parts += [text(48, 60, f"{LAG}", "dim end"), text(48, 134, "0", "dim end")]
    parts += [text(16, 168, "… and d_pi, the mean |d| of its tokens", "bold")]
    points = [(left + (i + 0.5) * width, 270 - 85 * of / most) for i, of in enumerate(rows["d_pi"])]
    parts += [line("line new", points), line("thin dim", [(left, 270), (right, 270)])]
    parts += [text(48, 192, f"{most:.2f}", "dim end"), text(48, 274, "0", "dim end")]
    parts += [text(right, 292, f"{steps} optimizer steps of one run, GSPO", "dim end")]
    by_lag = rows["d_pi_by_lag"]
    most = max(by_lag)
    parts += [text(16, 330, "The longer the lag, the farther the data", "bold")]
    slot = (right - left) / len(LAGS)
    for i, (n, value) in enumerate(zip(LAGS, by_lag, strict=True)):
        height = 130 * value / most
        middle = left + (i + 0.5) * slot
        parts += [bar("new", middle - 15, 500 - height, 30, height), text(middle, 518, str(n), "mid")]
        parts += [text(middle, 494 - height, f"{value:.2f}", "mid dim")]
    parts += [text(right, 542, "pipeline.lag; mean d_pi, median of five seeds", "dim end")]
    return parts


def denominator(mean: dict[str, float]) -> list[str]:
    """Return the three policies that may stand below pi, on the line of the trainer's versions."""
    old, start, now = 60, 330, 420
    parts = [
        text(16, 28, "Whose log-probs stand below π in the ratio?", "bold"),
        text(16, 66, "engine", "dim"),
        bar("old", old - 30, 76, 130, 34),
        text(old + 35, 98, "μ: v0 sampled", "in"),
        text(16, 142, "trainer's weights", "dim"),
        arrow([(16, 172), (466, 172)]),
    ]
    for x, kind, name in ((old, "old", "v0"), (start, "new", "v7"), (now, "new", "v7+")):
        parts += [f'<circle class="{kind}" cx="{x}" cy="172" r="8"/>', text(x, 198, name, "mid")]
    parts += [text(old - 30, 220, "π_l", "bold"), text(start, 220, "step starts", "mid dim")]
    parts += [text(now + 10, 155, "π", "bold")]
    arrows = (
        ("rollout", old + 100, 252, f"engine and 7 updates: mean |d| {mean['rollout']:.3f}"),
        ("checkpoint", old, 302, f"the 7 updates alone: mean |d| {mean['checkpoint']:.3f}"),
        ("trainer", start, 352, "only this step: |d| 0 at its first update"),
    )
    for x, y in ((old + 100, 93), (old, 230), (start, 230), (now, 204)):
        end = {old: 302, start: 352, now: 352}.get(x, 252)
        parts += [line("thin dim dash", [(x, y), (x, end)])]
    for name, x, y, words in arrows:
        parts += [arrow([(now, y), (x, y)], "thin sat"), bar("paper", 14, y + 8, 380, 20)]
        parts += [text(16, y + 23, f'<tspan class="bold">{name}</tspan>: {words}')]
    return parts


def routes() -> list[str]:
    """Return the stations of R3's routes from the engine's router to the trainer's."""
    layers, top_k = 48, 8
    stations = (
        ("old", "Engine's router", f"picks {top_k} of 128 experts, in {layers} layers", ""),
        ("rule", "Reply", f"a byte a choice: {layers * top_k} bytes a token", "in slime: four bytes a choice"),
        ("rule", "Rollout process", "checks rows, range, no expert twice", "a faulty response is masked"),
        ("rule", "Ray's object store", "one copy on the node; a reference travels", ""),
        ("new", "Trainer's router", "takes these experts; weighs them itself", "checked: shifted by a token?"),
    )
    parts = [text(16, 28, "R3: train the experts that generated", "bold")]
    for i, (kind, name, words, more) in enumerate(stations):
        y = 46 + 84 * i
        parts += [bar(kind, 16, y, 8, 58), text(36, y + 18, name, "bold"), text(36, y + 37, words)]
        parts += [text(36, y + 56, more, "dim")] if more else []
        parts += [arrow([(20, y + 61), (20, y + 80)], "thin ink")] if i < len(stations) - 1 else []
    return parts


def streaming(lengths: list[int]) -> list[str]:
    """Return the engine's slots under both modes with the same responses, and when each trains."""
    slots, batch, left, right, train = 4, 8, 24, 460, 10

    def generated(barrier: bool) -> tuple[list[tuple[int, int, int]], list[int]]:
        free, placed, ready = [0] * slots, [], []
        for first in range(0, 3 * batch, batch):
            for length in lengths[first : first + batch]:
                slot = free.index(min(free))
                placed.append((slot, free[slot], length))
                free[slot] += length
            ready.append(max(start + length for _, start, length in placed))
            if barrier:
                free = [max(free)] * slots
        return placed, ready

    batches, stream = generated(True), generated(False)
    end = batches[1][-1] + train
    parts = []
    for top, title, (placed, ready) in (
        (0, "batch: slots wait for the longest response", batches),
        (215, "streaming: a slot is filled at once", stream),
    ):
        parts += [text(left, top + 28, title, "bold")]
        for number, (slot, start, length) in enumerate(placed):
            x, width = (left + (right - left) * of / end for of in (start, length))
            kind = ("old", "old faint", "sat faint")[number // batch]
            parts.append(bar(kind, x, top + 42 + 24 * slot, width - left - 1.5, 20))
        free = 0
        for number, at in enumerate(ready):
            free = max(free, at)
            x = left + (right - left) * free / end
            parts += [bar("new", x, top + 150, (right - left) * train / end - 2, 20)]
            parts += [text(x + 4, top + 166, str(number + 1), "")]
            free += train
        parts += [text(left, top + 166, "training", "dim")]
    parts += [text(left, 425, f"a colour each: the responses of three batches, {batch} each,", "dim")]
    parts += [text(left, 446, "with lengths of a real run; time in tokens", "dim")]
    return parts


if __name__ == "__main__":
    main()
