"""Trains on one rollout batch with both runtimes: the lab one, and slime without engines and without Ray.

The batch is that of stale policies: its log-probs and routes come from other weights than those that are trained, so
that ratios leave their intervals, gates close, and replayed routes are not the trainer's own. All weights are drawn and
not trained, so that they are the same on every machine but for rounding.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from trainer_process import in_trainer
from whole_run import FILE, ROOT, Slime

from sat_slime.config.loader import load_config
from sat_slime.config.schema import LabConfig
from sat_slime.lab.batch import RolloutBatch
from sat_slime.lab.responses import Response
from sat_slime.launch.command import slime_command
from sat_slime.tasks.running_sums import Problem, RunningSums

TASK = RunningSums()
SCRIPT = Path(__file__).with_name("slime_trainer.py")
PROMPTS, SAMPLES = 16, 4
STEPS = 2
"""Number of optimizer steps on the same batch: at the second the lag is 1, and Adam has moments."""
SEED = 6
"""Of the weights in training: one with which the tail of SAT begins inside the clip interval."""
AGES = {0: 0.005, 14: 0.05, 15: 0.5}
"""How far the weights that generate move before a prompt's responses, in standard deviations of each weight tensor:
most responses come from nearly the weights in training, the last ones from older and much older ones."""

# Adam's first step is the learning rate times the gradient's sign wherever the gradient is far above epsilon: with the
# default of 1e-8, rounding in a gradient that vanishes would make a step.
EPSILON = "slime.adam-eps=1e-5"


@dataclass(frozen=True)
class Batch:
    """A rollout batch, and the two models."""

    model: Path
    """The Hugging Face folder of the weights in training."""
    generating: Path
    """The Hugging Face folder of the weights that generated, which are also the reference model."""
    rollout: RolloutBatch

    def write_for_slime(self, file: Path) -> None:
        """Writes as JSON what slime's rollout function leaves of each response."""
        rows = [
            {
                "group_index": index // SAMPLES,
                "index": index,
                "tokens": [*response.prompt_ids, *response.output_ids],
                "response_length": len(response.output_ids),
                "reward": verdict.reward,
                "weight_versions": ["0"],
                "rollout_log_probs": response.log_probs.tolist(),
                "rollout_routed_experts": response.routed_experts.tolist(),
            }
            for index, (response, verdict) in enumerate(zip(self.rollout.responses, self.rollout.verdicts, strict=True))
        ]
        file.write_text(json.dumps(rows))


@dataclass(frozen=True)
class Trained:
    """The results of training on the batch for STEPS steps."""

    metrics: list[dict[str, float]]
    """Metrics of each optimizer step, by the names of metrics.jsonl."""
    weights: dict[str, torch.Tensor]
    """The weights afterwards, by Hugging Face's names."""
    canary: np.ndarray | None = None
    """slime's trainer: (T,) log-probs of the canary's sequences under them."""


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """The weights in a Hugging Face folder, which has one file or several."""
    return {name: weight for file in folder.glob("*.safetensors") for name, weight in load_file(file).items()}


def assert_same_metrics(one: list[dict], other: list[dict], apart: Collection[str] = ()) -> None:
    """Asserts that at each step every metric that both have is equal but for rounding, except those in `apart`."""
    for mine, theirs in zip(one, other, strict=True):
        for name in mine.keys() & theirs.keys():
            if name not in apart and not name.startswith("time/"):
                bound = 2e-6 if name.startswith(("loss/", "grad_norm")) else 1e-5
                assert mine[name] == pytest.approx(theirs[name], rel=bound, abs=bound), name


def worst_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference between two models' weights; the learning rate is 5e-4."""
    assert one.keys() == other.keys()
    return max(float((weight - other[name]).abs().max()) for name, weight in one.items())


# ---------------------------------------------------------------------------------------------------- the batch


def make_batch(laptop: Path, folder: Path) -> Batch:
    """Makes a batch of answers of 1 to 24 tokens, right and wrong ones, with the log-probs and routes of other weights
    than those in training. laptop: a folder of `sat-slime prepare laptop`, for its tokenizer."""
    model, generating = folder / "model", folder / "generating"
    shutil.copytree(laptop / "model", model)
    shutil.copytree(laptop / "model", generating)
    rng = np.random.default_rng(5)
    problems = TASK.training_problems(PROMPTS, rng)
    unscored = [
        response_of(f"{p}-{s}", problem, (TASK.eos_id,) if s == 0 else answer_to(problem, rng, direct=s == 1))
        for p, problem in enumerate(problems)
        for s in range(SAMPLES)
    ]
    responses = in_trainer(_score, LabConfig(), model, generating, unscored)
    labels = [problem.label for problem in problems for _ in range(SAMPLES)]
    verdicts = [TASK.verdict(label, r.output_ids) for label, r in zip(labels, responses, strict=True)]
    return Batch(model, generating, RolloutBatch(TASK, 0, problems, responses, verdicts=verdicts))


def answer_to(problem: Problem, rng: np.random.Generator, direct: bool) -> tuple[int, ...]:
    """Tokens of an answer that may err."""
    return TASK.encode(TASK.demonstration(problem, rng, error_rate=0.2, direct=direct))


def response_of(request_id: str, problem: Problem, output_ids: tuple[int, ...]) -> Response:
    """A response that nobody has scored or routed yet."""
    model, tokens, prompt = LabConfig().model, len(output_ids), TASK.encode(problem.prompt)
    return Response(
        request_id=request_id,
        prompt_ids=prompt,
        output_ids=output_ids,
        log_probs=np.zeros(tokens, np.float32),
        routed_experts=np.zeros((len(prompt) + tokens - 1, model.layers, model.experts_per_token), np.uint8),
        finish_reason="stop",
        versions=np.zeros(tokens, np.int64),
    )


def _score(trainer, model: Path, generating: Path, responses: list[Response]) -> list[Response]:
    """The responses with the log-probs and routes of the weights that generated them. Leaves the weights in training in
    `model`, and the oldest in `generating`."""
    drawn = torch.Generator().manual_seed(SEED)

    def noise(weight: torch.Tensor) -> torch.Tensor:
        return trainer.config.model.hidden_size**-0.5 * torch.randn(weight.shape, generator=drawn)

    def move(scale: float) -> None:
        with torch.no_grad():
            for weight in matrices:
                weight += scale * noise(weight)

    matrices = [weight for _, weight in trainer.parameters if weight.dim() > 1]
    with torch.no_grad():
        for weight in matrices:
            weight.copy_(noise(weight))
    trainer.export_weights(model)
    scored = []
    for prompt in range(PROMPTS):
        move(AGES.get(prompt, 0.0))
        scored += [_scored(trainer, response) for response in responses[prompt * SAMPLES :][:SAMPLES]]
    trainer.export_weights(generating)
    return scored


def _scored(trainer, response: Response) -> Response:
    from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction

    (micro,) = trainer._microbatches([response])
    RouterReplay.set_global_router_replay_action(RouterReplayAction.RECORD)
    with torch.no_grad():
        log_probs = trainer.log_probs(trainer.model, micro, replay=False)
    recorded = RouterReplay.get_recorded_data()
    RouterReplay.clear_global_router_replay_action()
    RouterReplay.clear_global_indices()
    routes = torch.stack(recorded, dim=1).numpy().astype(np.uint8)
    return dataclasses.replace(response, log_probs=log_probs.numpy(), routed_experts=routes)


# ---------------------------------------------------------------------------------------------- the lab side


def train_lab(batch: Batch, configs: Mapping[str, LabConfig]) -> dict[str, Trained]:
    """Makes the optimizer steps of the lab trainer for each configuration, each in a new process."""
    return {name: in_trainer(_train, config, batch) for name, config in configs.items()}


def _train(trainer, batch: Batch) -> Trained:
    trainer.load_initial(batch.model)
    trainer._load_reference(batch.generating)
    with tempfile.TemporaryDirectory() as scratch:
        trainer.export_weights(Path(scratch) / "before")  # denominator `checkpoint` takes these for what generated
        metrics = [batch.rollout.metrics() | trainer.train(batch.rollout.graded())[0] for _ in range(STEPS)]
        trainer.export_weights(Path(scratch) / "after")
        return Trained(metrics, weights_of(Path(scratch) / "after"))


# ------------------------------------------------------------------------------------------------------ slime's side


def train_on_slime(slime: Slime, batch: Batch, cases: Mapping[str, Sequence[str]], folder: Path) -> dict[str, Trained]:
    """Makes the optimizer steps of slime's trainer for each case, which is settings over those of the laptop's run.

    The flags are those of `sat-slime launch`, parsed by slime. slime is imported once; the ranks of each case fork from
    that process.
    """
    folder.mkdir()
    batch.write_for_slime(folder / "batch.json")
    common = [
        f"cluster.slime_dir={slime.slime_dir}",
        f"cluster.megatron_dir={slime.megatron_dir}",
        f"slime.hf-checkpoint={batch.model}",
        f"slime.ref-load={batch.generating}",
        f"slime.prompt-data={slime.laptop / 'prompts.jsonl'}",
        f"slime.rollout-batch-size={PROMPTS}",
        f"slime.n-samples-per-prompt={SAMPLES}",
        "slime.eval-interval=0",
        "slime.save-interval=0",
        "slime.use-tensorboard=false",
    ]
    rows, variables = [], {}
    for name, settings in cases.items():
        config = load_config(FILE, [*common, *settings])
        run_dir = folder / name
        sent = slime_command(config, run_dir)
        run_dir.mkdir()
        for file, text in sent.files.items():
            Path(file).write_text(text)
        flags = [*sent.command[3:], "--load", str(batch.model)]  # `launch` loads a run's own checkpoints alone
        rows.append({"folder": str(run_dir), "flags": flags, "steps": STEPS, "ranks": config.train.gpus_per_node})
        variables = sent.env
    (folder / "cases.json").write_text(json.dumps(rows))
    path = os.pathsep.join([variables["PYTHONPATH"], str(ROOT)])
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        env={**os.environ, **variables, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return {name: _trained_on_slime(folder / name) for name in cases}


def _trained_on_slime(run_dir: Path) -> Trained:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return Trained(rows, weights_of(run_dir / "trained"), np.load(run_dir / "canary.npy"))
