#!/usr/bin/env bash
# Takes a bare node of eight GPUs to a running job. On the node, then in the container, in a checkout of this project:
#
#   docker run --rm -it --gpus all --ipc=host --shm-size=16g --ulimit memlock=-1 --ulimit stack=67108864 \
#       -v /data:/data slimerl/slime:v0.3.1 /bin/bash
#   ./scripts/slime-node.sh                                     Qwen3-4B-Base on the paper's prompts, SAT-GSPO
#   ./scripts/slime-node.sh --no-sat --name gspo                arguments go to `sat-slime launch`
#   MODEL=Qwen/Qwen3-30B-A3B-Base ARCHITECTURE=qwen3-30B-A3B FILE=configs/paper/qwen3-30b-a3b.yaml ./scripts/slime-node.sh --method sat-gspo-r3
#
# docs/slime.md says which slime works, and in which image it is. `latest` is a slime that was only read so far.
# Everything is put into ROOT (/data); what is there already is kept. WANDB_API_KEY and HF_TOKEN are used where they are
# exported. Other jobs on the node are left alone: a Ray is started for this run, and ends with it.
set -euo pipefail
cd "$(dirname "$0")/.."

root=${ROOT:-/data}
model=${MODEL:-Qwen/Qwen3-4B-Base}
file=${FILE:-configs/recipes/qwen3-4b-8gpus.yaml}
architecture=${ARCHITECTURE:-qwen3-4B} # of slime's scripts/models
slime=/root/slime
hf=$root/${model##*/}
megatron=${hf}_torch_dist
prompts=${PROMPTS:-$root/paper/train.jsonl}
problems=${PROBLEMS:-$root/paper/aime24.jsonl}

fail() {
    echo "slime-node: $*" >&2
    exit 1
}

[[ -z ${MODEL:-} || -n ${ARCHITECTURE:-} ]] || fail "MODEL is $model: set ARCHITECTURE to its file in $slime/scripts/models, such as qwen3-4B"

gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
((gpus >= 8)) || fail "this machine has $gpus NVIDIA GPUs, eight are needed: for fewer, launch with --set slime.actor-num-gpus-per-node and slime.rollout-num-gpus"
python3 -c 'import slime.backends, megatron.core' 2>/dev/null || fail "slime and Megatron cannot be imported: run this in slime's image"

echo "slime-node: installing sat-slime"
python3 -m pip install --quiet -e ".[slime,reward,data]"  # what the image has already is kept where it is new enough

unknown=$(python3 -c 'from sat_slime.plugin.compat import probe_slime; print(*probe_slime(), sep="\n")')
[[ -z $unknown ]] || fail "$unknown"

echo "slime-node: downloading what is missing to $root"
[[ -f $hf/config.json ]] || hf download "$model" --local-dir "$hf"
[[ -f $prompts && -f $problems ]] || sat-slime data prepare --out "$root/paper"

if [[ ! -f $megatron/latest_checkpointed_iteration.txt ]]; then
    echo "slime-node: converting the weights"
    # shellcheck source=/dev/null
    source "$slime/scripts/models/$architecture.sh"
    PYTHONPATH=/root/Megatron-LM torchrun --nproc-per-node 8 "$slime/tools/convert_hf_to_torch_dist.py" \
        "${MODEL_ARGS[@]}" --hf-checkpoint "$hf" --save "$megatron"
fi

# The last of two equal options counts, so that arguments win.
exec sat-slime launch "$file" --start-ray \
    --set output_dir="$root/runs" \
    --set slime.hf-checkpoint="$hf" --set slime.ref-load="$megatron" \
    --set slime.prompt-data="$prompts" --set slime.custom-rm-path=sat_slime.plugin.reward.prime_math --set slime.eval-prompt-data="[aime24, $problems]" \
    "$@"
