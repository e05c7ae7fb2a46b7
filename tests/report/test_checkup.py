"""Trackers and dumps of slime itself become one page, which says what is seen and what cannot be told."""

import html
import json
import re
from pathlib import Path

import pytest
import torch
from dump_files import format_2, rollout
from typer.testing import CliRunner

import sat_slime
from sat_slime.cli import app
from sat_slime.objective import tail_quantile
from sat_slime.report.checkup import read, write_checkup
from sat_slime.runs.folder import RunFolderError

TESTS = Path(__file__).parents[1]
TRACKERS = TESTS / "runs" / "recorded"
"""Of one run of slime 624b824a8, its own loss, as DUMP; the tests beside these say how they were made."""
DUMP = TESTS / "report" / "recorded" / "dump"
FLAGS = json.loads((Path(sat_slime.__file__).parent / "launch" / "slime_flags.json").read_text())["flags"]


def test_all_that_slime_left_of_a_run(tmp_path):
    told = write_checkup([TRACKERS / "events", DUMP], tmp_path / "out")
    assert told.answer[1] == (
        "Read: 3 optimizer steps of a tracker (1 to 3); 1 evaluation; 1 optimizer step in dumps, 221 tokens."
    )
    assert [table.name for table in told.tables] == ["dumped_steps"]
    assert any("only 3 steps are there" in line for line in told.sentences("unknown"))
    page = html.unescape(told.path.read_text())
    for text in (f"sat-slime replay {DUMP / 'train_data'}", "Not visible here", *told.sentences("unknown")):
        assert text in page
    assert (tmp_path / "out" / "tables" / "dumped_steps.csv").exists()
    assert list((tmp_path / "out" / "figures").glob("reward_1.*"))


def test_a_log_alone_says_which_flags_would_tell_more(tmp_path):
    told = write_checkup([TRACKERS / "job.log"], tmp_path / "out")
    text = " ".join(text for part in told.sections for text in (*part.sentences, part.text))
    for flag in ("--save-debug-train-data", "--dump-details", "--eval-interval", "--use-tis"):
        assert flag in text
    assert "--use-kl-loss" not in text  # the run has it


def test_dumps_alone_ask_for_a_tracker(tmp_path):
    told = write_checkup([DUMP / "train_data" / "2.pt"], tmp_path / "out")
    assert "no tracker was given" in told.sentences("unknown")[0]
    assert [table.name for table in told.tables] == ["dumped_steps"]


def test_every_flag_that_is_named_is_slimes():
    """In the whole of what a check-up may say; its own command has `--out`."""
    source = Path(sat_slime.__file__).parent / "report" / "checkup.py"
    text = re.sub(r'"\s*\n\s*f?"', "", source.read_text())
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+[a-z]", text))
    assert len(named) > 10 and named <= {*FLAGS, "--out"}


def test_kinds_are_told_apart_by_what_they_hold(tmp_path):
    (tmp_path / "torn.pt").write_bytes(b"PK")
    given = read([DUMP, tmp_path / "torn.pt", TRACKERS / "job.log"])
    assert given.training == [DUMP / "train_data" / "2.pt", tmp_path / "torn.pt"]
    assert len(given.data.metrics["step"]) == 3 and [one.path.name for one in given.skipped] == ["torn.pt"]
    with pytest.raises(RunFolderError, match=r"nothing could be read: .*torn.pt: it is not a complete torch file"):
        read([tmp_path / "torn.pt"])
    (tmp_path / "x.bin").write_bytes(b"?")
    with pytest.raises(RunFolderError, match=r"x.bin: it is a file of an unknown kind, .* dumps of training"):
        read([tmp_path / "x.bin"])


def test_numbers_of_a_dumped_step_are_those_of_its_tokens(tmp_path):
    columns = rollout([40, 60, 20, 80], spread=0.5)
    columns["advantages"][1][:] = columns["loss_masks"][2][:] = 0
    torch.save(format_2(columns, [([0, 1, 2, 3], [[4]])]), tmp_path / "0.pt")
    (step,) = read([tmp_path / "0.pt"]).steps.to_dict("records")
    for number in (9, 10):
        torch.save(format_2(columns, [([0, 1, 2, 3], [[4]])], number), tmp_path / f"{number}.pt")
    assert [*read([tmp_path / "10.pt", tmp_path / "9.pt"]).steps["dump"]] == ["rollout 9", "rollout 10"], "as of `*.pt`"
    active = torch.cat(columns["loss_masks"]).bool()
    d = (torch.cat(columns["log_probs"]) - torch.cat(columns["rollout_log_probs"])).double()[active]
    r = d.exp()
    assert (step["tokens"], step["responses"], step["no signal"]) == (int(active.sum()), 4, 1 - 2 / 3)
    expected = {
        **{"mean |d|": d.abs().mean(), "largest": d.abs().max(), "99 %": tail_quantile(d.abs(), 0.99)},
        "ESS": r.sum() ** 2 / (len(r) * (r * r).sum()),
    }
    assert {name: step[name] for name in expected} == pytest.approx({k: float(v) for k, v in expected.items()})


def test_a_report_of_one_runs_trackers_is_its_check_up(tmp_path):
    def page(*names):
        result = CliRunner().invoke(app, ["report", *(str(TRACKERS / name) for name in names), "--out", str(tmp_path)])
        assert result.stdout == f"{tmp_path / 'report.html'}\n"
        return (tmp_path / "report.html").read_text()

    assert "Read: 3 optimizer steps" in page("events") and (tmp_path / "figures" / "mismatch_1.csv").exists()
    assert "events · job.log" in page("events", "job.log")
