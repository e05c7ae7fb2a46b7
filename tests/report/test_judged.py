from sat_slime.objective import method_names, named_method
from sat_slime.report.replay import BATCH, JUDGED_BY, RESPONSE, STATE, TOKEN_PROBABILITY, judged_by

ELSEWHERE = {
    TOKEN_PROBABILITY: {"dppo", "dppo-kl", "drpo", "kpop", "ipo"},
    RESPONSE: {"gspo", "gspo-r3", "gspo-tis", "gspo-tis-r3", "gspo-topp", "seqclip", "gmpo", "flash", "vespo",
               "grpo-seq-tis", "grpo-seq-mask-tis", "grpo-mis-geo", "grpo-opsm", "grpo-trm-max", "grpo-trm-mean",
               "grpo-veto"},
    STATE: {"trpo"},
    BATCH: {"sat-grpo", "sat-gspo", "sat-grpo-r3", "sat-gspo-r3", "m2po", "grpo-bapo"},
}  # fmt: skip
"""By the formulas of the notes and the paper; every other method judges each token by its ratio."""


def test_every_method_stands_with_those_that_judge_alike():
    found = {group: {name for name in method_names() if judged_by(named_method(name)) == group} for group in JUDGED_BY}
    assert {group: found[group] for group in ELSEWHERE} == ELSEWHERE


def test_what_takes_most_together_tells_the_group():
    assert judged_by(named_method("dppo-opsm")) == RESPONSE
    assert judged_by(named_method("gspo-decoupled-r3")) == RESPONSE
    assert judged_by(named_method("sat-grpo-mis-geo")) == BATCH
