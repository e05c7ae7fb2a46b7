from pathlib import Path

import pytest
import yaml

from sat_slime.config import ConfigError, build_method, dump_config, load_config, load_grid
from sat_slime.config.loader import read_section, vary
from sat_slime.config.method_section import MethodConfig, method_in, method_label, method_switches, unused_settings
from sat_slime.objective import SAT, Clip, compose, method_names, named_method
from sat_slime.objective.gates import DPPO, TIS, IcePop
from sat_slime.objective.method import bases
from sat_slime.runs.grid import cell_config, plan_cells

CONFIGS = Path(__file__).parents[2] / "configs"
PAPERS = SAT(scope="microbatch")


def papers(name):
    """The named method with the scope that the paper's file names."""
    method = named_method(name)
    parts = [PAPERS if isinstance(part, SAT) else part for part in method.stabilizers]
    return compose(parts[0], parts[1:], denominator=method.denominator)


def method_of(section, place="a place"):
    return build_method(read_section(MethodConfig, section, place))


@pytest.mark.parametrize("name", [*method_names(), "sat-dppo-r3", "sat-icepop-topp", "kpop-tis"])
def test_named_methods_survive_the_section_and_what_is_saved_of_it(name):
    section = MethodConfig(**method_switches(name))
    assert build_method(section) == build_method(MethodConfig(**section.model_dump(mode="json"))) == named_method(name)
    assert method_in(section.model_dump()).name == named_method(name).name
    over = build_method(section).denominator
    assert method_label(section.model_dump() | {"denominator": over}) == named_method(name).label
    assert method_label(section.model_dump() | {"denominator": "x"}) == f"{named_method(name).label}, denominator x"


def test_the_papers_file_has_the_papers_scope_with_whatever_method():
    paper = CONFIGS / "paper" / "qwen3-30b-a3b.yaml"
    assert build_method(load_config(paper).method) == papers("sat-gspo")
    assert build_method(load_config(paper, [], {"method": "gspo"}).method) == named_method("gspo")
    by_switches = load_config(paper, [], {"method": "gspo", "method.sat": True})
    assert build_method(by_switches.method) == papers("sat-gspo")


@pytest.mark.parametrize("file", ["paper", "laptop", "lab"])
def test_cells_have_the_methods_that_they_are_named_after(file):
    path = CONFIGS / "grid" / f"{file}.yaml"
    grid = load_grid(path)
    run = vary(load_config(path.parent / grid.run), [("", grid.settings)])
    for cell in plan_cells(grid):
        expected = papers(cell.method) if file == "paper" else named_method(cell.method)
        assert build_method(cell_config(grid, path, run, cell, Path("runs")).method) == expected


@pytest.mark.parametrize("before", ["dppo", "gspo-topp", "sat-grpo-tis-r3"])
@pytest.mark.parametrize("name", [*(kind.name for kind in bases()), "sat-gspo-r3"])
def test_a_name_leaves_nothing_of_the_one_before(name, before, tmp_path):
    (tmp_path / "a.yaml").write_text(f"method: {before}")
    (tmp_path / "b.yaml").write_text(f"extends: a.yaml\nmethod: {name}")
    assert build_method(load_config(tmp_path / "b.yaml").method) == named_method(name)


BELOW = {"base": "grpo", "tis": True, "clip": {"eps_high": 0.28}, "sat": {"alpha": 0.8}}


@pytest.mark.parametrize(
    ("over", "overrides", "expected"),
    [
        ("sat-gspo-r3", [], ("sat-gspo-r3", SAT(alpha=0.8))),  # what stays on keeps its settings
        ({"sat": True}, [], ("sat-grpo-tis", SAT(alpha=0.8))),
        ({"sat": {"exponent": 3.0}}, [], ("sat-grpo-tis", SAT(alpha=0.8, exponent=3))),
        ({"sat": False}, [], ("grpo-tis", None)),
        ({"sat": False}, ["method.sat=true"], ("sat-grpo-tis", SAT())),  # what was off has forgotten them
        ({}, ["method.tis=false", "method.sat.alpha=0.7"], ("sat-grpo", SAT(alpha=0.7))),
        ("gspo", ["method.sat.scope=step"], ("sat-gspo", SAT(scope="step"))),  # what has settings is on
        ("gspo", ["method=sat-grpo"], ("sat-grpo", SAT())),
    ],
)
def test_a_file_says_what_is_on(over, overrides, expected, tmp_path):
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"method": BELOW}))
    (tmp_path / "b.yaml").write_text(yaml.safe_dump({"extends": "a.yaml", "method": over}))
    config = load_config(tmp_path / "b.yaml", overrides)
    method = build_method(config.method)
    assert (method.name, method.sat, method.clip.eps_high) == (*expected, 0.28)
    assert vary(config, []) == config
    (tmp_path / "saved.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "saved.yaml") == config


def test_settings_reach_the_objective():
    clip = {"eps_low": 0.1, "eps_high": 0.3}
    dppo = method_of({"base": "dppo", "clip": clip, "dppo": {"delta": 0.5}, "tis": {"cap": 5}})
    assert (dppo.clip, dppo.gates, dppo.weights) == (Clip(0.1, 0.3), (DPPO(delta=0.5),), (TIS(5),))
    assert method_of({"base": "icepop", "icepop": {"form": "weight"}}).gates == (IcePop(form="weight"),)
    assert method_of({"base": "gspo", "denominator": "checkpoint"}).denominator == "checkpoint"
    assert method_of({"base": "grpo", "top_p_replay": True}).name == "grpo-topp"
    both = MethodConfig(base="grpo", sat=True, tis=True)
    assert (build_method(both).name, build_method(both).denominator) == ("sat-grpo-tis", "checkpoint")


@pytest.mark.parametrize(
    ("section", "told"),
    [
        (
            {"base": "grpo", "kpop": {"phi": 2}},
            "method.kpop has settings, which base grpo does not read: set method.base",
        ),
        ({"base": "dppo", "dppo": {"divergence": "kl", "delta": 0.1}}, "method.dppo.delta is not read with the other"),
        ({"base": "dppo", "dppo": {"divergence": "kl", "delta_kl": 0.5}}, None),
    ],
)
def test_settings_that_nothing_reads_are_told(section, told):
    lines = unused_settings(read_section(MethodConfig, section, "a place"))
    assert len(lines) == (told is not None) and all(line.startswith(told) for line in lines)


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"sat": {"enabled": True, "alpha": 0.8}}, "unknown key 'sat.enabled'"),
        ({"sat": None}, "sat: it is empty: write settings below it, true or false, or leave it out"),
        ({"sat": {"alpha": True}}, "sat.alpha: it is true, and no yes-or-no setting"),
        ({"clip": {"eps_high": False}}, "clip.eps_high: it is false, and no yes-or-no setting"),
        ({"sat": 0.9}, "sat is 0.9: it is a section with the keys alpha, exponent, scope, or true or false"),
        ({"clip": {"eps_low": float("inf")}}, "clip.eps_low is inf"),
        ({"base": "tis"}, "base: tis stands beside a base: set method.tis to true, and method.base to a base"),
        ({"base": "dppo", "settings": {"x": 1}}, "leave it out, or write those of dppo below method.dppo"),
        ({"base": "icepop", "icepop": {"low": 1.1}}, "icepop: the range of low 1.1 and high 5.0 does not hold 1"),
        ({"mis_geo": {"high": 0.9}}, "mis_geo: the range of low 0.99 and high 0.9 does not hold 1"),
    ],
)
def test_what_a_section_cannot_say_is_one_line(section, told):
    with pytest.raises(ConfigError) as caught:
        read_section(MethodConfig, section, "a place")
    (line,) = caught.value.errors
    assert line.startswith("a place: ") and told in line
