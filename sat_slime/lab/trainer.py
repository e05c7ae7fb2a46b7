"""The trainer: it turns the responses of a rollout batch into optimizer steps."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, SupportsFloat

import numpy as np
import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.func import functional_call

from sat_slime.config.method_section import build_method
from sat_slime.config.schema import LabConfig, LossConfig, TrainConfig
from sat_slime.lab import model
from sat_slime.lab.batch import is_due, lag_metrics
from sat_slime.lab.dump import DumpedStep, write_dump
from sat_slime.lab.initial_model import FILES, is_model
from sat_slime.lab.model import PackedLayout, build_model, forward_logits, load_hf, save_hf
from sat_slime.lab.responses import Response
from sat_slime.objective import (
    Method,
    MetricAccumulator,
    Result,
    TokenBatch,
    broken_tokens,
    mismatch_metrics,
    policy_surrogate,
    threshold_scores,
)
from sat_slime.objective.tokens import response_mean_weights
from sat_slime.rollout.canary import prefix_length

FILE = "trainer.safetensors"
"""The file of a checkpoint with the masters and AdamW's state."""
LOW_VARIANCE_KL_MAX = 10.0
"""Bound of the estimate per token, as in slime."""
Columns = dict[str, Tensor]
"""Measurements of each token: one tensor (tokens,) for each name of a token dump."""

_BALANCE_COEF = 0.01
"""Load-balancing loss during the warm-up, so that no expert is left unused."""


@dataclass(frozen=True)
class MicroBatch:
    """Responses in one packed row. N forwarded tokens, R response tokens.

    The last token of a response is a target only, so a response of P + T tokens puts P + T - 1 into the row: just the
    tokens that the rollout engine forwarded, and for which it reported experts.
    """

    token_ids: Tensor
    """(N,) forwarded tokens."""
    layout: PackedLayout
    rows: Tensor
    """(R,) place in the row whose logits predict each response token."""
    output_ids: Tensor
    """(R,) response tokens, the targets of the log-probs."""
    versions: Tensor
    """(R,) weight version that generated each response token."""
    routed_experts: Tensor | None
    """(N, layers, top-k) int64 experts of the rollout engine."""
    tokens: TokenBatch
    """The R response tokens as the objective takes them, with log mu in the place of the log pi that is yet to come."""


def forwarded_tokens(response: Response) -> int:
    """Return the number of tokens of a response that are inputs: all but its last."""
    return len(response.prompt_ids) + len(response.output_ids) - 1


def plan_microbatches(sizes: list[int], tokens_per_microbatch: int) -> list[list[int]]:
    """Cuts samples of so many forwarded tokens, in order, into the fewest micro-batches of nearly equal size within the
    bound; each is a list of sample indices."""
    ends = np.cumsum(sizes)
    for count in range(max(1, -(-sum(sizes) // tokens_per_microbatch)), len(sizes) + 1):
        parts: list[list[int]] = [[] for _ in range(count)]
        for sample, end in enumerate(ends):
            middle = end - sizes[sample] / 2  # a sample belongs to the part in which its middle token falls
            parts[min(int(middle * count / ends[-1]), count - 1)].append(sample)
        if all(sum(sizes[i] for i in part) <= tokens_per_microbatch for part in parts):
            return [part for part in parts if part]
    # Uneven sizes can defeat equal cuts at any count; alone, each sample is as small as it gets.
    return [[i] for i in range(len(sizes))]


def pack(responses: Sequence[Response]) -> MicroBatch:
    """Packs responses into a row."""
    lengths = [forwarded_tokens(response) for response in responses]
    ends = np.cumsum(lengths)
    outputs = [len(response.output_ids) for response in responses]
    rows = [np.arange(end - count, end) for end, count in zip(ends, outputs, strict=True)]

    def joined(arrays: list[np.ndarray], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.as_tensor(np.concatenate(arrays), dtype=dtype)

    log_mu = joined([response.log_probs for response in responses])
    routes = [response.routed_experts for response in responses if response.routed_experts is not None]
    return MicroBatch(
        token_ids=torch.tensor([t for r in responses for t in (*r.prompt_ids, *r.output_ids[:-1])]),
        layout=PackedLayout.of(lengths),
        rows=joined(rows, torch.int64),
        output_ids=torch.tensor([t for r in responses for t in r.output_ids]),
        versions=joined([response.versions for response in responses], torch.int64),
        routed_experts=joined(routes, torch.int64) if routes else None,
        tokens=TokenBatch(
            log_probs=log_mu,
            rollout_log_probs=log_mu,
            advantages=torch.tensor(np.repeat([r.advantage for r in responses], outputs), dtype=torch.float32),
            mask=torch.ones_like(log_mu, dtype=torch.bool),
            lengths=outputs,
        ),
    )


def _joined(columns: list[Columns]) -> Columns:
    """Return the columns of all micro-batches, one after the other."""
    return {name: torch.cat([each[name] for each in columns]) for name in columns[0]}


# ----------------------------------------------------------------------------------------------------- log-probs, loss


def token_log_probs(logits: Tensor, targets: Tensor, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
    """Return (N,) log pi(target) under softmax(logits), and (N,) entropies in nats, with a gradient where asked for.

    Args:
        logits: (N, vocabulary) fp32, divided by the temperature: the rollout engine samples from such, so the trainer's
            policy is that one too.
        targets: (N,) token ids.
    """
    shifted = logits - logits.detach().amax(-1, keepdim=True)
    exp = shifted.exp()
    total = exp.sum(-1)
    log_total = total.log()
    picked = shifted.gather(-1, targets[:, None])[:, 0]
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        nats = log_total - (exp * shifted).sum(-1) / total
    return picked - log_total, nats


def low_variance_kl(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Return the (N,) estimate of KL(pi || ref) per token: e^x - 1 - x with x = log ref - log pi, at most 10 (slime's
    low_var_kl). Zero gradient where it is cut at 10."""
    # e^20 is far above the cut: bounding x there keeps infinities out of the gradient and changes no value.
    x = (ref_log_probs.to(log_probs.dtype) - log_probs).clamp(max=2 * LOW_VARIANCE_KL_MAX)
    return (x.exp() - 1 - x).clamp(min=-LOW_VARIANCE_KL_MAX, max=LOW_VARIANCE_KL_MAX)


def policy_loss(
    method: Method,
    batch: TokenBatch,
    token_weights: Tensor,
    settings: LossConfig,
    *,
    entropy: Tensor,
    ref_log_probs: Tensor | None = None,
    threshold: Tensor | float | None = None,
) -> tuple[Tensor, dict[str, SupportsFloat], Result]:
    """Return sum_t w_t (-S_t + kl_coef k3_t - entropy_coef H_t) over the tokens of one micro-batch, to be minimized;
    its metrics; and the surrogate. Over micro-batches it adds up to the loss of the batch.

    Args:
        token_weights: (N,) w, 0 on inactive tokens; rounded to the dtype that the batch is computed with.
        settings: the coefficients; its reduction is that of the weights.
        ref_log_probs: (N,) of the reference model.
        entropy: (N,) entropy of the policy at each token; needs grad only where entropy_coef is not 0.
        threshold: as in policy_surrogate.
    """
    surrogate = policy_surrogate(method, batch, threshold=threshold)
    dtype, mask = surrogate.values.dtype, batch.mask
    weights = token_weights.to(dtype)
    total = policy = -(weights * surrogate.values).sum()
    metrics: dict[str, SupportsFloat] = {"loss/policy": policy.detach()}
    if ref_log_probs is not None:
        kl = (weights * low_variance_kl(batch.log_probs.to(dtype), ref_log_probs).where(mask, 0.0)).sum()
        metrics["loss/kl"] = kl.detach()
        total = total + settings.kl_coef * kl if settings.kl_coef else total
    mean_entropy = (weights * entropy.to(dtype).where(mask, 0.0)).sum()
    metrics["loss/entropy"] = mean_entropy.detach()
    total = total - settings.entropy_coef * mean_entropy if settings.entropy_coef else total
    return total, {"loss/total": total.detach(), **metrics, **surrogate.metrics}, surrogate


class MasterOptimizer:
    """AdamW on the masters: fp32 copies of a model's weights."""

    def __init__(self, train: TrainConfig, parameters: list[tuple[str, torch.nn.Parameter]]) -> None:
        self._train, self._parameters = train, parameters
        self.masters = [torch.nn.Parameter(parameter.detach().float().clone()) for _, parameter in parameters]
        self._adamw = torch.optim.AdamW(
            [
                {"params": [m for m in self.masters if m.dim() > 1], "weight_decay": train.weight_decay},
                {"params": [m for m in self.masters if m.dim() <= 1], "weight_decay": 0.0},
            ],
            lr=train.lr,
            betas=(train.adam_beta1, train.adam_beta2),
            eps=train.adam_eps,
            fused=True,
        )

    @torch.no_grad()
    def step(self, number: int, loss: Tensor) -> float:
        """Clips and applies the gradients that Megatron has summed; returns their norm before clipping. number: the
        optimizer step's, for an error. Raises FloatingPointError, and leaves the weights as they are, where the
        gradient or the loss is not finite."""
        square = (loss - loss).float()  # NaN where the loss is not finite
        for (_, parameter), master in zip(self._parameters, self.masters, strict=True):
            master.grad = parameter.main_grad.to(master.dtype)  # type: ignore[attr-defined]
            square += master.grad.square().sum()
        if not torch.isfinite(square):
            raise FloatingPointError(
                f"the loss or the gradient of optimizer step {number} is not finite: start another run with a lower "
                "train.lr"
            )
        norm = float(square.sqrt())
        scale = min(1.0, self._train.grad_clip / (norm + 1e-6))
        torch._foreach_mul_([master.grad for master in self.masters if master.grad is not None], scale)
        self._adamw.step()
        for (_, parameter), master in zip(self._parameters, self.masters, strict=True):
            parameter.copy_(master)
            master.grad = None
        return norm

    def save(self, folder: Path) -> None:
        """Writes the masters and AdamW's state into an existing folder."""
        tensors = {}
        for (name, _), master in zip(self._parameters, self.masters, strict=True):
            tensors[f"{name}/weight"] = master.detach()
            tensors |= {f"{name}/{key}": value for key, value in self._adamw.state.get(master, {}).items()}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / FILE)

    @torch.no_grad()
    def load(self, folder: Path, updates: int) -> None:
        """Restores what `save` wrote after so many updates, and gives the model its weights, bit for bit."""
        tensors = load_file(folder / FILE)
        for (name, parameter), master in zip(self._parameters, self.masters, strict=True):
            master.copy_(tensors[f"{name}/weight"])
            parameter.copy_(master)
            if updates:
                self._adamw.state[master] = {key: tensors[f"{name}/{key}"] for key in ("step", "exp_avg", "exp_avg_sq")}


class Trainer:
    """The policy, its optimizer and the weights that it is compared with; one in a process."""

    def __init__(self, config: LabConfig) -> None:
        """Builds the models with random weights; `load_initial` or `load` fills them."""
        model.initialize()
        self.config = config
        self.method = build_method(config.method)
        self.updates = 0
        """Optimizer updates so far: the version of the current weights."""
        policy = build_model(config, config.train.dtype, routing_replay=True)
        sums = DistributedDataParallelConfig(grad_reduce_in_fp32=True)
        self.model = DistributedDataParallel(policy.config, sums, policy)
        self.parameters = list(self.model.module.named_parameters())
        self.reference: torch.nn.Module | None = None
        """The model that the loss's KL compares with; None where the loss has no KL."""
        if config.loss.kl_coef:
            # It routes freely, as the reference forward of slime does, also under R3.
            self.reference = build_model(config, config.train.dtype).requires_grad_(False)
        self.generating: dict[int, list[Tensor]] = {}
        """The weights of pi_l, which the engine was given, by version; only those that are still in use."""

    # ------------------------------------------------------------------------------------ weights and checkpoints

    def load_initial(self, folder: Path) -> None:
        """Starts the policy and the reference model from a Hugging Face folder."""
        load_hf(self.model.module, self.config, folder)
        self.optimizer = MasterOptimizer(self.config.train, self.parameters)
        if self.reference is not None:
            load_hf(self.reference, self.config, folder)

    def load(self, saved: Path, updates: int, initial: Path, generating: Mapping[int, Path]) -> None:
        """Restores what `save` wrote after so many updates, bit for bit; the reference model; and, by version, weights
        that were exported before as those of pi_l."""
        self.load_initial(initial)
        for version, folder in generating.items():
            load_hf(self.model.module, self.config, folder)
            self._remember(version)
        self.optimizer.load(saved, updates)
        self.updates = updates

    def save(self, folder: Path) -> None:
        """Writes weights and optimizer state into an existing folder."""
        self.optimizer.save(folder)

    def export_weights(self, folder: Path) -> int:
        """Writes the current weights for the engine, remembers them as those of pi_l, and returns their version."""
        save_hf(self.model.module, self.config, folder)
        self._remember(self.updates)
        return self.updates

    def _remember(self, version: int) -> None:
        self.generating[version] = self._weights()
        for old in sorted(self.generating)[: -self.config.pipeline.weights_in_use]:
            del self.generating[old]

    def _weights(self) -> list[Tensor]:
        return [parameter.detach().clone() for _, parameter in self.parameters]

    @torch.no_grad()
    def _set_weights(self, weights: list[Tensor]) -> None:
        for (_, parameter), weight in zip(self.parameters, weights, strict=True):
            parameter.copy_(weight)

    # ----------------------------------------------------------------------------------------------------- scoring

    def _logits(self, network: Callable[..., Tensor], micro: MicroBatch, *, replay: bool) -> Tensor:
        """Return the (R, vocabulary) fp32 logits that predict the response tokens, divided by the temperature. replay:
        route as the rollout engine did (R3), where the model routes; else freely, or as the caller has set."""
        routes = micro.routed_experts if replay else None
        with nullcontext() if routes is None else model.replay(routes):
            logits = forward_logits(network, micro.token_ids, micro.layout)[micro.rows]
        return logits.float() / self.config.rollout.temperature

    def log_probs(self, network: Callable[..., Tensor], micro: MicroBatch, *, replay: bool) -> Tensor:
        """Return (R,) log pi of the response tokens; see `_logits`."""
        return token_log_probs(self._logits(network, micro, replay=replay), micro.output_ids)[0]

    @torch.no_grad()
    def score_canary(self, sequences: Sequence[Sequence[int]]) -> np.ndarray:
        """Return (T,) log pi of the canary's tokens behind their prefixes, sequence by sequence, at temperature 1."""
        tokens, start = torch.tensor(sequences), prefix_length(sequences)
        count, length = tokens.shape
        logits = forward_logits(self.model, tokens.flatten(), PackedLayout.of([length] * count))
        logits = logits.view(count, length, -1)[:, start - 1 : -1].flatten(0, 1)
        return token_log_probs(logits.float(), tokens[:, start:].flatten())[0].numpy()

    @torch.no_grad()
    def _policy_log_probs(self, micro: MicroBatch) -> Tensor:
        return self.log_probs(self.model, micro, replay=self.method.has("r3"))

    def _checkpoint_log_probs(self, micros: list[MicroBatch]) -> Tensor:
        """Return (tokens,) log pi_l: under the weights that generated each token (Eq. split)."""
        return self._under_generating_weights(micros, lambda micro: {"pi_l": self._policy_log_probs(micro)})["pi_l"]

    def _under_generating_weights(self, micros: list[MicroBatch], score: Callable[[MicroBatch], Columns]) -> Columns:
        """Return the scores of all tokens, by `score` while the policy has the weights that generated them."""
        versions = torch.cat([micro.versions for micro in micros])
        current, result = self._weights(), Columns()
        for version in sorted(set(versions.tolist())):
            self._set_weights(self.generating[version])
            for name, values in _joined([score(micro) for micro in micros]).items():
                result.setdefault(name, torch.zeros_like(values))[versions == version] = values[versions == version]
        self._set_weights(current)
        return result

    def _diagnosis(self, micros: list[MicroBatch]) -> Columns:
        """Return what a diagnosis compares, of the step's tokens and before the step. Columns of the weights that
        generated are named checkpoint_*, the others are of the current weights."""

        def as_generated(micro: MicroBatch) -> Columns:
            return {**self._routings(micro), "log_probs_engine_dtype": self._log_probs_in_engine_dtype(micro)}

        before = self._under_generating_weights(micros, as_generated)
        now = _joined([self._routings(micro) for micro in micros])
        return now | {f"checkpoint_{name}": values for name, values in before.items()}

    @torch.no_grad()
    def _routings(self, micro: MicroBatch) -> Columns:
        """Return log-probs with the trainer's own routing and with the engine's; nothing of a dense model."""
        if micro.routed_experts is None:
            return {}
        own, along = (self.log_probs(self.model, micro, replay=replay) for replay in (False, True))
        return {"log_probs_own_routing": own, "log_probs_replayed": along}

    @torch.no_grad()
    def _log_probs_in_engine_dtype(self, micro: MicroBatch) -> Tensor:
        """Return (R,) log-probs by weights and arithmetic in the engine's data type, along the engine's routes."""
        dtype = getattr(torch, self.config.rollout.dtype)
        weights = {name: parameter.to(dtype) for name, parameter in self.parameters}

        def network(*arguments: Any, **keywords: Any) -> Tensor:
            return functional_call(self.model.module, weights, arguments, keywords)

        return self.log_probs(network, micro, replay=True)

    def train(
        self, responses: Sequence[Response], dump: Path | None = None, every_step: bool = False
    ) -> list[dict[str, float]]:
        """Trains on one rollout batch of graded responses, in `pipeline.optimizer_steps_per_rollout` steps; returns the
        metrics of each. dump: file for the tokens of the diagnosed steps; with `every_step` of all.

        Raises:
            FloatingPointError: the gradient or the loss is not finite; the weights are those of the step before.
            OSError: the dump cannot be written.
        """
        count = self.config.pipeline.optimizer_steps_per_rollout
        size = len(responses) // count
        parts = [responses[i * size : (i + 1) * size] for i in range(count)]
        # Before the first step, since with several steps the denominator `trainer` is the policy as the batch begins.
        packed = [self._with_proximal(self._microbatches(part)) for part in parts]
        steps = [self._step(part, micros, every_step) for part, micros in zip(parts, packed, strict=True)]
        dumped = [step for _, step in steps]
        if dump and any(dumped):
            write_dump(dump, self.method, dumped)
        return [metrics for metrics, _ in steps]

    def _microbatches(self, responses: Sequence[Response]) -> list[MicroBatch]:
        sizes = [forwarded_tokens(response) for response in responses]
        plan = plan_microbatches(sizes, self.config.train.tokens_per_microbatch)
        return [pack([responses[i] for i in part]) for part in plan]

    def _with_proximal(self, micros: list[MicroBatch]) -> list[MicroBatch]:
        """Return the micro-batches with the log-probs of the denominator, where it is not mu. With one step per
        rollout, `trainer` is the training forward itself."""
        if self.method.denominator == "checkpoint":
            proximal = self._checkpoint_log_probs(micros)
        elif self.method.denominator == "trainer" and self.config.pipeline.optimizer_steps_per_rollout > 1:
            proximal = torch.cat([self._policy_log_probs(micro) for micro in micros])
        else:
            return micros
        parts = proximal.split([len(micro.rows) for micro in micros])
        return [
            replace(micro, tokens=replace(micro.tokens, proximal_log_probs=part))
            for micro, part in zip(micros, parts, strict=True)
        ]

    def _step(
        self, responses: Sequence[Response], micros: list[MicroBatch], dump: bool
    ) -> tuple[dict[str, float], DumpedStep | None]:
        """Takes one optimizer step. Returns its metrics, and where it is diagnosed or to be dumped what its dump has.

        It measures what must be measured before the weights change (log-probs under those that generated, a diagnosis,
        the threshold), sums the gradients of the micro-batches and changes the weights. micros: the responses, packed.
        """
        diagnosed = is_due(self.updates, self.config.diagnose.every_n_steps)
        given = [values for micro in micros if (values := micro.tokens.proximal_log_probs) is not None]
        proximal = torch.cat(given) if given else None
        checkpoint = proximal if self.method.denominator == "checkpoint" else None
        if checkpoint is None and (diagnosed or is_due(self.updates, self.config.diagnose.split_every_n_steps)):
            checkpoint = self._checkpoint_log_probs(micros)
        columns = self._diagnosis(micros) if diagnosed else {}
        threshold = self._step_threshold(micros)

        self.model.zero_grad_buffer()
        losses, loss = MetricAccumulator(), torch.zeros(())
        scored: list[Tensor] = []
        for micro in micros:
            logits = self._logits(self.model, micro, replay=self.method.has("r3"))
            scores = token_log_probs(logits, micro.output_ids, entropy_gradient=bool(self.config.loss.entropy_coef))
            total, of_the_loss, surrogate = self._loss(responses, micro, *scores, threshold)
            total.backward()
            losses.add(of_the_loss, surrogate.n)
            loss = loss + total.detach()
            scored.append(scores[0].detach())
        finalize_model_grads([self.model])
        try:
            grad_norm = self.optimizer.step(self.updates + 1, loss)
        except FloatingPointError as error:
            batches = [self._token_batch(micro, of_it) for micro, of_it in zip(micros, scored, strict=True)]
            said = next(filter(None, map(broken_tokens, batches)), "")
            raise FloatingPointError(f"{error}{said and f'; in one micro-batch {said}'}") from None

        log_probs = torch.cat(scored)
        mu = torch.cat([micro.tokens.rollout_log_probs for micro in micros])
        metrics = {
            **lag_metrics(responses, self.updates),
            "grad_norm": grad_norm,
            **losses.reduce(),
            **mismatch_metrics(log_probs, mu, torch.ones_like(mu, dtype=torch.bool), checkpoint_log_probs=checkpoint),
        }
        dumped = None
        if dump or diagnosed:
            columns |= {
                "log_probs": log_probs,
                "rollout_log_probs": mu,
                "advantages": torch.cat([micro.tokens.advantages for micro in micros]),
                "loss_masks": torch.ones_like(mu, dtype=torch.int32),
                "lags": self.updates - torch.cat([micro.versions for micro in micros]),
            }
            if checkpoint is not None:
                columns["checkpoint_log_probs"] = checkpoint
            if proximal is not None and proximal is not checkpoint:  # that of denominator `checkpoint` is pi_l
                columns["proximal_log_probs"] = proximal
            dumped = DumpedStep(responses, [len(micro.tokens.lengths) for micro in micros], columns)
        self.updates += 1
        return {**metrics, "step": self.updates}, dumped

    def _step_threshold(self, micros: list[MicroBatch]) -> Tensor | None:
        """Return the threshold of the method's judge over the step, from a pass without gradients beforehand."""
        judge = self.method.judge
        if judge is None or self.method.scope != "step" or len(micros) == 1:
            return None  # of a single micro-batch the loss takes the same over its own
        batches = [self._token_batch(micro, self._policy_log_probs(micro)) for micro in micros]
        return judge.threshold_of(torch.cat([threshold_scores(self.method, batch) for batch in batches]))

    def _loss(
        self, step: Sequence[Response], micro: MicroBatch, log_probs: Tensor, entropy: Tensor, threshold: Tensor | None
    ) -> tuple[Tensor, dict[str, SupportsFloat], Result]:
        """Return the objective on one micro-batch, with weights that count all responses of the step."""
        settings = self.config.loss
        batch = replace(self._token_batch(micro, log_probs), entropies=entropy.detach())
        if settings.reduction == "token_mean":
            weights = batch.mask.double() / sum(len(response.output_ids) for response in step)
        else:
            weights = response_mean_weights(batch.mask, batch.lengths, len(step))
        reference = self.log_probs(self.reference, micro, replay=False) if self.reference is not None else None
        return policy_loss(
            self.method, batch, weights, settings, ref_log_probs=reference, entropy=entropy, threshold=threshold
        )

    def _token_batch(self, micro: MicroBatch, log_probs: Tensor) -> TokenBatch:
        """Return the objective's view of a micro-batch's response tokens, given their (R,) log pi."""
        return replace(micro.tokens, log_probs=log_probs, lags=(self.updates - micro.versions).to(log_probs.dtype))


def warm_up(config: LabConfig, folder: Path) -> Iterator[int]:
    """Trains the initial model in this process and writes it to `folder` in fp32; yields every ten steps their number.

    Most steps see correct demonstrations, the last ones careless ones: the model then knows the arithmetic but answers
    sloppily, which is what RL has to unlearn. Both halves matter; a merely under-trained model hardly learns by RL.
    """
    model.initialize()
    torch.manual_seed(config.warmup.seed)
    rng = np.random.default_rng(config.warmup.seed)
    warmup = config.warmup
    network = build_model(config, "float32", balance_coef=_BALANCE_COEF if config.model.is_moe else 0.0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=warmup.lr, betas=(0.9, 0.98), weight_decay=0.0)
    clean_steps = round(warmup.clean_fraction * warmup.steps)
    for step in range(warmup.steps):
        for group in optimizer.param_groups:
            group["lr"] = warmup.lr * _schedule(step, clean_steps)
        loss = _imitation_loss(network, config, rng, careless=step >= clean_steps)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"warm-up step {step + 1} of {warmup.steps}: loss {loss.item():.3f}", flush=True)
        if (step + 1) % 10 == 0:
            yield step + 1
    # Two runs may warm up the same model at once: the first one to finish stays. Half of a model becomes one file by
    # file, since to delete it could be to delete the whole one that another run has just put there.
    own = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    save_hf(network, config, own)
    if not is_model(folder):
        folder.mkdir(exist_ok=True)
        for name in FILES:
            os.replace(own / name, folder / name)
    shutil.rmtree(own)


def _schedule(step: int, clean_steps: int) -> float:
    """Return the factor of the learning rate: twenty steps of warm-up, then a cosine to 15 % at the end of the clean
    demonstrations, held for the careless."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(clean_steps, 1))))
    return min(1.0, (step + 1) / 20) * (0.15 + 0.85 * cosine)


def _imitation_loss(
    network: torch.nn.Module, config: LabConfig, rng: np.random.Generator, careless: bool
) -> torch.Tensor:
    warmup, task = config.warmup, config.task
    sequences, rows, offset = [], [], 0
    for problem in task.training_problems(warmup.batch_size, rng):
        direct = careless and rng.random() < warmup.direct_rate
        answer = task.demonstration(problem, rng, warmup.error_rate if careless else 0.0, direct)
        prompt = task.encode(problem.prompt)
        tokens = prompt + task.encode(answer)
        rows.append(torch.arange(len(prompt) - 1, len(tokens) - 1) + offset)
        sequences.append(tokens)
        offset += len(tokens)
    ids = torch.tensor([token for tokens in sequences for token in tokens])
    picked = torch.cat(rows)
    logits = forward_logits(network, ids, PackedLayout.of([len(tokens) for tokens in sequences]))[picked]
    return -token_log_probs(logits.float(), ids[picked + 1])[0].mean()
