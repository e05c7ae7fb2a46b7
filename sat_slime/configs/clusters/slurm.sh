#!/bin/bash
# A run of sat_slime on slime as a job of Slurm: starts Ray on every node, waits for it, launches the run and follows it.
# Before the time limit, and after a node is lost, the job is queued again, and the run goes on from its newest checkpoint.
#
#   sbatch slurm.sh        # after the lines up to "End of the settings" are as your cluster wants them
#   scancel --batch --signal=TERM JOB    # ends the run and the job for good; plain scancel gives it 30 seconds for that
#
# What has to be on a disk that all nodes share: the run's file, output_dir, model, data and this user's home.
#SBATCH --job-name=sat
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
# Sent this long before the time limit: what is trained since the newest checkpoint is then lost, as after a crash.
#SBATCH --signal=B:USR1@180

# shellcheck disable=SC2317,SC2329  # functions are called by traps and on the nodes
set -euo pipefail

file=${RUN_FILE:-slime.yaml} # the run: sat-slime init slime writes it, or paper: paper.yaml
name=${RUN_NAME:-sat}        # its name, that of its folder
output=${RUN_OUTPUT:-runs}   # the folder of its folder
options=()                   # more options of sat-slime launch, such as --method sat-gspo-r3 --lag 8
# The network between the nodes, where it is not the one of the default route, such as ib0 or ens5: see `ip -4 addr`.
interface=${INTERFACE:-}
ray_options=()               # more options of `ray start` on each node, such as --object-store-memory=200000000000
patience=900                 # seconds in which all nodes are to be there
port=${RAY_PORT:-6379}       # with nodes that other jobs share: two ports of your own
dashboard=${DASHBOARD_PORT:-8265}
# Python with Ray and sat_slime. Without a container, for instance: module load cuda; source /shared/venv/bin/activate
# With pyxis:  in_container=(); step=(srun --container-image=slimerl/slime:v0.3.1 --container-mounts=/shared:/shared)
# Apptainer:   in_container=(apptainer exec --nv --bind /shared /shared/slime-v0.3.1.sif); step=(srun)
in_container=()
step=(srun)
# ------------------------------------------------------------------------------------------------ End of the settings

# A container may have another working directory, whose files are lost with it.
[[ $file = /* ]] || file=$PWD/$file
[[ $output = /* ]] || output=$PWD/$output
run=$output/$name
# Ray's files on each node; the names of its sockets must be short, and nobody else is to know it before it is there.
folder=/tmp/sat-ray-$SLURM_JOB_ID-$(od -An -N4 -tx1 /dev/urandom | tr -d ' \n')
nodes=$SLURM_JOB_NUM_NODES

# Whoever has Ray's token can run anything as this user. It is kept where Ray and sat-slime look for it.
token=${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}
if [ -z "${RAY_AUTH_TOKEN:-}" ] && ! [ -s "$token" ]; then
    (umask 077 && mkdir -p "$(dirname "$token")" && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$token")
fi
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$token RAY_TMPDIR=$folder
unset RAY_ADDRESS RAY_API_SERVER_ADDRESS
# Ray's own waits are too short for a node that loads Python from a shared disk.
export RAY_raylet_start_wait_time_s=200 RAY_agent_register_timeout_ms=400000 RAY_worker_register_timeout_seconds=400
if [ -n "$interface" ]; then
    export GLOO_SOCKET_IFNAME=$interface NCCL_SOCKET_IFNAME=$interface
fi

say() { printf '%s slurm.sh: %s\n' "$(date '+%F %T')" "$*"; }

# Prints this node's address: that of the interface, else the one that slime itself would take.
address_here() {
    python3 -c 'import sys; from sat_slime.launch.nodes import address_of; print(address_of(sys.argv[1]))' "$interface"
}

# Runs on each node until it is told to end. The first one, which is this script's, has Ray's head.
ray_here() {
    set -euo pipefail
    local here told=
    here=$(address_here)
    mkdir -m 700 "$folder" 2> /dev/null || { [ -O "$folder" ] && ! [ -L "$folder" ]; } ||
        { echo "$folder on $(hostname) is somebody else's" >&2; return 1; }
    # Ray before 2.52 knows no token: whoever reaches its ports could run anything as this user.
    python3 -c 'import re, sys; from importlib.metadata import version
sys.exit([int(part) for part in re.findall(r"\d+", version("ray"))[:2]] < [2, 52])' ||
        { echo "Ray on $(hostname) is older than 2.52, which knows no token: update it" >&2; return 1; }
    export SLIME_HOST_IP=$here # by node, so not among the job's variables
    local flags=(--block --disable-usage-stats "--node-ip-address=$here" "--temp-dir=$folder" "$@")
    if [ "$SLURM_PROCID" = 0 ]; then
        ray start --head "--port=$port" "--dashboard-host=$here" "--dashboard-port=$dashboard" "${flags[@]}" &
    else
        until (: > "/dev/tcp/$head/$port") 2> /dev/null; do sleep 1; done
        ray start "--address=$head:$port" "${flags[@]}" &
    fi
    local ray=$!
    # With --block, Ray's other processes on this node end with this one. `ray stop` would end those of other jobs too.
    trap 'told=yes; kill -TERM "$ray" 2> /dev/null || true' TERM INT
    while kill -0 "$ray" 2> /dev/null; do wait "$ray" || true; done
    if [ -z "$told" ]; then
        echo "Ray ended on $(hostname); its logs are in $folder" >&2
        return 1
    fi
    rm -rf "$folder"
}

# Waits for all nodes. It asks Ray's dashboard, since a driver would have to see Ray's sockets, from another container.
wait_for_nodes='
import sys, time
from ray.util.state import list_nodes
from sat_slime.launch.ray_jobs import JobServer
address, count, patience = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
end, there, error = time.monotonic() + patience, [], None
while time.monotonic() < end:
    try:
        JobServer(address)  # from here on it is asked without an HTTP proxy
        there = sorted(node.node_ip for node in list_nodes(address, filters=[("state", "=", "ALIVE")]))
    except Exception as reason:  # there is no Ray yet, or not all of it
        error = reason
    if len(there) >= count:
        sys.exit(print("nodes:", *there))
    time.sleep(2)
sys.exit(f"{len(there)} of {count} nodes came within {patience:.0f} s: {there} ({error})")
'

# What stands before a command on this node, where the run is launched from.
on_head=("${step[@]}" --overlap --nodes=1 --ntasks=1 "--nodelist=$SLURMD_NODENAME" "${in_container[@]}")

cluster='' waiting='' launch='' again=''
# Ends a process that this script started, and waits for its end.
end() {
    kill -TERM "$1" 2> /dev/null || true
    while kill -0 "$1" 2> /dev/null; do wait "$1" || true; done
}
at_exit() {
    for process in $waiting $launch $cluster; do end "$process"; done
    if [ -n "$again" ]; then
        say "queueing this job again: the run goes on from its newest checkpoint"
        scontrol requeue "$SLURM_JOB_ID"
    fi
}
told_to_end() {
    trap '' USR1 TERM INT
    say "told to end by $1"
    [ "$1" = USR1 ] && again=yes
    if [ -n "$launch" ] && "${on_head[@]}" sat-slime stop "$run"; then
        for ((i = 0; i < 30; i++)); do # it has a report to write
            kill -0 "$launch" 2> /dev/null || break
            sleep 1
        done
    fi
    exit 143
}
trap at_exit EXIT
trap 'told_to_end USR1' USR1
trap 'told_to_end TERM' TERM INT

head=$("${on_head[@]}" bash -c "interface='$interface'; $(declare -f address_here); address_here")
say "job $SLURM_JOB_ID on $nodes nodes, Ray's head at $head"
export head interface folder port dashboard
"${step[@]}" "--nodes=$nodes" "--ntasks=$nodes" --ntasks-per-node=1 --overlap --kill-on-bad-exit=1 "${in_container[@]}" \
    bash -c "$(declare -f address_here ray_here)"'; ray_here "$@"' ray_here "${ray_options[@]}" < /dev/null &
cluster=$!
"${on_head[@]}" python3 -c "$wait_for_nodes" "http://$head:$dashboard" "$nodes" "$patience" < /dev/null &
waiting=$!
wait -n "$cluster" "$waiting" || { say "Ray did not come up"; exit 1; }
waiting=''

if [ -e "$run/config.yaml" ]; then
    how=("$run" --resume)
else
    how=("$file" --name "$name" --set "output_dir=$output")
fi
say "sat-slime launch ${how[*]} ${options[*]}"
"${on_head[@]}" sat-slime launch "${how[@]}" "${options[@]}" --address "http://$head:$dashboard" < /dev/null &
launch=$!
code=0
wait -n "$cluster" "$launch" || code=$?
if kill -0 "$launch" 2> /dev/null; then # so it was Ray that ended
    say "Ray ended before the run did"
    exit 1
fi
launch=''
say "the run ended with code $code"
exit "$code"
