from __future__ import annotations

import pytest
from trainer_process import in_trainer, make_config, make_initial


@pytest.fixture(scope="session")
def initial(tmp_path_factory) -> dict[str, str]:
    """Random weights of the tiny MoE model and of its dense sibling."""
    folders = {}
    for name, experts in (("moe", 4), ("dense", 0)):
        folders[name] = str(tmp_path_factory.mktemp("initial") / name)
        in_trainer(make_initial, make_config(model={"experts": experts}), folders[name])
    return folders
