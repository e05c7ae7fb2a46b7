"""A diagnosis against loops over tokens, in float64; the page, its files, and what it says."""

from __future__ import annotations

import math
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from made_up_dumps import PARTS, Columns, made_up, write_dumps, write_step
from synthetic import write_run
from typer.testing import CliRunner

from sat_slime.cli import app
from sat_slime.report.diagnosis import Tokens, attribute, load_tokens, quantile, tail_bounds, write_diagnosis
from sat_slime.report.dumps import files_in
from sat_slime.runs.folder import RunFolderError


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[list[Columns], Tokens]:
    folder = tmp_path_factory.mktemp("run")
    return write_dumps(folder), tokens_of(folder)


def tokens_of(run) -> Tokens | None:
    return load_tokens(files_in(run / "dumps"))


def active(dumps: list[Columns], name: str) -> list[float]:
    return [float(v) for dump in dumps for v in dump[name][dump["loss_masks"] == 1]]


@pytest.mark.parametrize("replayed", [False, True], ids=["free routing", "r3"])
def test_tokens_are_the_active_ones_and_parts_sum_to_d_exactly(tmp_path, replayed):
    dumps = write_dumps(tmp_path, replayed=replayed)
    tokens = tokens_of(tmp_path)
    of_the_checkpoint = (f"checkpoint_log_probs_{name}" for name in ("own_routing", "replayed", "engine_dtype"))
    names = ("log_probs_own_routing", "log_probs_replayed", *of_the_checkpoint)
    a_own, a_engine, b_own, b_engine, in_engine_dtype = (np.array(active(dumps, name)) for name in names)
    pi, mu = np.array(active(dumps, "log_probs")), np.array(active(dumps, "rollout_log_probs"))
    by_hand = {
        "policy_weights": a_engine - b_engine,
        "policy_routes": 0 * pi if replayed else (a_own - b_own) - (a_engine - b_engine),
        "routing": 0 * pi if replayed else b_own - b_engine,
        "precision": b_engine - in_engine_dtype,
        "rest": in_engine_dtype - mu,
    }
    assert list(tokens.parts) == list(by_hand) and tokens.replayed is replayed
    for name, part in tokens.parts.items():
        assert part.dtype == np.float64 and part.tolist() == by_hand[name].tolist(), name
    assert (tokens.d == pi - mu).all() and (tokens.parts.sum(axis=1) == tokens.d).all()
    assert set(tokens.frame["lag"]) == {1, 2, 3, 4} and tokens.steps == len(dumps)


@pytest.mark.parametrize("alpha", [None, 0.9, 0.99])
def test_shares_are_those_by_hand_and_sum_to_one(whole, alpha):
    _, tokens = whole
    beyond = None if alpha is None else quantile(np.abs(tokens.d), alpha)
    inside = tokens.frame["lag"] > 1
    found = attribute(tokens.parts[inside], beyond)
    rows = [i for i in np.flatnonzero(inside) if beyond is None or abs(tokens.d[i]) > beyond]
    total = sum(abs(tokens.d[i]) for i in rows)
    for name, part in tokens.parts.items():
        assert found["size"][name] == pytest.approx(sum(abs(part[i]) for i in rows) / len(rows))
        share = sum(math.copysign(1, tokens.d[i]) * part[i] for i in rows if tokens.d[i]) / total
        assert found["share"][name] == pytest.approx(share, abs=1e-12)
        decided = math.nan if beyond is None else sum(abs(tokens.d[i] - part[i]) <= beyond for i in rows) / len(rows)
        assert found["decides"][name] == pytest.approx(decided, nan_ok=True)
    assert found["share"].sum() == pytest.approx(1)


def test_the_tail_begins_at_the_papers_quantile():
    d = np.array([0.1, -0.5, 0.2, 0.4, -0.3, 0.6, 0.7, 0.8, 0.9, 1.0])
    assert tail_bounds(d) == {"q90": 0.9, "q99": 1.0}


def test_what_is_broken_in_a_dump_is_named_and_makes_no_share_nan(tmp_path):
    write_dumps(tmp_path, range(5, 12, 3))
    intact = tokens_of(tmp_path)
    _, one = made_up(8)
    one["checkpoint_log_probs"][np.flatnonzero(one["loss_masks"])[3]] = np.nan
    write_step(tmp_path, 8, **one)
    shutil.copy(tmp_path / "dumps" / "11.pt", tmp_path / "dumps" / "12.pt")
    write_step(tmp_path, 14, loss_masks=0 * made_up(14)[1]["loss_masks"])
    tokens = tokens_of(tmp_path)
    assert len(tokens.d) == len(intact.d) - 1 and tokens.steps == 3
    assert np.isfinite(attribute(tokens.parts)["share"]).all()
    nan, again, empty = tokens.damaged
    assert re.search(r"8\.pt: rollout 7: checkpoint_log_probs is nan at response \d+", nan)
    assert "12.pt: it is rollout 10 again, which 11.pt holds" in again
    assert "14.pt: rollout 13 has no active token" in empty


def test_only_the_dumps_that_tell_most_are_taken(tmp_path):
    write_dumps(tmp_path, range(5, 12, 3))
    write_step(tmp_path, 6, without=("own_routing", "replayed", "engine_dtype"))
    write_step(tmp_path, 7, without=("own_routing", "replayed", "engine_dtype", "checkpoint_log_probs"))
    torn, *split = (tmp_path / "dumps" / f"{iteration}.pt" for iteration in (9, 6, 7))
    torn.write_bytes(b"torn")
    tokens = tokens_of(tmp_path)
    assert (tokens.steps, list(tokens.parts)) == (3, list(PARTS))
    assert len(tokens.damaged) == 1 and str(torn) in tokens.damaged[0]

    only_split = load_tokens(split)
    assert list(only_split.parts) == ["policy", "implementation"] and only_split.steps == 1
    assert load_tokens([split[1], torn]) is None


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", 40, lag=4)


def command(run):
    return CliRunner().invoke(app, ["diagnose", str(run)], env={"COLUMNS": "140"})


def test_a_diagnosed_run_is_told_in_the_terminal_and_on_a_page_with_its_files(run):
    write_dumps(run)
    result = command(run)
    assert result.exit_code == 0, result.output
    page = run / "diagnosis" / "index.html"
    for part in ("What the mismatch is made of", "policy: weights", f"page: {page}"):
        assert part in result.stdout
    text = page.read_text()
    places = [text.index(part) for part in ('class="answer"', "would take mean |d| from", 'id="shares"', 'id="parts"')]
    assert places == sorted(places)
    shares = pd.read_csv(page.parent / "figures" / "shares.csv")
    assert shares.groupby("group")["share of |d|, %"].sum().tolist() == pytest.approx([100] * 3)
    assert {path.stem for path in (page.parent / "tables").glob("*.csv")} == {"parts", "lag"}

    rows = pd.read_csv(page.parent / "tables" / "parts.csv", index_col="part")
    tokens = tokens_of(run)
    levels = (None, *tail_bounds(tokens.d).values())
    size, *of = rows.loc["routing"]
    found = [attribute(tokens.parts, beyond=beyond).loc["routing"] for beyond in levels]
    assert size == pytest.approx(found[0]["size"])
    assert of == pytest.approx([one["share"] for one in found] + [one["decides"] for one in found[1:]])
    both = rows.loc[["policy part", "implementation part"], rows.columns[1:4]]
    assert both.sum().tolist() == pytest.approx([1] * 3)


def test_under_r3_routing_has_no_part(run):
    write_dumps(run, replayed=True)
    found = write_diagnosis(run)
    rows = {cells[0]: cells[1:] for _, cells in found.tables[0].rows()}
    for label in ("policy: routes", "routing"):
        assert rows[label][0] == "0.00000" and rows[label][1].startswith("0.0")
    assert any("Routing replay (R3) takes mean |d| from" in sentence for sentence in found.answer)


@pytest.mark.parametrize(
    "without",
    [("own_routing", "replayed"), ("own_routing", "replayed", "engine_dtype")],
    ids=["a dense run", "a run that was only split"],
)
def test_dumps_that_hold_less_tell_fewer_parts(run, without):
    write_dumps(run, without=without)
    found = write_diagnosis(run)
    assert [table.name for table in found.tables] == ["parts", "lag"]
    assert not any("outing" in sentence for sentence in found.answer)


def test_what_should_make_a_reader_doubt_is_said(run):
    write_dumps(run, range(5, 15, 4))  # a multiple of the lag between them
    (run / "dumps" / "6.pt").write_bytes(b"torn")
    warnings = write_diagnosis(run).warnings
    assert any("dumps/6.pt: it is not a complete" in text for text in warnings)
    assert any("Only the lags 1 were diagnosed, and pipeline.lag is 4" in text for text in warnings)
    assert any("tokens lie beyond the 99 % quantile" in text for text in warnings)


def test_a_run_without_any_measurement_is_refused_with_the_remedy(run, tmp_path):
    result = command(run)
    assert result.exit_code == 2 and "--set diagnose.every_n_steps=5" in result.stderr
    assert f"sat-slime report {run}" in result.stderr
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("runtime: lab", "runtime: slime"))
    with pytest.raises(RunFolderError, match=r"diagnose .*metrics\.jsonl; with --set method.denominator=checkpoint"):
        write_diagnosis(run)
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(RunFolderError, match="no optimizer step yet"):
        write_diagnosis(run)
    assert command(tmp_path / "nowhere").exit_code == 2
