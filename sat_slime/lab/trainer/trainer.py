"""The trainer: it turns the responses of a rollout batch into optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from megatron.core.distributed import finalize_model_grads
from torch import Tensor

from sat_slime.config.method_section import build_method
from sat_slime.config.schema import LabConfig
from sat_slime.lab.rollout_batch import StepResult, lag_metrics, step_is_diagnosed
from sat_slime.lab.trainer import parallel, routing
from sat_slime.lab.trainer.loss import PolicyLoss, policy_loss, token_mean_weights
from sat_slime.lab.trainer.optimizer import MasterOptimizer
from sat_slime.lab.trainer.packing import MicroBatch, forwarded_tokens, pack, plan_microbatches
from sat_slime.lab.trainer.policy import PolicyState
from sat_slime.lab.trainer.scoring import Rescorer, Scorer, Scores
from sat_slime.lab.trainer.step import Passes, known_proximal
from sat_slime.objective import TokenBatch, broken_tokens, threshold_scores
from sat_slime.objective.tokens import response_mean_weights
from sat_slime.rollout.types import TOOL, Response


class Trainer:
    """The policy, its optimizer and the weights that it is compared with; one in a process."""

    def __init__(self, config: LabConfig) -> None:
        """Builds the models with random weights; `load_initial` or `load` fills them."""
        parallel.initialize()
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
        """Writes weights and optimizer state into an existing folder."""
        self.optimizer.save(folder)

    def load(self, folder: Path, updates: int) -> None:
        """Restores what `save` wrote after so many updates, bit for bit."""
        self.optimizer.load(folder, updates)
        self.updates = updates

    # ---------------------------------------------------------------------------------------------------- training

    def train(self, responses: Sequence[Response], dump: bool = False) -> list[StepResult]:
        """Trains on one rollout batch, in `pipeline.optimizer_steps_per_rollout` steps.

        Args:
            responses: graded.
            dump: also return the tokens' columns, as always of a diagnosed step.

        Raises:
            FloatingPointError: the gradient is not finite; the weights are then still those of the step before.
        """
        count = self.config.pipeline.optimizer_steps_per_rollout
        size = len(responses) // count
        parts = [responses[i * size : (i + 1) * size] for i in range(count)]
        packed = [self._microbatches(part) for part in parts]
        # Before the first step, since with several steps the denominator `trainer` is the policy as the batch begins.
        packed = [self._with_proximal(microbatches) for microbatches in packed]
        return [self._step(part, microbatches, dump) for part, microbatches in zip(parts, packed, strict=True)]

    @torch.no_grad()
    def score(
        self, responses: Sequence[Response], *, replay: bool, temperature: float | None = None
    ) -> dict[str, np.ndarray]:
        """Return log pi of given responses under the current weights, by request id.

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
        sizes = [forwarded_tokens(response) for response in responses]
        plan = plan_microbatches(sizes, self.config.train.tokens_per_microbatch)
        return [pack(responses, part, self.config.model.is_moe, self.method.top_p_replay) for part in plan]

    def _with_proximal(self, microbatches: list[MicroBatch]) -> list[MicroBatch]:
        """Return the micro-batches with the log-probs of the denominator, where it is not mu. With one step per
        rollout, `trainer` is the training forward itself."""
        if self.method.denominator == "checkpoint":
            proximal = self.scorer.checkpoint_log_probs(microbatches)
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
            responses: those that the step trains on.
            microbatches: the same, packed.
        """
        diagnosed = step_is_diagnosed(self.config, self.updates)
        checkpoint = self._split(microbatches, diagnosed)
        recorded = dump or diagnosed
        rescored = self.rescorer.of_step(microbatches) if self.rescorer and diagnosed else {}
        passes = self._forward_and_backward(responses, microbatches, self._step_threshold(microbatches))
        grad_norm, of_the_step = self._apply_gradients(passes)

        metrics = {
            **lag_metrics(responses, self.updates),
            "grad_norm": grad_norm,
            **of_the_step,
            **passes.metrics(checkpoint),
        }
        histogram = passes.histogram()
        tokens = None
        if recorded:
            columns = {**passes.columns(checkpoint), **rescored}
            tokens = {name: values.detach().cpu().numpy() for name, values in columns.items()}
        self.updates += 1
        return StepResult({**metrics, "step": self.updates}, histogram, tokens)

    def _split(self, microbatches: list[MicroBatch], diagnosed: bool) -> Tensor | None:
        """Return (N,) log pi_l, when it is known already or its measurement is due."""
        every = self.config.diagnose.split_every_n_steps
        if self.method.denominator == "checkpoint":
            return known_proximal(microbatches)
        if diagnosed or (every and self.updates % every == 0):
            return torch.cat(self.scorer.checkpoint_log_probs(microbatches))
        return None

    def _step_threshold(self, microbatches: list[MicroBatch]) -> Tensor | None:
        """Return the threshold of the method's judge over all tokens of the step (SAT's quantile, M2PO's), from a pass
        without gradients before the first backward."""
        judge = self.method.judge
        alone = len(microbatches) == 1  # then the loss takes the same over its own
        if judge is None or not self.method.threshold_is_of_the_step or alone:
            return None
        log_probs = self.scorer.policy_log_probs(microbatches)
        scores = [
            threshold_scores(self.method, self._token_batch(micro, values))
            for micro, values in zip(microbatches, log_probs, strict=True)
        ]
        return judge.threshold_of(torch.cat(scores))

    def _forward_and_backward(
        self, responses: Sequence[Response], microbatches: list[MicroBatch], threshold: Tensor | None
    ) -> Passes:
        """Sums the step's gradients over its micro-batches.

        Args:
            responses, microbatches: as in `_step`.
        """
        self.policy.model.zero_grad_buffer()
        passes = Passes(microbatches, counts_flips=self.config.model.is_moe and not self.method.routing_replay)
        for micro in microbatches:
            scores = self._training_forward(micro, passes)
            loss = self._loss(responses, micro, scores, threshold)
            loss.total.backward()
            passes.losses.add(loss.metrics, loss.surrogate.n)
            passes.loss = passes.loss + loss.total.detach()
            passes.take(scores)
        finalize_model_grads([self.policy.model])
        return passes

    def _training_forward(self, micro: MicroBatch, passes: Passes) -> Scores:
        """Return log-probs and entropies, with gradients as the loss needs them. Counts in `passes` the tokens that the
        trainer routes differently than the engine."""
        routes: list[Tensor] = []
        with routing.record(routes) if passes.counts_flips else nullcontext():
            scores = self.scorer.score(
                self.policy.model,
                micro,
                replay=self.method.routing_replay,
                entropy="gradient" if self.config.loss.entropy_coef else "value",
            )
        if passes.counts_flips:
            assert micro.routed_experts is not None, "the engine of a MoE model reports its routes"
            rows = micro.rows[micro.mask]
            passes.flips.append(routing.flips_by_layer(routes, micro.routed_experts, rows).any(1))
        return scores

    def _loss(
        self, responses: Sequence[Response], micro: MicroBatch, scores: Scores, threshold: Tensor | None
    ) -> PolicyLoss:
        """Return the objective on one micro-batch, with weights that count the whole step."""
        settings = self.config.loss
        batch = self._token_batch(micro, scores.log_probs)
        if settings.reduction == "token_mean":
            trained = sum(int((response.versions != TOOL).sum()) for response in responses)
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
            threshold=threshold,
        )

    def _token_batch(self, micro: MicroBatch, log_probs: Tensor) -> TokenBatch:
        """Returns the objective's view of a micro-batch; see MicroBatch.token_batch."""
        return micro.token_batch(self.method.needs, self.updates, log_probs)

    def _apply_gradients(self, passes: Passes) -> tuple[float, dict[str, float]]:
        """Changes the weights; the gradient's norm, and trpo/* where the method constrains the step."""
        number, constraint = self.updates + 1, self.method.step_constraint
        try:
            if constraint is None:
                return self.optimizer.step(number, passes.loss), {}
            return self.optimizer.constrained_step(
                number, passes.loss, constraint, lambda: self.scorer.divergence(passes.microbatches)
            )
        except FloatingPointError as error:
            pairs = zip(passes.microbatches, passes.log_probs, strict=True)
            broken = [broken_tokens(self._token_batch(micro, log_probs)) for micro, log_probs in pairs]
            said = next(filter(None, broken), "")
            raise FloatingPointError(f"{error}{said and f'; in one micro-batch {said}'}") from None
