import pytest

from sat_slime.plugin.launch.secrets import is_secret, redact, secret_names


@pytest.mark.parametrize(
    "name", ["WANDB_API_KEY", "HF_TOKEN", "wandb-key", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "sglang-api-key"]
)
def test_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "input-key", "label-key", "eos-token-id", "PYTHONPATH", "max-tokens"],
)
def test_others(name):
    assert not is_secret(name)


def test_redaction_leaves_the_names():
    environment = {"WANDB_API_KEY": "0123456789", "HF_TOKEN": "short", "HOME": "/root/home"}
    assert redact("key 0123456789 short /root/home", environment) == "key <WANDB_API_KEY> short /root/home"
    assert secret_names(environment) == ["WANDB_API_KEY", "HF_TOKEN"]
