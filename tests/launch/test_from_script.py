"""Runs that are made of launch scripts of slime, which are read and never run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from slime_scripts import EXAMPLES, arguments_of

from sat_slime.config import ConfigError, load_config
from sat_slime.launch.command import flag_errors, slime_command
from sat_slime.launch.from_script import Script, from_script

MODEL = """
NLAYERS=${MODEL_LAYERS:-4}
DENSE=1
rows=()
for ((i=0; i<NLAYERS; i++)); do
  if (( i < DENSE )); then
    rows+=(0)
  else
    rows+=(1)
  fi
done
printf -v WHICH "[%s]" "$(IFS=', '; echo "${rows[*]}")"
MODEL_ARGS=(
   --num-layers $NLAYERS --hidden-size $((4 * (8 + 8)))
   --ffn-hidden-size 128 --num-attention-heads 4 --vocab-size 512
   --moe-layer-freq "$WHICH"
   --norm-epsilon "${EPSILON:-1e-6}"   # it's a comment; with "quotes'
)
"""
READABLE = r"""#!/bin/bash
set -ex
HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${HERE}/models/tiny.sh"
export DATA=${DATA:-"/data"}
STEPS=2; GPUS=8; ACTORS=$((GPUS - 4))
ROLLOUT_ARGS=(
   --prompt-data ${DATA}/train.jsonl  # the set; of "mathematics"
   --rm-type math
   # --rm-type dapo
   --rollout-shuffle
   --num-rollout 30
   --rollout-batch-size 32 --n-samples-per-prompt 4
   --global-batch-size $((32 * 4 / STEPS))
   --rollout-max-response-len 1024
   --apply-chat-template-kwargs '{"enable_thinking": false, "cost": "$5"}'
)
LOSS_ARGS=(--advantage-estimator gspo --eps-clip 3e-4 --use-kl-loss
   --kl-loss-coef 0.01 --kl-loss-type low_var_kl --entropy-coef 0.00 --use-tis --tis-clip 3.0)
LOSS_ARGS+=(--calculate-per-token-loss)
ENVIRONMENT="{
  \"env_vars\": {\"PYTHONPATH\": \"/opt/Megatron-LM/:${HERE}\", \"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\",
                 \"NCCL_ALGO\": \"Ring\", \"NCCL_NVLS_ENABLE\": \"0\"}
}"
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json="${ENVIRONMENT}" \
   -- python3 train_async.py \
   --actor-num-nodes 1 --actor-num-gpus-per-node ${ACTORS} \
   --rollout-num-gpus "$((GPUS-ACTORS))" --update-weights-interval 2 \
   --hf-checkpoint=/models/tiny --ref-load /models/tiny_torch_dist \
   --sglang-cuda-graph-bs 1 2 $(seq 4 4 16) \
   ${MODEL_ARGS[@]} "${ROLLOUT_ARGS[@]}" "${LOSS_ARGS[@]:-}" ${NONE_ARGS[@]}
"""
UNREADABLE = r"""WANDB_KEY=0123456789abcdef
if [ -z "$NODES" ]; then
    NODES=2
fi
if [ "$(uname)" = Linux ]; then BATCH=16; EXTRA_ARGS=(--use-fault-tolerance); else BATCH=8; fi
set_paths() {
    SAVE=/checkpoints
}
cat > notes.txt <<'EOF'
EXTRA_ARGS=(--seed "7)
EOF
source models/absent.sh
RUN_ARGS=(
   --prompt-data $DATA/train.jsonl
   --rollout-batch-size ${BATCH}
   --save ${SAVE}
   --save-hf /hf_$(date +%F)
   --wandb-key ${WANDB_KEY}
   --advantage-estimator ppo
   --rollout-max-context-len 4096
   --eval-prompt-data /data/aime.jsonl
   --rollout-function-path slime.rollout.fully_async_rollout.generate_rollout_fully_async
)
[ -n "$DEBUG" ] && RUN_ARGS+=(--num-rollout 1)
python3 train.py --colocate --actor-num-nodes $NODES --actor-num-gpus-per-node 8 $MORE "${RUN_ARGS[@]}" \
  "${EXTRA_ARGS[@]}" 2>&1 | tee log.txt
ps aux | grep train.py
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/tiny.sh").write_text(MODEL)

    def write(text: str) -> Path:
        path = tmp_path / "run.sh"
        path.write_text(text)
        return path

    return write


def imported(path: Path):
    text, notes = from_script(path)
    (path.parent / "run.yaml").write_text(text)
    return load_config(path.parent / "run.yaml"), notes, text


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to compare with")
def test_the_words_are_those_that_bash_would_send(script):
    path = script(READABLE)
    record = 'ray() { printf "%s\\0" "$@"; }; set +e; source "$0"'
    clean = {"PATH": os.environ["PATH"]}
    sent = subprocess.run(["bash", "-c", record, str(path)], env=clean, capture_output=True, text=True, check=True)
    words = sent.stdout.split("\0")[:-1]
    ours = [word.text for word in Script(path).command[1:]]
    assert [" ".join(word.split()) for word in ours] == [" ".join(word.split()) for word in words]


def test_a_script_that_can_be_read_needs_nothing_by_hand(script):
    config, notes, text = imported(script(READABLE))
    assert notes == [] and flag_errors(config) == []
    assert (config.pipeline.lag, config.pipeline.iterations, config.pipeline.optimizer_steps_per_rollout) == (2, 30, 2)
    method = config.method
    assert (method.base, method.denominator, method.tis.cap) == ("gspo", "trainer", 3.0)
    assert (method.clip.eps_low, method.clip.eps_high) == (3e-4, 3e-4)
    assert (config.loss.kl_coef, config.loss.reduction) == (0.01, "token_mean")
    assert config.cluster.megatron_dir == "/opt/Megatron-LM" and config.cluster.env == {
        "NCCL_ALGO": "Ring",
        "NCCL_NVLS_ENABLE": "0",
    }
    assert config.slime["moe-layer-freq"] == "[0,1,1,1]"
    lines = text.splitlines()
    assert "  hidden-size: 64  # tiny.sh:14" in lines and "  rm-type: math  # run.sh:9" in lines
    assert "  rollout-shuffle: true  # run.sh:11" in lines and "iterations: 30  # run.sh:12" in text


def test_the_run_sends_the_flags_of_the_script(script):
    """Besides those by which the plugin is called; a flag that the script has not keeps slime's own default."""
    path = script(READABLE)
    script = Script(path)
    theirs = [word.text for word in script.command[script.start + 1 :]]
    ours = slime_command(imported(path)[0]).command
    given = {word.partition("=")[0] for word in theirs if word.startswith("--")}
    sent = {word for word in ours if word.startswith("--")}
    # Ours follow the policy's rollouts, and truncate in the loss itself.
    assert given - sent == {"--update-weights-interval", "--use-tis", "--tis-clip"}
    assert not sent & {"--apply-chat-template", "--balance-data", "--recompute-granularity", "--adam-beta2", "--save"}


def test_what_cannot_be_read_is_named_by_line_and_key(script):
    config, notes, text = imported(script(UNREADABLE))
    expected = {
        3: "NODES is taken to be 2",
        5: "--use-fault-tolerance depends on a condition",
        12: "models/absent.sh is not here: write by hand what it sets",
        14: "--prompt-data .../train.jsonl: DATA is not set in the script: set slime.prompt-data by hand",
        15: "--rollout-batch-size ...: BATCH depends on a condition at run.sh:5: set slime.rollout-batch-size by hand",
        16: "--save ...: SAVE depends on a condition at run.sh:7: set slime.save by hand",
        17: "--save-hf /hf_...: $(date ...) is the output of a command: set slime.save-hf by hand",
        18: "--wandb-key is a secret",
        19: "--advantage-estimator ppo: set method.base",
        20: "--rollout-max-context-len 4096 follows from slime.sglang-context-length",
        21: "--eval-prompt-data /data/aime.jsonl: it takes a name and a file for each set",
        22: "see pipeline.max_staleness",
        24: "RUN_ARGS depends on a condition",
        25: "MORE is not set in the script: write its flags by hand",
        -25: "--colocate: training and generation have GPUs of their own here",
    }
    assert [int(note.split(":")[1]) for note in notes] == [abs(line) for line in expected]
    for note, words in zip(notes, expected.values(), strict=True):
        assert words in note and f"# - {note}" in text
    assert "0123456789abcdef" not in text
    assert (config.pipeline.mode, config.slime["rollout-num-gpus"]) == ("streaming", 16)


@pytest.mark.parametrize(
    "text, message",
    [
        ("ls\n", "nothing in it starts `python3 train.py`"),
        ("pkill -f train.py\n", "nothing in it starts"),
        ("X='\n", "run.sh:1: this cannot be read"),
        ("source run.sh\n", "nothing in it starts"),
    ],
)
def test_a_script_that_starts_nothing_is_refused(script, monkeypatch, tmp_path, text, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        from_script(script(text))
    assert message in str(error.value)


def test_every_script_of_slimes_becomes_a_run_that_loads(request, tmp_path):
    checkout = request.config.getoption("--slime")
    if not checkout:
        pytest.skip("no checkout of slime is named with --slime")
    folders = [Path(checkout) / "scripts", Path(checkout) / "examples"]
    paths = [path for folder in folders for path in folder.rglob("*.sh") if path.parent.name != "models"]
    started = [path for path in paths if "train" in path.read_text()]
    assert started
    for name in EXAMPLES:  # what bash itself makes of their arrays
        words = [word.text for word in Script(Path(checkout) / name).command]
        assert set(arguments_of(Path(checkout), name)) <= set(words)
    for path in started:
        (tmp_path / "run.yaml").write_text(from_script(path)[0])
        load_config(tmp_path / "run.yaml")
