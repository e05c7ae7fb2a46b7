from pathlib import Path

import base_files
import pytest
import yaml
from base_files import FILES, base_file

from sat_slime.config.section import flat
from sat_slime.config.source import parse_value

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_what_the_schema_says(name):
    told = "write it with: scripts/generate.sh"
    assert (CONFIGS / name).read_text() == base_file(FILES[name]), told


def test_settings_of_ours_are_few():
    values = yaml.safe_load(base_file(FILES["slime/base.yaml"]))
    values.pop("slime")
    assert len(flat(values)) <= 80


@pytest.mark.parametrize("value", [1e-6, 5e-4, 0.001, 1.0, 0.0, 12.5, None, True, "flash", "~/x", [], {}, [1, 2]])
def test_values_are_read_back_as_they_were(value):
    assert parse_value(base_files.as_yaml(value)) == value
