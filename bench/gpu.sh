#!/usr/bin/env bash
# What a GPU has to show, in ten minutes: on a bare machine with one card, PyTorch and this checkout, without a network.
#
#   bench/gpu.sh [--dry-run] [STAGE ...]
#
# SLIME and MEGATRON name checkouts as scripts/get-slime.sh makes them (slime, Megatron-LM), WHEELS a folder with the
# wheels of what is not installed, OUT one for logs and runs (gpu-out). Each stage ends by itself, and the next follows
# whatever became of it; the table at the end has what each gave and what one H200 gave (docs/internals/evidence.md).
# shellcheck disable=SC2329  # stages are called by their names
set -uo pipefail
cd "$(dirname "$0")/.." || exit

slime=$(realpath -m "${SLIME:-slime}") megatron=$(realpath -m "${MEGATRON:-Megatron-LM}")
out=$(realpath -m "${OUT:-gpu-out}")
wheels=${WHEELS:-wheels}
one="python3 -m sat_slime launch configs/slime/one-gpu.yaml --set output_dir=$out/runs
    --set cluster.slime_dir=$slime --set cluster.megatron_dir=$megatron --set cluster.python_path=[$PWD]
    --set slime.hf-checkpoint=$out/laptop/model --set slime.ref-load=$out/laptop/model
    --set slime.prompt-data=$out/laptop/prompts.jsonl --set slime.eval-prompt-data=[held_out,$out/laptop/held_out.jsonl]
    --set slime.save-interval=4 --set slime.eval-interval=5"
rank="env PYTHONPATH=bench:$slime:$megatron:.:$out/absent python3"

# A stage: name, seconds that it may take, what is expected, and what it runs. Its last line is its line of the table.
stages=(install objective loss rank nan slime beside)
declare -A seconds expected
stage() { seconds[$1]=$2 expected[$1]=$3; }

stage install 40 "the wheels and this package are installed; model and prompts of the laptop made"
install() {
    python3 -m pip install --quiet --no-index --no-deps "$wheels"/*.whl
    python3 -m pip install --quiet --no-index --no-deps --no-build-isolation .
    mkdir -p "$out/absent" # slime imports wandb, whether or not it is used
    python3 -c 'import wandb' 2>/dev/null || : >"$out/absent/wandb.py"
    [[ -d $out/laptop ]] || python3 -m sat_slime prepare laptop --out "$out/laptop" # made before, it spares a minute
}

stage objective 40 "all passed: values, gradients and metrics of every method are a CPU's"
objective() { # without the plugins that tests/conftest.py wants
    python3 -m pytest -q --noconftest -o addopts=--import-mode=importlib tests/objective/test_on_a_gpu.py
}

stage loss 35 "SAT-GRPO 1.156, SAT-GSPO 1.164 of slime's 0.025 s (aim: 1.05), 4.64 GiB; alone 1.9 and 2.4 ms, GRPO 1.0"
loss() { $rank bench/loss.py | tee /dev/stderr | awk '/^ours, SAT|^sat-/ {printf "%s; ", $0}'; }

stage rank 55 "the paper's rank: 53.5 GiB estimated, 54.0 measured; 193 TFLOP/s forward, 170 in a step"
rank() {
    $rank bench/rank.py configs/paper/qwen3-30b-a3b.yaml | tee /dev/stderr |
        awk '/estimated|measured|TFLOP/ {printf "%s;", $0}'
}

stage nan 45 "not known: whose numbers are not finite first, and whether SDPA's gradients are, at 7 heads to 1"
nan() { $rank bench/nan_hunt.py | tee /dev/stderr | awk '/recomputed:|gradients:|SDPA/ {printf "%s;", $0}'; }

stage slime 190 "exit 0; accuracy 0.188, 0.281, 0.332; d_pi 0.005, then 0.04 to 0.08; train 0.54 s, collect 1.4 to 1.9"
slime() {
    $one --name one --set pipeline.iterations=10
    local code=$?
    echo "exit $code: accuracy $(column one/eval accuracy); d_pi $(column one/metrics mismatch/d_pi)" \
        "; train $(column one/metrics time/train); collect $(column one/times time/collect)"
    return "$code"
}

stage beside 120 "both end with exit 0: ten iterations go on to 12, and a second run beside it has ports of its own"
beside() {
    $one --name two --set pipeline.iterations=2 --set slime.eval-interval=0 >"$out/two.log" 2>&1 &
    local two=$! resumed
    python3 -m sat_slime launch "$out/runs/one" --resume --set pipeline.iterations=12
    resumed=$?
    wait "$two"
    local second=$?
    echo "resumed exit $resumed with $(column one/metrics step | wc -w) steps, second exit $second with" \
        "$(column two/metrics step | wc -w)"
    return $((resumed + second))
}

column() { # the values of a key in a file of rows: RUN/FILE KEY
    python3 -c "import json, sys; print(*(f'{json.loads(row)[sys.argv[2]]:.3g}' for row in open(sys.argv[1])))" \
        "$out/runs/$1.jsonl" "$2" 2>/dev/null || echo none
}

run=1
if [[ ${1:-} == --dry-run ]]; then run=0; shift; fi
if (($#)); then stages=("$@"); fi
for name in "${stages[@]}"; do
    [[ -n ${seconds[$name]:-} ]] || { echo "gpu.sh: there is no stage $name: ${!seconds[*]}" >&2; exit 2; }
done
if ((!run)); then
    for name in "${stages[@]}"; do
        printf '%s, at most %s s\n  expected: %s\n%s\n' "$name" "${seconds[$name]}" "${expected[$name]}" \
            "$(declare -f "$name" | sed '1,2d;$d')"
    done
    exit
fi

mkdir -p "$out"
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 PYTHONWARNINGS=ignore OMP_NUM_THREADS=4
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
export slime megatron out wheels one rank
export -f install objective loss rank nan slime beside column
failed=0
for name in "${stages[@]}"; do
    echo "--- $name, at most ${seconds[$name]} s"
    begun=$SECONDS
    timeout --kill-after=5 "${seconds[$name]}" bash -c "$name" >"$out/$name.log" 2>&1
    code=$?
    ((code == 0)) || failed=1
    for job in "$out"/runs/*/job.json; do # a run of slime that was cut off goes on without its launcher
        [[ $code -ne 0 && -f $job ]] || continue
        timeout 20 python3 -m sat_slime stop "${job%/job.json}" >>"$out/$name.log" 2>&1
    done
    printf '%s\t%s s\t%s\n\texpected: %s\n' "$name" $((SECONDS - begun)) \
        "$( ((code)) && echo "FAILED ($code) " )$(tail -n 1 "$out/$name.log" | cut -c1-600)" "${expected[$name]}" |
        tee -a "$out/table.txt"
done
echo "=== table ($out/table.txt)"
cat "$out/table.txt"
exit $failed
