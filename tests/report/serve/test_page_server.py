"""The page of all runs: what it lists, what it serves and to whom, and that it writes nothing into a run."""

import http.client
import json
import os
import threading
from urllib.parse import quote

import pytest
from made_up_study import write_grid
from synthetic import write_cell

from sat_slime.grid.entries import entries
from sat_slime.report.serve.page_server import HOST, Server
from sat_slime.runs.folder import RunFolder


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A grid of two runs, one without, a run of its own with a report, one below other folders, and what is none."""
    root = tmp_path_factory.mktemp("served") / "work"
    write_grid(root / "grids", "small", ("gspo", "sat-gspo"), (8,), seeds=(0,), planned=(0, 1))
    write_cell(root / "runs/one", "sat-gspo-r3", 8, 3, steps=50, state="interrupted")
    (root / "runs/one/report.html").write_text("<p>a report</p>")
    write_cell(root / "runs/old/two", "gspo", 1, 0, state="finished")
    write_grid(root / "kept", "result", ("gspo",), (8,), seeds=())  # of which the runs are elsewhere
    (root / "notes").mkdir()
    (root / "notes/secret.txt").write_text("secret")
    (root.parent / "outside.html").write_text("outside")
    (root / "runs/link.html").symlink_to(root.parent / "outside.html")
    return root


@pytest.fixture(scope="module")
def server(root):
    with Server(root, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def get(server, path, host=None, method="GET"):
    connection = http.client.HTTPConnection(HOST, server.server_address[1])
    connection.request(method, path, headers={"Host": host or f"localhost:{server.server_address[1]}"})
    answer = connection.getresponse()
    body = answer.read().decode(errors="replace")
    connection.close()
    return answer, body


def test_every_run_and_grid_is_listed_once(root):
    found = {entry.path: entry for entry in entries(root)}
    assert set(found) == {"grids/small", "runs/one", "runs/old/two"}
    grid, one = found["grids/small"], found["runs/one"]
    assert (grid.kind, grid.status, len(grid.runs)) == ("grid", "not running", 2)
    assert (one.method, one.lag, one.seed, one.step, one.steps) == ("SAT-GSPO w/ R3", 8, 3, 50, 200)
    assert one.report and not found["runs/old/two"].report and one.reward is not None and one.accuracy is not None


def test_the_list_follows_a_run(server, root):
    def step():
        answer, body = get(server, "/entries")
        assert answer.status == 200 and answer.headers["Content-Type"] == "application/json"
        return next(entry["step"] for entry in json.loads(body) if entry["path"] == "runs/one")

    assert step() == 50
    with RunFolder(root / "runs/one").metrics.open("a") as file:
        file.write(json.dumps({"step": 51, "reward/mean": None}) + "\n")
    assert step() == 51
    os.utime(root / "runs/one/report.html")  # written again


def test_the_report_of_before_a_resume_is_never_shown(tmp_path):
    run = RunFolder(write_cell(tmp_path / "runs/one", "sat-gspo", 8, 0, steps=20, state="interrupted"))
    run.report.write_text("<p>of before</p>")
    os.utime(run.report, (0, 0))
    with Server(tmp_path, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert not json.loads(get(server, "/entries")[1])[0]["report"]
        answer, _ = get(server, "/files/runs/one/report.html")
        assert answer.status == 303
        page = get(server, answer.headers["Location"])[1]
        assert "20 of 200 optimizer steps" in page and 'http-equiv="refresh"' not in page
        run.lock()
        run.started()
        page = get(server, get(server, "/report?run=runs/one")[0].headers["Location"])[1]
        assert 'http-equiv="refresh" content="30; url=/report?run=runs/one"' in page
        run.unlock()
        server.shutdown()
    assert run.report.read_text() == "<p>of before</p>", "a run that is served is not written to"


def test_samples_and_differences_of_runs(server, root):
    samples = root / "runs/one/samples"
    samples.mkdir()
    row = {"prompt": "<b>12 =", "response": "03$", "reward": 1.0, "weight_version": 8}
    for iteration in (16, 32):
        parts = {"weight_versions": [[8, 2], [9, 1]]} if iteration == 32 else {}
        (samples / f"{iteration}.jsonl").write_text(json.dumps(row | parts) + "\n")
    newest = get(server, get(server, "/samples?run=runs/one")[0].headers["Location"])[1]
    assert "Iteration 32" in newest and "&lt;b&gt;12 =" in newest and "iteration=16" in newest
    assert "8 (lag 23) for 2 tokens, 9 (lag 22) for 1 tokens" in newest
    older = get(server, get(server, "/samples?run=runs/one&iteration=16")[0].headers["Location"])[1]
    assert "Iteration 16" in older and "8 (lag 7)" in older
    assert get(server, "/samples?run=runs/old/two")[0].status == 404
    told = json.loads(get(server, "/differences?run=runs/one&run=runs/old/two")[1])
    assert told["pipeline.lag"] == {"runs/one": "8", "runs/old/two": "1"} and "model.layers" not in told
    assert get(server, "/differences?run=../outside.html")[0].status == 404


def test_the_page_has_a_policy_and_nothing_from_elsewhere(server):
    answer, body = get(server, "/")
    assert answer.status == 200 and "<h1>Runs</h1>" in body and "http" not in body.replace("http-equiv", "")
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert get(server, "/", method="HEAD")[1] == ""


def test_reports_are_served_and_nothing_else_of_a_run(server):
    assert get(server, "/files/runs/one/report.html")[1] == "<p>a report</p>"
    for path in (
        "/files/runs/one/metrics.jsonl",
        "/files/runs/one/config.yaml",
        "/files/notes/secret.txt",
        "/files/../outside.html",
        "/files/%2e%2e/outside.html",
        "/files/runs/link.html",
        "/files/runs/one",
        "/made/../x.html",
        "/nothing",
    ):
        answer, body = get(server, path)
        assert answer.status == 404 and body != "outside" and "secret" not in body.split(" ")[0], path


@pytest.mark.parametrize("path", ["/files/%00", f"/files/{'a' * 300}", "/files/runs/one"])
def test_what_cannot_be_opened_is_said_and_the_server_goes_on(server, path, capfd):
    answer, body = get(server, path)
    assert answer.status in (404, 500) and len(body.splitlines()) == 1
    assert get(server, "/")[0].status == 200 and capfd.readouterr().err == ""


def test_numbers_that_are_none_do_not_hide_the_other_runs(tmp_path):
    for name in ("one", "two"):
        write_cell(tmp_path / name, "gspo", 1, 0, steps=5)
    (tmp_path / "one/metrics.jsonl").write_text('{"step": 5, "reward/mean": NaN, "mismatch/d_pi": Infinity}\n')
    with Server(tmp_path, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        listed = {entry["path"]: entry for entry in json.loads(get(server, "/entries")[1])}
        server.shutdown()
    assert listed["one"]["reward"] is None is listed["one"]["d_pi"] and listed["two"]["reward"] is not None


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", ""])
def test_who_asks_by_another_name_gets_nothing(server, host):
    answer, body = get(server, "/entries", host=host or " ")
    assert answer.status == 403 and "runs/one" not in body


def test_only_this_machine_is_listened_to(server):
    assert server.server_address[0] == "127.0.0.1"


def test_ticked_runs_are_compared_outside_of_their_folders(server, root, draw_only):
    draw_only("drift")
    before = sorted(path for path in root.rglob("*"))
    chosen = "&".join(f"run={quote(path)}" for path in ("runs/old/two", "grids/small"))
    answer, _ = get(server, f"/compare?{chosen}")
    assert answer.status == 303
    page, body = get(server, answer.headers["Location"])
    assert page.status == 200 and "SAT-GSPO" in body and "<figure" in body
    folder = answer.headers["Location"].rpartition("/")[0]
    assert get(server, f"{folder}/figures/drift.png")[0].status == 200
    assert get(server, f"/compare?{chosen}")[0].headers["Location"] == answer.headers["Location"]
    assert sorted(path for path in root.rglob("*")) == before


@pytest.mark.parametrize("chosen", ["", "?run=notes", "?run=../outside.html", "?run=none"])
def test_what_cannot_be_compared_is_said(server, chosen):
    answer, body = get(server, f"/compare{chosen}")
    assert answer.status == 404 and body.count("\n") == 1 and "Traceback" not in body
