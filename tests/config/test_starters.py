"""Files of `sat-slime init` load as those of the package do, wherever they are; base files are what the schema says."""

import base_files
import pytest
import yaml
from base_files import FILES, base_file

from sat_slime.config import ConfigError, load_config
from sat_slime.config.loader import load_grid
from sat_slime.config.section import flat
from sat_slime.config.source import parse_setting
from sat_slime.config.starters import CONFIGS, STARTERS, write_starter

RUNS_AND_GRIDS = [name for name, starter in STARTERS.items() if not starter.path.startswith("clusters/")]
"""The others, jobs of a cluster, are tested in test_cluster_starters.py."""


@pytest.mark.parametrize("name", RUNS_AND_GRIDS)
def test_a_starter_loads_as_the_package_s_own_file(name, tmp_path):
    first, *others = write_starter(name, tmp_path / "new")
    assert first == tmp_path / "new" / f"{name}.yaml" and others
    original = CONFIGS / STARTERS[name].path
    if STARTERS[name].path.startswith("grid/"):
        ours, theirs = load_grid(first), load_grid(original)
        assert (first.parent / ours.run).is_file()
        assert load_config(first.parent / ours.run) == load_config(original.parent / theirs.run)
        assert ours.model_copy(update={"run": theirs.run}) == theirs
    else:
        assert load_config(first) == load_config(original)
    assert first.read_text().startswith("# ")  # it says what it is
    assert write_starter(name, tmp_path / "new") == [first, *others]  # nothing has changed


def test_starters_share_a_folder(tmp_path):
    for name in STARTERS:
        write_starter(name, tmp_path / "one" if STARTERS[name].path.startswith("recipes") else tmp_path)


def test_a_file_of_the_user_is_never_overwritten_and_an_unknown_starter_named(tmp_path):
    (tmp_path / "base.yaml").write_bytes(b"name: min\xe9\n")
    with pytest.raises(ConfigError, match=r"base.yaml is there already and holds something else: .*--out"):
        write_starter("quickstart", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["base.yaml"]
    assert (tmp_path / "base.yaml").read_bytes() == b"name: min\xe9\n"
    with pytest.raises(ConfigError, match="init quickest: there is no such starter; there are quickstart, streaming"):
        write_starter("quickest", tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_what_the_schema_says(name):
    assert (CONFIGS / name).read_text() == base_file(FILES[name]), "write it with: scripts/generate.sh"


def test_settings_of_ours_are_few():
    values = yaml.safe_load(base_file(FILES["slime/base.yaml"])) | {"slime": "its own"}
    assert len(flat(values)) <= 80


@pytest.mark.parametrize("value", [1e-6, 5e-4, 0.001, 1.0, 0.0, 12.5, None, True, "flash", "~/x", [], {}, [1, 2]])
def test_values_are_read_back_as_they_were(value):
    assert parse_setting(f"x={base_files.as_yaml(value)}")[1] == value
