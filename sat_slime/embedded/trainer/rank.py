"""One rank of the trainer: it turns the responses of a rollout batch into optimizer steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from torch import Tensor

from sat_slime.config.method_section import build_method
from sat_slime.config.schema import EmbeddedConfig
from sat_slime.embedded.rollout_batch import StepResult, lag_metrics, oldest_trained, step_is_diagnosed
from sat_slime.embedded.trainer import parallel, routing
from sat_slime.embedded.trainer.log_probs import Wanted
from sat_slime.embedded.trainer.optimizer import MasterOptimizer
from sat_slime.embedded.trainer.packing import MicroBatch, forwarded_tokens, pack, padded_tokens, plan_microbatches
from sat_slime.embedded.trainer.policy import PolicyState
from sat_slime.embedded.trainer.scoring import Rescorer, Scorer, Scores
from sat_slime.embedded.trainer.step import Passes, gather_columns, known_proximal, response_log_weights
from sat_slime.objective import (
    PolicyLoss,
    TokenBatch,
    policy_loss,
    response_mean_weights,
    threshold_scores,
    token_mean_weights,
)
from sat_slime.rollout.types import Response

RADIUS_STATE = "radius.json"
"""The file of a checkpoint with the state of the method's RadiusControl."""


class TrainerRank:
    """A rank; its methods are collective: call each on all ranks."""

    def __init__(self, config: EmbeddedConfig, rank: int, init_method: str) -> None:
        """Joins the other ranks and builds the models with random weights; `load_initial` or `load` fills them."""
        parallel.initialize(config.train, rank, init_method)
        self.config = config
        self.method = build_method(config.method)
        self.updates = 0
        """Optimizer updates so far: the version of the current weights."""
        self.policy = PolicyState(config)
        self.optimizer = MasterOptimizer(config.train, self.policy)
        self.scorer = Scorer(self.policy, self.method, config.rollout.temperature)
        self.rescorer: Rescorer | None = None
        if config.diagnose.every_n_steps:
            self.rescorer = Rescorer(config, self.scorer, self.method.routing_replay)
        self.data_group = parallel_state.get_data_parallel_group()
        self.is_first = rank == 0
        self.radius_state = self.method.radius_control.start() if self.method.radius_control else {}
        """The state of the method's RadiusControl, the same on all ranks."""

    # ------------------------------------------------------------------------------------ weights and checkpoints

    def load_initial(self, folder: Path) -> None:
        """Starts the policy and the reference model from a Hugging Face folder."""
        self.policy.load(folder)
        self.optimizer.take_from_policy()
        self.load_reference(folder)

    def load_reference(self, folder: Path) -> None:
        """Reads the weights of the reference model, where the loss has a KL term."""
        self.policy.load_reference(folder)

    def export_weights(self, folder: Path) -> int:
        """Writes the current weights for the rollout engines and remembers them as those of pi_l; returns their
        version."""
        self.policy.export(folder, self.updates)
        return self.updates

    def remember_weights(self, folder: Path, version: int) -> None:
        """Remembers weights that were exported before a resume as those of pi_l again."""
        self.policy.remember(folder, version)

    def save(self, folder: Path) -> None:
        """Writes this rank's weights and optimizer state into an existing folder, rank 0 also the radii's state."""
        self.optimizer.save(folder)
        if self.radius_state and self.is_first:
            (folder / RADIUS_STATE).write_text(json.dumps(self.radius_state))

    def load(self, folder: Path, updates: int) -> None:
        """Restores what `save` wrote after so many updates, bit for bit."""
        self.optimizer.load(folder, updates)
        self.updates = updates
        if self.radius_state:
            self.radius_state = json.loads((folder / RADIUS_STATE).read_text())

    # ---------------------------------------------------------------------------------------------------- training

    def train(self, responses: Sequence[Response], dump: bool = False) -> list[StepResult]:
        """Trains on one rollout batch, in `pipeline.optimizer_steps_per_rollout` steps.

        Args:
            responses: those of all ranks, graded.
            dump: also return the tokens' columns, as always of a diagnosed step.

        Raises:
            FloatingPointError: the gradient is not finite; the weights are then still those of the step before.
        """
        count = self.config.pipeline.optimizer_steps_per_rollout
        self.policy.oldest = oldest_trained(self.config, self.updates)
        size = len(responses) // count
        parts = [responses[i * size : (i + 1) * size] for i in range(count)]
        packed = [self._microbatches(part) for part in parts]
        # Before the first step, since with several steps the denominator `trainer` is the policy as the batch begins.
        packed = [self._with_proximal(part, microbatches) for part, microbatches in zip(parts, packed, strict=True)]
        return [self._step(part, microbatches, dump) for part, microbatches in zip(parts, packed, strict=True)]

    @torch.no_grad()
    def score(
        self, responses: Sequence[Response], *, replay: bool, temperature: float | None = None
    ) -> dict[str, np.ndarray]:
        """Return log pi of given responses under the current weights, by request id; this rank's share of them.

        Args:
            replay: route as the rollout engine did (R3), else freely.
            temperature: that of the softmax; unset: the rollout's.
        """
        scores = {}
        scorer = self.scorer if temperature is None else Scorer(self.policy, self.method, temperature)
        for micro in self._microbatches(responses):
            pieces = scorer.score(self.policy.model, micro, replay=replay).log_probs.cpu().split(micro.lengths)
            scores.update({name: piece.numpy() for name, piece in zip(micro.request_ids, pieces, strict=True)})
        return scores

    def _microbatches(self, responses: Sequence[Response]) -> list[MicroBatch]:
        train, model = self.config.train, self.config.model
        sizes = [forwarded_tokens(response) for response in responses]
        plan = plan_microbatches(sizes, train.data_parallel, train.tokens_per_microbatch)
        rows = padded_tokens(sizes, plan, multiple_of=train.tensor_parallel)
        shape = (model.layers, model.experts_per_token) if model.is_moe else None
        mine = plan[parallel_state.get_data_parallel_rank()]
        replays = self.method.top_p_replay
        return [
            pack(responses, part, tokens, shape, replays, self.policy.oldest)
            for part, tokens in zip(mine, rows, strict=True)
        ]

    def _with_proximal(self, responses: Sequence[Response], microbatches: list[MicroBatch]) -> list[MicroBatch]:
        """Return the micro-batches with the log-probs of the denominator, where it is not mu. With one step per
        rollout, `trainer` is the training forward itself."""
        if self.method.denominator == "checkpoint":
            proximal = self.scorer.checkpoint_log_probs(responses, microbatches)
        elif self.method.denominator == "trainer" and self.config.pipeline.optimizer_steps_per_rollout > 1:
            proximal = self.scorer.policy_log_probs(microbatches)
        else:
            return microbatches
        pairs = zip(microbatches, proximal, strict=True)
        return [replace(micro, proximal_log_probs=log_probs) for micro, log_probs in pairs]

    # ---------------------------------------------------------------------------------------------------- one step

    def _step(self, responses: Sequence[Response], microbatches: list[MicroBatch], dump: bool) -> StepResult:
        """Measures what must be measured before the weights change, takes the step, and reports it.

        Args:
            responses: those of all ranks that the step trains on.
            microbatches: this rank's part of them.
        """
        diagnosed = step_is_diagnosed(self.config, self.updates)
        checkpoint = self._split(responses, microbatches, diagnosed)
        recorded = dump or diagnosed
        rescored = self.rescorer.of_step(responses, microbatches) if self.rescorer and diagnosed else {}
        passes = self._forward_and_backward(responses, microbatches, self._step_threshold(microbatches), recorded)
        grad_norm, of_the_step = self._apply_gradients(passes)

        metrics = {
            **lag_metrics(responses, self.updates, self.policy.oldest),
            "grad_norm": grad_norm,
            **of_the_step,
            **passes.metrics(checkpoint, self.data_group),
        }
        if control := self.method.radius_control:
            if metrics["lag/max"] > 0:
                self.radius_state = control.advance(self.radius_state, metrics)
            metrics |= control.told(self.radius_state)
        histogram = passes.histogram(self.data_group)
        tokens = None
        if recorded:
            columns = {**passes.columns(checkpoint), **rescored}
            order = [response.request_id for response in responses]
            tokens = gather_columns(columns, microbatches, order, self.data_group)
        self.updates += 1
        return StepResult({**metrics, "step": self.updates}, histogram, tokens)

    def _split(self, responses: Sequence[Response], microbatches: list[MicroBatch], diagnosed: bool) -> Tensor | None:
        """Return (N,) log pi_l of this rank's tokens, when it is known already or its measurement is due."""
        every = self.config.diagnose.split_every_n_steps
        if self.method.denominator == "checkpoint":
            return known_proximal(microbatches)
        if diagnosed or (every and self.updates % every == 0):
            return torch.cat(self.scorer.checkpoint_log_probs(responses, microbatches))
        return None

    def _step_threshold(self, microbatches: list[MicroBatch]) -> Tensor | None:
        """Return the threshold of the method's judge over all tokens of the step (SAT's quantile, M2PO's), from a pass
        without gradients before the first backward."""
        judge = self.method.judge
        alone = len(microbatches) == 1 and self.data_group.size() == 1  # then the loss takes the same over its own
        if judge is None or not self.method.threshold_is_of_the_step or alone:
            return None
        log_probs = self.scorer.policy_log_probs(microbatches)
        scores = [
            threshold_scores(self.method, self._token_batch(micro, values))
            for micro, values in zip(microbatches, log_probs, strict=True)
        ]
        return judge.threshold_of(torch.cat(scores), self.data_group)

    def _forward_and_backward(
        self, responses: Sequence[Response], microbatches: list[MicroBatch], quantile: Tensor | None, recorded: bool
    ) -> Passes:
        """Sums the step's gradients over its micro-batches and over the ranks.

        Args:
            responses, microbatches: as in `_step`.
            recorded: whether the tokens' columns are taken from what this returns.
        """
        self.policy.model.zero_grad_buffer()
        passes = Passes(microbatches, counts_flips=self.config.model.is_moe and not self.method.routing_replay)
        for micro in microbatches:
            scores = self._training_forward(micro, passes, recorded)
            loss = self._loss(responses, micro, scores, quantile)
            # Megatron averages gradients over data-parallel ranks; the loss's weights already count the whole step.
            (loss.total * self.data_group.size()).backward()
            passes.losses.add(loss.metrics, int(micro.mask.sum()))
            passes.take(scores, recorded)
        finalize_model_grads([self.policy.model])
        return passes

    def _training_forward(self, micro: MicroBatch, passes: Passes, recorded: bool) -> Scores:
        """Return log-probs, entropies and heads, with gradients as the loss needs them. Counts in `passes` the tokens
        that the trainer routes differently than the engine."""
        routes: list[Tensor] = []
        with routing.record(routes) if passes.counts_flips else nullcontext():
            scores = self.scorer.score(
                self.policy.model,
                micro,
                replay=self.method.routing_replay,
                entropy="gradient" if self.config.loss.entropy_coef else "value",
                head=self._head_wanted(micro, recorded),
            )
        if passes.counts_flips:
            passes.flips += torch.tensor(routing.count_flips(routes, micro.routed_experts, micro.rows[micro.mask]))
        return scores

    def _head_wanted(self, micro: MicroBatch, recorded: bool) -> Wanted:
        """Says what the step needs of log pi of the whole vocabulary, which is as large as the logits."""
        if "heads" in self.method.needs:
            return "gradient"
        dumped = recorded and self.config.dump.heads and micro.distribution is not None
        return "value" if dumped else "none"

    def _loss(
        self, responses: Sequence[Response], micro: MicroBatch, scores: Scores, quantile: Tensor | None
    ) -> PolicyLoss:
        """Return the objective on one micro-batch, with weights that count the whole step."""
        settings = self.config.loss
        batch = self._token_batch(micro, scores.log_probs, scores.head)
        if settings.reduction == "token_mean":
            trained = sum(int((response.versions >= self.policy.oldest).sum()) for response in responses)
            weights = token_mean_weights(batch.mask, trained)
        else:
            weights = response_mean_weights(batch.mask, batch.lengths, len(responses))
        return policy_loss(
            self.method,
            batch,
            weights,
            kl_coef=settings.kl_coef,
            entropy_coef=settings.entropy_coef,
            ref_log_probs=self.scorer.reference_log_probs(micro),
            entropy=scores.entropy,
            quantile=quantile,
            radius_scale=self.radius_state.get("scale", 1.0),
        )

    def _token_batch(self, micro: MicroBatch, log_probs: Tensor, head: Tensor | None = None) -> TokenBatch:
        """Returns the objective's view of a micro-batch; see MicroBatch.token_batch."""
        return micro.token_batch(self.method.needs, self.updates, log_probs, head)

    def _apply_gradients(self, passes: Passes) -> tuple[float, dict[str, float]]:
        """Changes the weights; the gradient's norm, and vcpo/* and trpo/* where the method scales or constrains the
        step."""
        number, scale, constraint = self.updates + 1, self.method.step_scale, self.method.step_constraint
        metrics = scale.scale(self._log_weights(passes), self.data_group) if scale else {}
        lr_factor = metrics[f"{scale.prefix()}/scale"] if scale else 1.0
        if constraint is None:
            return self.optimizer.step(number, lr_factor), metrics
        norm, constrained = self.optimizer.constrained_step(
            number, lr_factor, constraint, lambda: self.scorer.divergence(passes.microbatches)
        )
        return norm, {**metrics, **constrained}

    def _log_weights(self, passes: Passes) -> Tensor:
        """Return (responses,) log of prod pi_proximal / mu over each response of this rank."""
        weights = [
            response_log_weights(self.method, self._token_batch(micro, log_probs))
            for micro, log_probs in zip(passes.microbatches, passes.log_probs, strict=True)
        ]
        return torch.cat(weights)
