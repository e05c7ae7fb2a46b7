from sat_slime.report.comparison.grid_report import limits, summary
from sat_slime.report.comparison.paper_contrasts import paper_contrasts


def test_summary_and_limits_say_what_is_missing(comparison):
    words = " ".join([*summary(comparison, paper_contrasts(comparison)), *limits(comparison)])
    for part in (
        "1 not whole, 3 planned and not run",
        "The collapse rule marks 1 of 39 runs with enough scores to tell: GSPO lag 8 seed 1.",
        "Qwen3-MoE of 2 layers",
        "All seeds start from one and the same initial model",
        "Not counted: GRPO w/ TIS lag 8 seed 2, failed after 90 steps",
        "GRPO w/ R3 at lag 1",
        "within noise is not the same as equal",
    ):
        assert part in words
