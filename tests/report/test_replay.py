"""Which methods are replayed, on which dumps, and what the page says."""

import numpy as np
import pandas as pd
import pytest
import torch
from dump_files import format_2, rank_file, rollout, step_batch, write_run_dump

from sat_slime.config import ConfigError
from sat_slime.objective import (
    PAPER_METHODS,
    SAT,
    Clip,
    TokenBatch,
    method_names,
    mismatch_metrics,
    named_method,
    policy_surrogate,
)
from sat_slime.objective.tokens import response_mean_weights
from sat_slime.report.dumps import find_dumps, steps
from sat_slime.report.gradient import cosines, effective, span_sums, step_thresholds
from sat_slime.report.replay import ASYNCHRONOUS, answerable, choose, methods_table, replay, summary, write_replay
from sat_slime.runs.folder import RunFolderError

LENGTHS = [6, 11, 3, 20, 9, 14, 8, 5]


def slime_file(path, rollout_id, seed=0):
    torch.save(format_2(rollout(LENGTHS, seed), [(list(range(8)), [[4, 4]])], rollout_id), path)


def test_sums_are_those_of_the_equations_by_brute_force():
    candidates = choose("grpo,sat-gspo,dppo,grpo-tis")
    step = step_batch(LENGTHS, seed=4)
    step.advantages[: LENGTHS[0]] = 0  # a response of a prompt whose rewards are all alike
    methods = [candidate.method for candidate in candidates]
    sums, products = span_sums(methods, step_thresholds(methods, step), step)
    w = response_mean_weights(step.mask, step.lengths, 1)
    gradients = []
    for m, candidate in enumerate(candidates):
        log_probs = step.log_probs.clone().requires_grad_()
        batch = TokenBatch(log_probs, step.rollout_log_probs, step.advantages, step.mask, step.lengths)
        surrogate = policy_surrogate(candidate.method, batch)
        surrogate.values.sum().backward()
        gradients.append((w * log_probs.grad).double())
        counted = step.mask & (step.advantages != 0)
        v = (log_probs.grad / step.advantages)[counted].double()
        row = sums.loc[m]
        assert row["tokens"] == int(counted.sum())
        assert effective(sums)[m] == pytest.approx(float(v.abs().sum() ** 2 / (len(v) * (v**2).sum())))
        assert row["largest |v|"] == pytest.approx(float(v.abs().max()))
        assert row.filter(like="clipped").sum() == int(surrogate.clipped.sum())
        assert row["sum |v|"] == pytest.approx(float(v.abs().sum()), rel=1e-5)
        for sign, of in (("A > 0", step.advantages > 0), ("A < 0", step.advantages < 0)):
            assert row.filter(like=sign).sum() == int((counted & of).sum())
    masked = policy_surrogate(named_method("dppo"), batch).metrics["dppo/masked"] * step.mask.sum()
    assert 0 < sums.loc[2].filter(like="masked").sum() <= masked
    unclipped = (w * (step.log_probs - step.rollout_log_probs).exp() * step.advantages * step.mask).double()
    rows = torch.stack([*gradients, unclipped])
    expected = torch.nn.functional.cosine_similarity(rows[:, None], rows[None], dim=-1).numpy()
    np.testing.assert_allclose(cosines(products), expected, atol=1e-6)


def test_spans_and_threads_change_nothing(tmp_path, monkeypatch):
    for number in range(3):
        slime_file(tmp_path / f"{number}.pt", number, seed=number)
    candidates = choose("all")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(1))
    one = replay([tmp_path], candidates)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(3))
    monkeypatch.setattr("sat_slime.report.replay.SPAN_TOKENS", 20)
    many = replay([tmp_path], candidates)
    assert [row.name for row in one.rows] == ["rollout 0", "rollout 1", "rollout 2"]
    pd.testing.assert_frame_equal(one.total, many.total, rtol=1e-7)
    np.testing.assert_allclose(one.cosines(), many.cosines())


def test_folders_are_read_by_number_and_ranks_together(tmp_path):
    for number in (10, 9, 1):
        slime_file(tmp_path / f"{number}.pt", number)
    assert [dump.paths[0].name for dump in find_dumps([tmp_path])[0]] == ["1.pt", "9.pt", "10.pt"]
    ranks = tmp_path / "details" / "train_data"
    ranks.mkdir(parents=True)
    columns = rollout(LENGTHS)
    for rank, which in enumerate(([0, 1, 2, 3], [4, 5, 6, 7])):
        for number in (2, 11):
            torch.save(rank_file(columns, which, [[4]], rank, number), ranks / f"{number}_{rank}.pt")
    dumps, _ = find_dumps([tmp_path / "details"])
    assert [[path.name for path in dump.paths] for dump in dumps] == [["2_0.pt", "2_1.pt"], ["11_0.pt", "11_1.pt"]]
    assert [len(step.lengths) for step in steps(dumps, [])] == [8, 8]


def test_a_damaged_file_is_named_and_the_others_are_replayed(tmp_path):
    slime_file(tmp_path / "0.pt", 0)
    slime_file(tmp_path / "2.pt", 2)
    (tmp_path / "1.pt").write_bytes(b"no dump")
    slime_file(tmp_path / "3.pt", 3)
    late = tmp_path / "3.pt"
    late.write_bytes(late.read_bytes()[:-2000])
    broken = write_run_dump(tmp_path, LENGTHS)
    broken.write_bytes(broken.read_bytes()[:-40])
    result = replay([tmp_path / f"{n}.pt" for n in range(4)] + [broken], choose("gspo"))
    assert [row.name for row in result.rows] == ["rollout 0", "rollout 2"]
    assert [one.path.name for one in result.skipped] == ["1.pt", "3.pt", "1.pt"]
    assert all("not a complete torch file" in one.reason for one in result.skipped)
    assert all(str(tmp_path) not in one.reason.split("(")[0] for one in result.skipped)


def test_one_broken_token_a_step_twice_and_a_dump_without_tokens_are_told(tmp_path):
    columns = rollout(LENGTHS, inactive=0)
    columns["rollout_log_probs"][2][1] = float("-inf")
    for number, name in ((0, "0.pt"), (0, "0 copied.pt"), (1, "1.pt")):
        if number == 1:
            columns["loss_masks"] = [torch.zeros_like(mask) for mask in columns["loss_masks"]]
        ranks = [(list(range(len(LENGTHS))), [[len(LENGTHS)]])]
        torch.save(format_2(columns, ranks, number), tmp_path / name)
    result = replay([tmp_path / name for name in ("0.pt", "0 copied.pt", "1.pt")], choose("gspo,sat-gspo"))
    assert [row.tokens for row in result.rows] == [sum(LENGTHS) - 1]
    assert [(one.path.name, one.reason) for one in result.skipped] == [
        ("0.pt", "rollout 0: rollout_log_probs is -inf at response 2, position 1: left out (from 0)"),
        ("0 copied.pt", "it is rollout 0 again, which 0.pt holds"),
        ("1.pt", "rollout 1 has no active token"),
    ]


def test_what_holds_no_dump_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="is not there"):
        find_dumps([tmp_path / "nothing"])
    with pytest.raises(RunFolderError, match="holds no dump"):
        find_dumps([tmp_path])
    (tmp_path / "1.pt").write_bytes(b"")
    with pytest.raises(RunFolderError, match="nothing to replay"):
        replay([tmp_path / "1.pt"], choose("a3po"))


def ones(n):
    return -np.ones(n, dtype=np.float32)


def test_pi_l_confines_the_replay_to_the_dumps_that_hold_it_unless_nobody_named_its_methods(tmp_path):
    run = tmp_path / "run"
    write_run_dump(run, LENGTHS, iteration=1)
    write_run_dump(run, LENGTHS, iteration=2, checkpoint_log_probs=ones)
    result = replay([run], choose("gspo,grpo", ["denominator=[rollout,checkpoint]"]))
    assert result.passed_over == 1 and [row.name for row in result.rows] == ["rollout 1"]
    with pytest.raises(RunFolderError, match="none of the methods can be replayed"):
        replay([run / "dumps" / "1.pt"], choose("gspo", ["denominator=checkpoint"]))
    result = replay([run], choose("all"), every_dump=True)
    assert (len(result.rows), result.passed_over) == (2, 0)
    for candidates, every_dump in (
        (choose("grpo,sat-grpo-tis"), False),
        (choose("gspo", ["denominator=checkpoint"]), True),
    ):
        result = replay([run], candidates, every_dump=every_dump)
        assert (len(result.rows), result.passed_over, result.left_out) == (1, 1, {})


def test_a_step_without_pi_l_beside_one_that_has_it_is_told(tmp_path):
    columns = rollout(LENGTHS) | {"checkpoint_log_probs": rollout(LENGTHS)["log_probs"]}
    payload = {"routing_replay": False} | format_2(columns, [(list(range(8)), [[4], [4]])], 5)
    for sample in payload["samples"][4:]:
        del sample["checkpoint_log_probs"]
    torch.save(payload, tmp_path / "5.pt")
    result = replay([tmp_path], choose("gspo", ["denominator=checkpoint"]))
    assert [row.name for row in result.rows] == ["rollout 5, step 1"]
    (told,) = result.skipped
    assert told.reason.startswith("rollout 5, step 2 does not hold checkpoint_log_probs, which one of the methods")


def test_a_setting_that_some_methods_refuse_leaves_those_out_unless_they_were_named():
    refused = [one for one in choose("usual", ["denominator=checkpoint"]) if one.refused]
    assert {one.label.split()[0] for one in refused} == {"m2po"}
    kept, left_out = answerable(refused, frozenset(["checkpoint_log_probs"]))
    assert not kept and all("is defined over denominator rollout" in reason for reason in left_out)
    with pytest.raises(ConfigError, match=r"^m2po denominator=checkpoint: M2PO is defined.*or leave m2po out of"):
        choose("grpo,m2po", ["denominator=checkpoint"])
    with pytest.raises(ConfigError, match="usual stands alone"):
        choose("usual,topr")


def test_a_dump_of_a_run_answers_for_every_method_but_those_of_another_forward_pass(tmp_path):
    path = write_run_dump(tmp_path, LENGTHS, iteration=4)
    (step,) = steps(*find_dumps([path]))
    assert step.more["lags"].tolist() == [3.0] * sum(LENGTHS)
    result = replay([path], choose("all"))
    d_pi = mismatch_metrics(step.log_probs, step.rollout_log_probs, step.mask)["mismatch/d_pi"]
    assert [(row.lag, row.d_pi) for row in result.rows] == [(3, d_pi)]
    left_out = {name for names in result.left_out.values() for name in names}
    assert left_out == {"grpo-estr", "grpo-topp", "gspo-topp"}
    weight = result.total["sum |v|"]
    assert np.isfinite(weight).all() and (weight > 0).all()


@pytest.mark.parametrize(("spread", "signal", "told"), [(0.5, 1, True), (0.001, 1, False), (0.5, 0, False)])
def test_nearest_and_farthest_are_told_where_they_differ(tmp_path, spread, signal, told):
    columns = rollout([8, 12], spread=spread)
    columns["advantages"] = [signal * advantages for advantages in columns["advantages"]]
    torch.save(format_2(columns, [([0, 1], [[2]])]), tmp_path / "0.pt")
    said = " ".join(summary(replay([tmp_path], choose("gspo,sapo", []))))
    assert ("Nearest" in said) == told and said.startswith("No token has an advantage here.") == (not signal)


def test_the_page_holds_the_answer_and_the_numbers(tmp_path):
    write_run_dump(tmp_path / "run", LENGTHS * 4)
    result = replay([tmp_path / "run"], choose("gspo,sat-gspo,dppo", []))
    text = write_replay(result, tmp_path / "out", ["sat-slime", "replay", "<dump>"]).path.read_text()
    places = [text.index(part) for part in ('class="answer"', 'id="fates"', 'id="methods"')]
    assert places == sorted(places) and "&lt;dump&gt;" in text and "dppo" in text
    cosine = result.cosines()[result.labels.index("sat-gspo"), result.labels.index("gspo")]
    assert cosine < 0.999 and f"sat-gspo differs from gspo: cosine {cosine:.4f}" in text
    rows = methods_table(result).frame.set_index("method")
    for m, candidate in enumerate(result.candidates):
        assert rows.loc[candidate.label, "clipped, A > 0, above"] == result.total.loc[m, "clipped, A > 0, above"]
        share = np.mean([effective(row.sums)[m] for row in result.rows])
        assert rows.loc[candidate.label, "effective share"] == pytest.approx(share)


@pytest.mark.parametrize(
    ("names", "meant"),
    [("all", method_names()), ("usual", {*(method.name for method in PAPER_METHODS), *ASYNCHRONOUS})],
)
def test_a_word_for_several_methods_has_each_formula_once(names, meant):
    same = {one.label: [one.label, *one.same] for one in choose(names)}
    assert sorted(label for labels in same.values() for label in labels) == sorted(meant)
    assert "grpo-r3" in same["grpo"] and "sat-gspo-r3" in same["sat-gspo"]


def test_settings_reach_the_methods_that_read_them_and_lists_are_swept():
    candidates = choose("gspo, sat-gspo", ["sat.alpha=[0.8,0.95]", "method.clip.eps_high=0.3"])
    assert [one.label for one in candidates] == [
        "gspo clip.eps_high=0.3",
        "sat-gspo sat.alpha=0.8 clip.eps_high=0.3",
        "sat-gspo sat.alpha=0.95 clip.eps_high=0.3",
    ]
    assert [(one.method.sat, one.method.clip) for one in candidates[1:]] == [
        (SAT(alpha=0.8), Clip(eps_high=0.3)),
        (SAT(alpha=0.95), Clip(eps_high=0.3)),
    ]


@pytest.mark.parametrize(
    ("names", "settings", "said"),
    [
        ("gspo,sat-gsop", [], "did you mean 'sat-gspo'"),
        (" , ", [], "--methods names none"),
        ("gspo", ["sat.alpha=0.8"], "changes none of the methods gspo"),
        ("gspo", ["sat.alpah=0.8"], "did you mean 'sat.alpha'"),
        ("sat-gspo", ["sat.alpha=2"], "sat.alpha is 2"),
        ("sat-gspo", ["sat.alpha"], "expected key=value"),
        ("sat-gspo", ["sat.alpha=[0.8"], r"^--set sat.alpha=\[0.8: the value '\[0.8' is not valid YAML; quote it"),
        ("sat-gspo", ["denominator=trainer"], "the ratio is identically 1"),
    ],
)
def test_bad_choices_are_told(names, settings, said):
    with pytest.raises(ConfigError, match=said) as caught:
        choose(names, settings)
    parts = [part.split(" ")[0] for part in str(caught.value).split(": ")]
    assert len(parts) == len(set(parts)), "what it is about is said once"


@pytest.mark.parametrize(
    ("name", "column", "said"),
    [
        ("decoupled-a3po", "lags", "versions of the generating weights"),
        ("gspo", "checkpoint_log_probs", "divides by pi_l"),
    ],
)
def test_a_column_that_a_method_reads_is_asked_for_by_name(name, column, said):
    candidates = choose(name, ["denominator=checkpoint"] if name == "gspo" else [])
    kept, left_out = answerable(candidates, frozenset({"checkpoint_log_probs", "lags"}) - {column})
    ((reason, names),) = left_out.items()
    assert not kept and names == [candidates[0].label] and said in reason
    assert answerable(candidates, frozenset({column})) == (candidates, {})
