"""How pages draw the metrics of a run by optimizer step: the panels, and the lines in each."""

from __future__ import annotations

from typing import Any, NamedTuple

from sat_slime.objective.method import known
from sat_slime.objective.metrics import metric_named, metrics_of
from sat_slime.report.looks import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION


class Panel(NamedTuple):
    """A panel of a run's report: metrics by optimizer step on one axis, averaged over whole lag cycles."""

    title: str
    figure: str = "method"
    """The figure that the panel is in: one of report.run's."""
    y_label: str = ""
    """The text at the axis. Unset: the unit of the first metric."""
    raw: bool = False
    """True where the first metric is also drawn step by step, in a lighter tone."""
    zero: bool = True
    """True where the axis begins at 0 unless values lie below."""
    log: bool = False
    """True where the axis is logarithmic."""


class Line(NamedTuple):
    """A metric in its panel."""

    metric: str
    label: str = ""
    """Its name in the key. Unset: that of the metric."""
    colour: str = BLUE
    dash: Any = "-"
    """`-`, `--`, `:`, `-.`, or (0, lengths on and off in widths of the line); `area`: an area, stacked on those
    before."""


PANELS: tuple[tuple[Panel, tuple[Line, ...]], ...] = (
    (
        Panel("training reward", "reward", y_label="mean reward", raw=True, zero=False),
        (Line("reward/mean", "reward of the batch", BLUE),),
    ),
    (
        Panel("mean |log π − log μ| per token", "mismatch", raw=True),
        (
            Line("mismatch/d_pi", "d_pi", BLUE),
            Line("mismatch/policy", "policy part", GREEN, "--"),
            Line("mismatch/implementation", "implementation part", VERMILION, "-."),
        ),
    ),
    (
        Panel("quantiles of |log π − log μ|", "mismatch", log=True),
        (
            Line("mismatch/q50", "median", SKY, ":"),
            Line("mismatch/q90", "90 %", BLACK),
            Line("mismatch/q99", "99 %", ORANGE, "--"),
            Line("mismatch/max", "largest", VERMILION, (0, (6, 1))),
        ),
    ),
    (
        Panel("of the trained responses", "lag"),
        (
            Line("lag/mean", "mean", BLUE),
            Line("lag/min", "smallest", GREEN, ":"),
            Line("lag/max", "most", ORANGE, "--"),
        ),
    ),
    (
        Panel("total variation of μ and π", log=True),
        (
            Line("trpo/tv_mean"),
            Line("trpo/tv_max"),
            Line("trpo/tv_mean_before"),
            Line("trpo/tv_max_before"),
        ),
    ),
    (Panel("part of the optimizer's step that was made", y_label="%"), (Line("trpo/step_scale"),)),
    (Panel("halvings of the optimizer's step"), (Line("trpo/backtracks"),)),
    (
        Panel("tokens held at the end of their interval"),
        (
            Line("gmpo/held"),
            Line("cpgd/held"),
        ),
    ),
    (Panel("largest d² of an outward token that is kept"), (Line("m2po/largest"),)),
    (
        Panel("the radius that SAT comes to", "trust_region"),
        (
            Line("sat/radius_high", "above 1", BLUE),
            Line("sat/radius_low", "below 1", ORANGE, "--"),
        ),
    ),
    (
        Panel("share of the tokens", "trust_region", y_label="%"),
        (
            Line("sat/gate_rate", "gate open", SKY),
            Line("sat/newly_clipped", "newly clipped (gradient changed by SAT)", VERMILION, "--"),
        ),
    ),
    (Panel("tokens whose weight is at its cap"), (Line("tis/capped"),)),
    (
        Panel("clipped tokens", "optimization"),
        (
            Line("clip/fraction", "all", BLACK),
            Line("clip/upper", "upper (advantage > 0)", BLUE, "--"),
            Line("clip/lower", "lower (advantage < 0)", ORANGE, "-."),
        ),
    ),
    (
        Panel("radii of the clip interval", "trust_region"),
        (
            Line("radius/low", "lower", ORANGE, "--"),
            Line("radius/high", "upper", BLUE),
        ),
    ),
    (Panel("norm of the gradient before clipping", "optimization", raw=True), (Line("grad_norm", "norm", BLUE),)),
    (
        Panel("loss terms", "optimization", zero=False),
        (
            Line("loss/total", "total", PURPLE),
            Line("loss/policy", "policy part", GREEN, "--"),
        ),
    ),
    (Panel("KL to the reference model, unweighted", "optimization"), (Line("loss/kl", "KL", VERMILION),)),
    (Panel("entropy of the policy", "optimization"), (Line("loss/entropy", "entropy", GREEN),)),
    (
        Panel("seconds per iteration, parts stacked", "time", y_label="s"),
        (
            Line("time/train", "train", BLUE, "area"),
            Line("time/sync", "send weights", ORANGE, "area"),
            Line("time/wait", "wait for responses", GREY, "area"),
            Line("time/step", "whole iteration", BLACK),
            Line("time/rollout", "generation (in parallel)", VERMILION, "--"),
        ),
    ),
)
"""The panels that are not of one kind of stabilizer, and their lines, in the order of a page."""


def panels_of(figure: str) -> list[tuple[Panel, tuple[Line, ...]]]:
    """The panels of a figure; figure `method` begins with what gates drop and weights are."""
    panels = [(panel, lines) for panel, lines in PANELS if panel.figure == figure]
    if figure != "method":
        return panels
    names = [name for kind in known() for metric in metrics_of(kind) for name in metric.names]
    masked, weights = (tuple(Line(name) for name in names if name.endswith(end)) for end in ("/masked", "/weight"))
    return [(Panel("dropped tokens"), masked), (Panel("mean weight", zero=False), weights), *panels]


def axis_of(name: str) -> tuple[str, float]:
    """How a figure shows a metric: the unit, and the factor of its values. Shares are percent of the tokens."""
    metric = metric_named(name)
    assert metric is not None, f"{name} is in the table"
    return ("% of tokens", 100.0) if metric.unit == "share" else (metric.unit, 1.0)
