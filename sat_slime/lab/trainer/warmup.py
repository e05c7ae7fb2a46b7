"""The initial model: made from scratch by a short supervised warm-up, and cached by what it depends on.

Most steps see correct demonstrations, the last ones careless ones: the model then knows the arithmetic but
answers sloppily, which is what RL has to unlearn. Both halves matter; a merely under-trained model hardly learns by RL.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from sat_slime.config.schema import LabConfig, TrainConfig
from sat_slime.lab.initial_model import is_model
from sat_slime.lab.trainer import parallel
from sat_slime.lab.trainer.hf_weights import save_hf
from sat_slime.lab.trainer.log_probs import token_log_probs
from sat_slime.lab.trainer.model import PackedLayout, build_model, forward_logits

REPORT_EVERY = 10
"""Steps of the warm-up after which it tells how far it is."""
_BALANCE_COEF = 0.01
"""Load-balancing loss during the warm-up, so that no expert is left unused."""


def warm_up(config: LabConfig, folder: Path) -> Iterator[int]:
    """Trains the initial model in this process and writes it to `folder` in fp32; yields now and then how many steps
    are made."""
    parallel.initialize()
    torch.manual_seed(config.warmup.seed)
    rng = np.random.default_rng(config.warmup.seed)
    warmup = config.warmup
    model = build_model(
        config.model, TrainConfig(), config.task.vocab_size, balance_coef=_BALANCE_COEF if config.model.is_moe else 0.0
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=warmup.lr, betas=(0.9, 0.98), weight_decay=0.0)
    clean_steps = round(warmup.clean_fraction * warmup.steps)
    for step in range(warmup.steps):
        for group in optimizer.param_groups:
            group["lr"] = warmup.lr * _schedule(step, clean_steps)
        loss = _imitation_loss(model, config, rng, careless=step >= clean_steps)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"warm-up step {step + 1} of {warmup.steps}: loss {loss.item():.3f}", flush=True)
        if (step + 1) % REPORT_EVERY == 0:
            yield step + 1
    # Two runs may warm up the same model at once: each writes its own folder, the first one to finish stays.
    own = folder.with_name(f"{folder.name}.{os.getpid()}")
    save_hf(model, config.model, config.task.vocab_size, config.task.eos_id, own)
    try:
        os.replace(own, folder)
    except OSError:
        if not is_model(folder):
            raise
        shutil.rmtree(own)
    parallel.shutdown()


def _schedule(step: int, clean_steps: int) -> float:
    """Return the factor of the learning rate: twenty steps of warm-up, then a cosine to 15 % at the end of the clean
    demonstrations, held for the careless."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(clean_steps, 1))))
    return min(1.0, (step + 1) / 20) * (0.15 + 0.85 * cosine)


def _imitation_loss(
    model: torch.nn.Module, config: LabConfig, rng: np.random.Generator, careless: bool
) -> torch.Tensor:
    warmup, task = config.warmup, config.task
    sequences, rows, offset = [], [], 0
    for problem in task.training_problems(warmup.batch_size, rng):
        answer = task.demonstration(
            problem,
            rng,
            error_rate=warmup.error_rate if careless else 0.0,
            direct=careless and rng.random() < warmup.direct_rate,
        )
        prompt = task.encode(problem.prompt)
        tokens = prompt + task.encode(answer)
        ours = torch.tensor([not tool for tool in task.written_by_tool(answer)])
        rows.append((torch.arange(len(prompt) - 1, len(tokens) - 1) + offset)[ours])
        sequences.append(tokens)
        offset += len(tokens)
    ids = torch.tensor([token for tokens in sequences for token in tokens], device=parallel.device())
    picked = torch.cat(rows).to(ids.device)
    logits = forward_logits(model, ids, PackedLayout.of([len(tokens) for tokens in sequences]))[picked]
    log_probs, _ = token_log_probs(logits, ids[picked + 1], temperature=1.0)
    return -log_probs.mean()
