"""A mistake is answered in one screen: with what is wrong and what to write instead, before anything starts. A line
each, the command after `sat-slime`, then words that its answer must have: the key or name that is wrong, and what to
write instead."""

import re
import shlex
import subprocess

import pytest
from typer.testing import CliRunner

from sat_slime.cli import app

FILES = """
sat-slime init quickstart
sat-slime init grid
sat-slime init slime
sat-slime init plugin
echo 'python3 train.py "${ARGS[@]}"' > run.sh
touch empty.yaml
echo 'train: {lr: 1e-4' > unclosed.yaml
printf 'seed: 1\\ntrain: {lr: 1e-4}\\nseed: 2\\n' > twice.yaml
echo '- train' > list.yaml
echo 'extends: circle.yaml' > circle.yaml
echo 'extends: gone.yaml' > child.yaml
echo 'my notes' > notes.txt
mkdir -p grids/small && cp grid.yaml grids/small/
(yes '' | head -79; sed 's/^lags/lagz/' grid.yaml) > lagz.yaml
sed 's/^methods:.*/methods: []/; /^- /d' grid.yaml > no-methods.yaml
sed 's/^- grpo-tis$/- grpo-tiss/' grid.yaml > tiss.yaml
sat-slime launch quickstart.yaml --name there --set pipeline.iterations=4
""".strip().splitlines()
"""What makes the files that the mistakes name."""

MISTAKES = """
# the command line
lanch quickstart.yaml | 'lanch' | 'launch'
launch | file
launch quickstart.yaml --lagg 8 | --lagg | --lag)
launch quickstart.yaml --lag eight | --lag | integer
launch quickstart.yaml --lag -1 | pipeline.lag | -1 | 0
launch quickstart.yaml --method gspo-sat | 'gspo-sat' | 'sat-gspo'
launch quickstart.yaml --method satgspo | 'satgspo' | 'sat-gspo'
launch quickstart.yaml --set method.base=gspoo | 'gspoo' | 'gspo'
launch quickstart.yaml --name a/b | 'a/b' | letters
methods dapo | 'dapo' | clip.eps_high 0.28
methods dpppo | 'dpppo' | did you mean 'dppo'
init quikstart | quikstart | quickstart, streaming
init slime --method grpo | --method grpo | init plugin | sat-slime launch
check sat.yaml --set sat_slime.method=grpo | --set | sat.yaml | change it there
data prepare --out notes.txt | notes.txt | --out
# values
launch quickstart.yaml --set train.lr | train.lr | key=value
launch quickstart.yaml --set train.lrr=1e-4 | 'train.lrr' | 'train.lr'
launch quickstart.yaml --set lr=1e-4 | 'lr' | 'train.lr'
launch quickstart.yaml --set train.ranks=2 | 'train.ranks' | dtype, tokens_per_microbatch
launch quickstart.yaml --set train.lr=fast | train.lr | 'fast' | number
launch quickstart.yaml --set train.lr=-1 | train.lr | -1 | 0
launch quickstart.yaml --method satgspo --set settings.lag=8 | 'sat-gspo' | 'settings.lag' | 'pipeline.lag'
launch quickstart.yaml --set train=1e-4 | train | section | grad_clip
launch quickstart.yaml --set pipeline.lag=2.5 | pipeline.lag | 2.5 | integer
launch quickstart.yaml --set pipeline.lag=yes | pipeline.lag | true
launch quickstart.yaml --set pipeline.mode=asynchronous | pipeline.mode | 'asynchronous' | batch, streaming
launch quickstart.yaml --set 'train.lr=[1,' | '[1,' | YAML
launch quickstart.yaml --set method.sat.alpha=90 | method.sat.alpha | 90 | 1
launch quickstart.yaml --set method.sat.scope=batch | method.sat.scope | 'batch' | 'microbatch'
launch slime.yaml --set slime.sglang-mem-fraction-static=2 | slime.sglang-mem-fraction-static | 2 | 1
# paths
launch quikstart.yaml | quikstart.yaml | quickstart.yaml?
launch . | sat-slime grid .
launch empty.yaml | empty.yaml | extends: base.yaml
launch unclosed.yaml | unclosed.yaml:2 | YAML
launch twice.yaml | twice.yaml:3 | seed | line 1
launch list.yaml | list.yaml:1 | list
launch circle.yaml | circle.yaml -> circle.yaml
launch child.yaml | child.yaml:1 | gone.yaml | relative
launch notes.txt | notes.txt:1 | 'my notes'
launch grid.yaml | sat-slime grid grid.yaml
check grid.yaml | sat-slime grid grid.yaml
launch sat.yaml | plugin's file | sat-slime check sat.yaml | --custom-config-path
check run.sh | run.sh | docs/launch.md | A launch script of slime
grid quickstart.yaml | sat-slime launch quickstart.yaml
grid grid.yaml --only nothing | --only nothing | sat-grpo-r3 | 1, 8
grid lagz.yaml | lagz.yaml:100: | 'lagz' | 'lags'
grid no-methods.yaml | no-methods.yaml:7 | methods | []
grid tiss.yaml | tiss.yaml:7 | 'grpo-tiss' | 'grpo-tis'
grid grid.yaml --parallel 2 | --parallel
# runs
launch quickstart.yaml --name there | runs/there | --resume | --overwrite | --name
launch quickstart.yaml --resume | runs/quickstart | without --resume
launch runs/there --resume | finished | --set pipeline.iterations=8
launch runs/there --resume --set model.hidden_size=32 | model.hidden_size | 64 -> 32 | --name
launch runs/none --resume | runs/none
status runs/none | runs/none | config.yaml
logs runs/none | 'logs' | 'status'
report runs/none | runs/none | config.yaml
report notes.txt | notes.txt | 'my notes
report runs/there --out notes.txt | notes.txt | --out
diagnose runs/none | runs/none | TensorBoard
diagnose runs/there --out x | --out is for trackers, logs and dumps | runs/there/diagnosis
replay runs/there | runs/there | dump.every_n_iterations
replay none.pt | none.pt
replay notes.txt | notes.txt | sat-slime report notes.txt
# settings that do not go together
launch quickstart.yaml --method sat-gspo --set method.denominator=trainer | denominator trainer | to rollout
launch quickstart.yaml --method gspo --tis --set method.denominator=rollout | denominator rollout | to trainer
launch quickstart.yaml --method spo --sat | SPO | grpo
launch quickstart.yaml --set pipeline.mode=streaming --lag 0 | pipeline.lag | pipeline.mode | batch
launch quickstart.yaml --set model.kv_heads=3 | model.kv_heads | divide | 4
launch quickstart.yaml --set model.experts=0 --r3 | method.r3 | model.experts | false
# runs of slime
launch slime.yaml --set slime.use-tiss=true | use-tiss | --use-tis | method.tis
launch slime.yaml --set train.lr=1 | train.lr | slime.lr
launch slime.yaml --set slime.kl-loss-coef=1 | --kl-loss-coef | loss.kl_coef
launch slime.yaml --set slime.sglang-tp-size=2 | --sglang-tp-size | slime.rollout-num-gpus-per-engine
launch slime.yaml --set slime.save-retain-interval=80 | save-retain-interval | pipeline.keep_checkpoints
launch slime.yaml --set slime.start-rollout-id=8 | start-rollout-id | --resume-from
launch slime.yaml --set pipeline.mode=streaming --set slime.update-weight-transport=disk | disk | leave it out
launch slime.yaml --set slime.rm-type=mathh --set slime.custom-rm-path=false | mathh | to math
rehearse slime.yaml --set cluster.slime_dir=/none | cluster.slime_dir is /none: no slime is in it | scripts/get-slime
rehearse slime.yaml --set slime.qk-layernorm=false | describe no family
launch slime.yaml --set slime.rm-type=prime_math --set slime.custom-rm-path=false | prime_math | reward.prime_math
""".strip().splitlines()


def run(words):
    """The command's exit code and what it says, in one line."""
    said = CliRunner().invoke(app, words, env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert said.exception is None or isinstance(said.exception, SystemExit), (words, said.exception)
    return said.exit_code, said.output


@pytest.mark.usefixtures("runtime")
def test_every_mistake_is_answered():
    """One test, since all of them start from the same files."""
    for line in FILES:
        if line.startswith("sat-slime"):
            assert run(shlex.split(line)[1:])[0] == 0, line
        else:
            subprocess.run(line, shell=True, check=True)
    for line in (line for line in MISTAKES if not line.startswith("#")):
        command, *expected = line.split(" | ")
        code, said = run(shlex.split(command))
        assert code in (1, 2) and len(said.splitlines()) <= 8, (command, code, said)
        assert re.search(r"^(error:|FAIL|Usage:)", said, re.M) and "Traceback" not in said, (command, said)
        assert not [word for word in expected if word not in said], (command, said)
    subprocess.run("test ! -e rehearsals", shell=True, check=True)  # nothing is begun that is refused
