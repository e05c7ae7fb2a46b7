"""A stabilizer outside the package, the one of docs/extend.md: everything follows from its file."""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml
from command_line import TINY, sat_slime_command
from rich.console import Console

from sat_slime.config import build_method, dump_config, load_config
from sat_slime.config.loader import vary
from sat_slime.config.source import ConfigError
from sat_slime.objective import MetricAccumulator, TokenBatch, check_method, method, named_method, policy_surrogate
from sat_slime.report.methods import label_of
from sat_slime.report.replay import choose
from sat_slime.report.run import write_report
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.log import RunLog
from sat_slime.runs.reading import read_metrics

ROOT = Path(__file__).parents[2]
OWN = "from sat_slime.objective import *\nfrom my_package.halfway import dataclass\n@dataclass(frozen=True)\n"
OWN += "class A({}):\n    {}\n    name = 'a'\n    cap: float = 1\n"
JUDGE = "scores, threshold_of = lambda s, t: t.A, lambda s, a, g: a.max(); factor = lambda s, t: t.A >= t.threshold"
PATH = "my_package.halfway"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """my_package.halfway, as the page has it, and one of other names."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extend.md").read_text(), re.DOTALL)
    folder = tmp_path / "my_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "halfway.py").write_text(code)
    code = code.replace("float = 0.1", "bool = True").replace("band", "width")
    (folder / "wide.py").write_text(code.replace('"halfway"', '"wide"'))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]
    method._OWN.clear()


def settings(tmp_path, **method):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"extends": str(TINY), "method": method}))
    return file


def test_the_page_of_methods(package):
    result = sat_slime_command("methods", f"sat-{PATH}-r3")
    assert result.exit_code == 0, result.output
    assert "M = 1 where |r - 1| is at most band" in result.stdout
    assert "method.settings.band = 0.1: Largest |r - 1|" in result.stdout


def test_settings_reach_the_objective_and_a_dry_run_prints_them(package, tmp_path):
    file = settings(tmp_path, base=PATH, settings={"band": 0.2}, sat=True, r3=False)
    found = build_method(load_config(file).method)
    assert (found.base.band, found.name, found.label) == (0.2, f"sat-{PATH}", "SAT-Halfway")
    check_method(found)
    result = sat_slime_command("launch", file, "--dry-run")
    assert result.exit_code == 0 and "SAT-Halfway" in result.stdout, result.output
    named = sat_slime_command("launch", TINY, "--method", f"{PATH}-tis", "--dry-run")
    assert named.exit_code == 0 and "Halfway w/ TIS" in named.stdout, named.output


@pytest.mark.parametrize("method", ["gspo", "dppo", "my_package.wide", f"sat-{PATH}-r3"])
def test_its_settings_go_when_another_base_is_named(package, tmp_path, method):
    file = settings(tmp_path, base=PATH, settings={"band": 0.2})
    changed = load_config(file, settings={"method": method}).method
    expected = {"my_package.wide": {"width": True}, f"sat-{PATH}-r3": {"band": 0.2}}
    assert changed.settings == expected.get(method, {})
    varied = vary(load_config(file), [("a place", {"method": method, "pipeline.lag": 1})]).method
    assert varied == changed


def test_its_metrics_are_written_and_drawn(package, tmp_path):
    """From the loss through the reduction and the log of a run to its page: nothing but its file names the metric."""
    config = load_config(settings(tmp_path, base=PATH))
    built = build_method(config.method)
    folder = RunFolder.create(tmp_path / "run", dump_config(config))
    log = RunLog(folder, "run", 20, Console(file=io.StringIO(), width=300))
    for step in range(1, 21):
        accumulator = MetricAccumulator()
        for farthest in (3.0, 3.0 + step / 10):
            mu = torch.full((4,), -5.0)
            log_probs = mu + torch.log(torch.tensor([1.0, 1.05, 1.15, farthest]))
            batch = TokenBatch(log_probs, mu, torch.ones(4), torch.ones(4, dtype=torch.bool), [4])
            accumulator.add(policy_surrogate(built, batch).metrics, 4)
        log.step({"step": step, **accumulator.reduce()})
    folder.lock.release()
    written = read_metrics(folder.metrics)["halfway/distance"]
    assert written == pytest.approx([(2.2 + step / 20) / 4 for step in range(1, 21)], rel=1e-4)
    method._OWN.clear()  # as in another process, which learns of it from the run's settings
    page = write_report(folder.path).read_text()
    assert '<section id="method">' in page and "halfway/distance" in page
    drawn = [list(csv.DictReader(file.open())) for file in sorted(folder.path.glob("figures/method_*.csv"))]
    distance, masked = sorted(drawn, key=lambda rows: rows[0]["line"])
    assert [float(row["single"]) for row in distance] == pytest.approx(written)
    assert [float(row["single"]) for row in masked] == [50.0] * 20


@pytest.mark.parametrize(
    ("kind", "code", "values"),
    [
        ("Weight", "factor = lambda self, t: 2 * t.k", [3, 6]),
        ("Radii", "radii = lambda self, low, high, t: (low * t.k, 4 * high * t.k)", [1.5, 3]),
        ("Surrogate", "values = lambda self, t: t.measured.update(x=t.ratio.sum()) or t.ratio * t.A", [1.5, 3]),
        ("Gate, Judge", JUDGE, [0, 2.4]),
    ],
)
def test_a_class_of_any_kind_is_a_base(package, kind, code, values):
    (package / "mine.py").write_text(OWN.format(kind, code))
    check_method(own := named_method("my_package.mine"))
    ones = torch.ones(2)
    batch = TokenBatch((1.5 * ones).log().requires_grad_(), 0 * ones, ones.cumsum(0), ones.bool(), [2])
    result = policy_surrogate(own, batch)
    assert result.values.tolist() == pytest.approx(values) and own.scope != "step"
    assert own.label == "a", "it has no docstring that says another"
    assert not any(isinstance(metric, torch.Tensor) and metric.requires_grad for metric in result.metrics.values())


def test_a_name_alone_imports_nothing(package):
    (package / "loud.py").write_text("raise SystemExit('it was imported')")
    assert label_of("my_package.loud") == "my_package.loud" and label_of(PATH) == PATH
    named_method(PATH)
    assert label_of(PATH) == "Halfway"


def test_a_replay_sweeps_its_settings(package):
    found = choose(f"my_package.wide,{PATH}", ["settings.band=[0.1,0.3]", "settings.width=false"])
    values = ["my_package.wide settings.width=false", *(f"{PATH} settings.band={band}" for band in (0.1, 0.3))]
    assert [one.label for one in found] == values and [one.method.base.band for one in found[1:]] == [0.1, 0.3]
    with pytest.raises(ConfigError, match="bund=1 changes none of the methods"):
        choose(PATH, ["settings.bund=1"])


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"base": "my_package.nowhere", "settings": {"band": 1}}, "cannot be imported .*: name a module that.*$"),
        ({"base": PATH, "settings": {"band": "x"}}, "settings.band is 'x': it must be a valid number"),
        ({"base": PATH, "settings": {"bund": 1}}, "unknown key 'method.settings.bund'; halfway has band"),
        ({"base": "grpo", "settings": {"band": 1}}, "method.settings is for a base that is not ours"),
        ({"base": "my_package"}, "method.base: there is no base 'my_package'; it must be one of ppo"),
    ],
)
def test_bad_settings_are_told(package, tmp_path, method, said):
    with pytest.raises(ConfigError, match=said):
        load_config(settings(tmp_path, **method))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1\n", "my_package.bad defines none"),
        ("import nothing_at_all\n", "cannot be imported .*nothing_at_all"),
        ("from my_package.halfway import Halfway\nclass A(Halfway): name = 'grpo'\n", "name of one of ours"),
        ("from my_package.halfway import Halfway\nclass A(Halfway): place = 'suffix'\n", "leave it out"),
        ("from my_package.halfway import Gate\nclass A(Gate): name = 'half-way'\n", "set it to the word"),
        (OWN.format("Gate", "band: float"), "has no default"),
        (OWN.format("Gate", "needs = ('lags')"), "it may have 'lags' and 'entropies'"),
        ("def (\n", r"cannot be imported \(SyntaxError"),
        ("x = undefined\n", r"cannot be imported \(NameError: name 'undefined'"),
        ("from my_package.halfway import Halfway\nclass A(Halfway): name = 'a'\n", r"write @dataclass\(frozen=True\)"),
    ],
)
def test_a_bad_module_is_told(package, tmp_path, code, said):
    (package / "bad.py").write_text(code)
    with pytest.raises(ConfigError, match=said):
        load_config(settings(tmp_path, base="my_package.bad"))
