"""`sat-slime rehearse` says what it would change, and refuses before anything is started."""

import pytest
from command_line import PAPER, sat_slime_command


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["--set", "cluster.slime_dir=/none"],
            "cluster.slime_dir is /none: no slime is in it; set it to the checkout, or make one: scripts/get-slime",
        ),
        (["--method", "sat-gspo", "--set", "slime.qk-layernorm=false"], "describe no family"),
    ],
)
def test_a_file_that_cannot_be_rehearsed_is_one_line(options, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = sat_slime_command("rehearse", PAPER, *options)
    assert result.exit_code == 2 and told in result.output and not list(tmp_path.iterdir())
