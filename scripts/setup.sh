#!/usr/bin/env bash
# Makes .venv with the package, its engines and its tools. Does nothing when that is done already.
#
#   PYTHON=python3.12 ./scripts/setup.sh                                           another interpreter
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu ./scripts/setup.sh    the small CPU build of torch
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
stamp=.venv/setup.stamp

fail() {
    echo "setup: $*" >&2
    exit 1
}

wanted() {
    { pwd; cat scripts/setup.sh pyproject.toml requirements/*.txt; } | cksum
}

if [[ -x $python && -f $stamp && $(<"$stamp") == "$(wanted)" ]]; then
    exit 0
fi

if [[ ! -x $python ]]; then
    base=${PYTHON:-python3}
    command -v "$base" >/dev/null || fail "$base is not installed: install Python 3.10 or newer, or name one: PYTHON=/path/to/python3"
    "$base" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        fail "$base is $("$base" -V 2>&1): Python 3.10 or newer is needed; name one: PYTHON=/path/to/python3"
    "$base" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$base cannot make virtual environments: install its venv module (Debian and Ubuntu: apt install python3-venv)"
    echo "setup: making .venv with $("$base" -V)"
    "$base" -m venv .venv
fi

install() {
    "$python" -m pip install --quiet --disable-pip-version-check --no-warn-conflicts "$@" ||
        fail "pip install $* failed, see above"
}

# Whatever torch is there already stays: it may be a build for this machine's GPU.
if ! "$python" -c 'import torch' 2>/dev/null; then
    echo "setup: installing torch, the largest part"
    install torch numpy -c requirements/constraints.txt
fi
constraints=.venv/constraints.txt
torch=$("$python" -c 'import torch; print(torch.__version__.partition("+")[0])')
sed "s/^torch==.*/torch==$torch/" requirements/constraints.txt >$constraints

echo "setup: installing sat-slime with SGLang, Megatron, Ray and the tools"
install -r requirements/lab.txt -e ".[lab,slime,reward,data,dev,docs,notebooks]" -c $constraints
# SGLang comes without its own list, which asks for a CUDA build of torch; conflicts between all others are shown.
install sglang --no-deps -c $constraints
"$python" -m pip check --disable-pip-version-check | grep -v '^sglang ' || true

wanted >$stamp
echo "setup: done; the command is .venv/bin/sat-slime"
