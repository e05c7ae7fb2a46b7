import time

import pytest

from sat_slime.launch.secrets import is_secret, redact, secret_names

SECRETS = (
    *("WANDB_API_KEY", "HF_TOKEN", "wandb-key", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "sglang-api-key"),
    "slime-router-control-plane-api-keys",
    *("OPENAI_KEY", "AZURE_STORAGE_KEY", "GITHUB_PAT", "SENTRY_DSN"),
)
OTHERS = (
    *("TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "input-key", "label-key", "reward-key", "eos-token-id", "PYTHONPATH"),
    *("PWD", "PATH", "max-tokens"),
)


def test_the_names_of_secrets():
    assert [name for name in (*SECRETS, *OTHERS) if is_secret(name)] == [*SECRETS]


def test_redaction_leaves_the_names():
    environment = {"A_TOKEN": "01234567", "WANDB_API_KEY": "0123456789", "HF_TOKEN": "short", "HOME": "/root/home"}
    assert redact("key 0123456789 short /root/home", environment) == "key <WANDB_API_KEY> short /root/home"
    numbers = {"sglang-bucket-time-to-first-token": [0.1, 1], "sglang-kt-max-deferred-experts-per-token": 2}
    assert secret_names(environment | numbers) == ["A_TOKEN", "WANDB_API_KEY", "HF_TOKEN"]
    key = {"DEPLOY_PRIVATE_KEY": "-----BEGIN-----\nMIIEpAIBAAKCAQEA\n-----END-----\n"}  # a log has it line by line
    assert redact("it is MIIEpAIBAAKCAQEA", key) == "it is <DEPLOY_PRIVATE_KEY>"
    assert secret_names({"train-env-vars": '{"WANDB_API_KEY": "0123"}'}) == ["train-env-vars"]
    assert secret_names({"sglang-api-key": 12345678, "time-to-first-token": [0.1, 1]}) == ["sglang-api-key"]


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("postgres://me:hunter2@db/x", "postgres://me:<password>@db/x"),
        ("https_proxy=http://user:p4ss@proxy:3128 ok", "https_proxy=http://user:<password>@proxy:3128 ok"),
        ("http://user:p@ss@proxy", "http://user:<password>@proxy"),
        ("redis://:hunter2@cache", "redis://:<password>@cache"),
        ("http://10.0.0.1:8265/@x", "http://10.0.0.1:8265/@x"),
        ("me@example.org at 10:30", "me@example.org at 10:30"),
    ],
)
def test_passwords_in_urls(text, redacted):
    assert redact(text, {}) == redacted
    assert secret_names({"DATABASE_URL": text}) == (["DATABASE_URL"] if text != redacted else [])


def test_a_long_line_is_looked_through_once():
    def seconds(text):
        begun = time.process_time()
        redact(text, {})
        return time.process_time() - begun

    dashes, spaces = (min(seconds(text * 8_000) for _ in range(3)) for text in ("no-", "no "))
    assert dashes < 100 * spaces + 0.01  # 1,000 times as long where each place looks at all that follow
