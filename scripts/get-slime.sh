#!/usr/bin/env bash
# Gets the real slime for runs and rehearsals on this machine's CPU: slime and Megatron-LM with slime's patches, at the
# commits that were tested, and four packages that slime imports, into this checkout's .venv.
#
#   ./scripts/get-slime.sh DIR                     DIR/slime and DIR/Megatron-LM; given again, it goes on
#   PYTHON=python3 ./scripts/get-slime.sh DIR      another environment
#   git config --global url.MIRROR.insteadOf https://github.com/
#
# What is there already stays as it is.
set -euo pipefail
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE # of a git that called this
export GIT_TERMINAL_PROMPT=0

fail() {
    echo "get-slime: $*" >&2
    exit 1
}

here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$here/.venv/bin/python}
[[ $# == 1 ]] || fail "name a folder: ./scripts/get-slime.sh DIR"
git --version >/dev/null || fail "git is missing: install it"
"$python" -m pip --version >/dev/null 2>&1 || fail "$python has no pip: run scripts/setup.sh, or set PYTHON to your environment's"
mkdir -p "$1"
out=$(cd "$1" && pwd)

checkout() { # NAME URL COMMIT PATCH...; it is moved to its place once it is whole
    local folder=$out/$1 url=$2 commit=$3 part=$out/$1.part head
    if [[ -e $folder || -L $folder ]]; then
        head=none
        [[ -e $folder/.git ]] && head=$(git -C "$folder" rev-parse HEAD)
        [[ $head == "$commit" ]] || fail "$folder is there at commit $head and not $commit: choose another folder, or use it as it is with --set cluster.slime_dir and cluster.megatron_dir"
        echo "$folder is there"
        return
    fi
    git init --quiet "$part"
    git -C "$part" fetch --depth 1 "$url" "$commit"
    git -C "$part" checkout --quiet --force --detach "$commit"
    shift 3
    (($# == 0)) || git -C "$part" apply "$@"
    mv "$part" "$folder"
}

patches=$out/slime/docker/patch/latest
checkout slime "${SLIME_URL:-https://github.com/THUDM/slime}" \
    "${SLIME_COMMIT:-624b824a898ab0ec1fcb4d373004c7f3852bf515}"
checkout Megatron-LM "${MEGATRON_URL:-https://github.com/NVIDIA/Megatron-LM}" \
    "${MEGATRON_COMMIT:-1dcf0dafa884ad52ffb243625717a3471643e087}" \
    "$patches/megatron.patch" "$patches/megatron-sglang-aligned.patch"
# Without their own lists, which ask for other versions of what is there.
"$python" -m pip install --quiet --disable-pip-version-check --no-deps \
    -r "$here/requirements/slime-cpu.txt"
dirs="--set cluster.slime_dir='$out/slime' --set cluster.megatron_dir='$out/Megatron-LM'"
echo "slime is ready: sat-slime rehearse FILE $dirs, or sat-slime prepare laptop and then launch configs/slime/laptop.yaml $dirs"
