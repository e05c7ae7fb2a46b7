"""One rank of the trainer: megatron-core's model, its gradients, AdamW, and the objective on packed micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from safetensors.torch import load_file, save_file
from torch import Tensor

from sat_slime.config.method import build_method
from sat_slime.config.schema import EmbeddedConfig
from sat_slime.embedded import task
from sat_slime.embedded.rollout_batch import StepResult, TrainSample, lag_metrics, step_is_diagnosed
from sat_slime.embedded.trainer import parallel, routing
from sat_slime.embedded.trainer.hf_weights import load_hf, save_hf
from sat_slime.embedded.trainer.log_probs import Entropy, vocab_parallel_log_probs, whole_log_probs
from sat_slime.embedded.trainer.model import build_model, forward_logits
from sat_slime.embedded.trainer.packing import MicroBatch, forwarded_tokens, pack, padded_tokens, plan_microbatches
from sat_slime.embedded.trainer.rescoring import Columns, Rescorer, gather_columns
from sat_slime.objective import (
    SAT,
    TRPO,
    MetricAccumulator,
    TokenBatch,
    backtrack,
    divergence_metrics,
    mismatch_histogram,
    mismatch_metrics,
    policy_loss,
    response_mean_weights,
    staleness_score,
    step_stands,
    tail_quantile,
    token_mean_weights,
    total_variation,
)


class TrainerRank:
    """A rank; its methods are collective: call each on all ranks."""

    def __init__(self, config: EmbeddedConfig, rank: int, init_method: str) -> None:
        """Joins the other ranks and builds the models with random weights; `load_initial` or `load` fills them."""
        parallel.initialize(config.train, rank, init_method)
        self.config = config
        self.method = build_method(config.method)
        self.updates = 0
        """Optimizer updates so far: the version of the current weights."""
        model = build_model(config.model, config.train, task.VOCAB_SIZE, routing_replay=True)
        self.policy = DistributedDataParallel(
            model.config,
            DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=False),
            model,
        )
        self.reference = None
        if config.loss.kl_coef:
            # Routes freely, as the reference forward of slime does, also under R3.
            self.reference = build_model(config.model, config.train, task.VOCAB_SIZE).requires_grad_(False)
        self.named_parameters = list(self.policy.module.named_parameters())
        self.masters = [
            torch.nn.Parameter(p.detach().float().clone()) if p.dtype != torch.float32 else p
            for _, p in self.named_parameters
        ]
        train = config.train
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [m for m in self.masters if m.dim() > 1], "weight_decay": train.weight_decay},
                {"params": [m for m in self.masters if m.dim() <= 1], "weight_decay": 0.0},
            ],
            lr=train.lr,
            betas=(train.adam_beta1, train.adam_beta2),
            eps=train.adam_eps,
            fused=True,
        )
        self.snapshots: dict[int, list[Tensor]] = {}
        self.rescorer = None
        if config.diagnose.every_n_steps:
            self.rescorer = Rescorer(config, self.policy, self.method.routing_replay)
        self.data_group = parallel_state.get_data_parallel_group()

    # ---------------------------------------------------------------------------------------------- weights

    def load_initial(self, folder: Path) -> None:
        """Starts policy and reference from a Hugging Face folder."""
        load_hf(self.policy.module, self.config.model, folder)
        self._masters_from_policy()
        self.load_reference(folder)

    def load_reference(self, folder: Path) -> None:
        """Weights of the reference model, where the loss has a KL term."""
        if self.reference is not None:
            load_hf(self.reference, self.config.model, folder)

    def export_weights(self, folder: Path) -> int:
        """Writes the current weights for the rollout engines and remembers them as pi_l; returns their version."""
        save_hf(self.policy.module, self.config.model, task.VOCAB_SIZE, task.EOS, folder)
        self._remember([p.detach().clone() for _, p in self.named_parameters])
        return self.updates

    def remember_weights(self, folder: Path, version: int) -> None:
        """Remembers exported weights as pi_l again, after a resume."""
        current = [p.detach().clone() for _, p in self.named_parameters]
        load_hf(self.policy.module, self.config.model, folder)
        self._remember([p.detach().clone() for _, p in self.named_parameters], version)
        self._set_policy(current)

    def _remember(self, weights: list[Tensor], version: int | None = None) -> None:
        self.snapshots[self.updates if version is None else version] = weights
        for old in sorted(self.snapshots)[: -self.config.pipeline.weights_in_use]:
            del self.snapshots[old]

    @torch.no_grad()
    def _set_policy(self, weights: list[Tensor]) -> None:
        for (_, parameter), weight in zip(self.named_parameters, weights, strict=True):
            parameter.copy_(weight)

    @torch.no_grad()
    def _policy_from_masters(self) -> None:
        for (_, parameter), master in zip(self.named_parameters, self.masters, strict=True):
            if master is not parameter:
                parameter.copy_(master)

    @torch.no_grad()
    def _masters_from_policy(self) -> None:
        for (_, parameter), master in zip(self.named_parameters, self.masters, strict=True):
            if master is not parameter:
                master.copy_(parameter)

    # ------------------------------------------------------------------------------------------- checkpoints

    def save(self, folder: Path) -> None:
        """Writes this rank's weights and optimizer state into an existing folder."""
        tensors = {}
        for (name, _), master in zip(self.named_parameters, self.masters, strict=True):
            tensors[f"{name}/weight"] = master.detach()
            tensors |= {f"{name}/{key}": value for key, value in self.optimizer.state.get(master, {}).items()}
        save_file({k: v.cpu().contiguous() for k, v in tensors.items()}, folder / f"rank-{dist.get_rank()}.safetensors")

    @torch.no_grad()
    def load(self, folder: Path, updates: int) -> None:
        """Restores what `save` wrote, bit for bit."""
        tensors = load_file(folder / f"rank-{dist.get_rank()}.safetensors", device=str(parallel.device()))
        for (name, parameter), master in zip(self.named_parameters, self.masters, strict=True):
            master.copy_(tensors.pop(f"{name}/weight"))
            parameter.copy_(master)
            state = {key: tensors[f"{name}/{key}"] for key in ("step", "exp_avg", "exp_avg_sq") if updates}
            if state:
                self.optimizer.state[master] = state
        self.updates = updates

    # ---------------------------------------------------------------------------------------------- training

    def train(self, samples: list[TrainSample], dump: bool = False) -> list[StepResult]:
        """Trains on one rollout batch, in `pipeline.optimizer_steps_per_rollout` steps.

        Args:
            dump: also return the tokens' columns, as always of a diagnosed step.

        Raises:
            FloatingPointError: the gradient is not finite; the weights are then still those of the step before.
        """
        count = self.config.pipeline.optimizer_steps_per_rollout
        size = len(samples) // count
        steps = [samples[i * size : (i + 1) * size] for i in range(count)]
        packed = [self._microbatches(step) for step in steps]
        proximal = [self._proximal(*both) for both in zip(steps, packed, strict=True)]
        return [self._step(*arguments, dump) for arguments in zip(steps, packed, proximal, strict=True)]

    def _microbatches(self, samples: list[TrainSample]) -> list[MicroBatch]:
        train, model = self.config.train, self.config.model
        sizes = [forwarded_tokens(s.response) for s in samples]
        plan = plan_microbatches(sizes, train.data_parallel, train.tokens_per_microbatch)
        rows = padded_tokens(sizes, plan, multiple_of=train.tensor_parallel)
        shape = (model.layers, model.experts_per_token) if model.is_moe else None
        mine = plan[parallel_state.get_data_parallel_rank()]
        replays = self.method.top_p_replay
        return [pack(samples, part, tokens, shape, replays) for part, tokens in zip(mine, rows, strict=True)]

    def _log_probs(
        self, model: torch.nn.Module, micro: MicroBatch, *, replay: bool, entropy: Entropy = "none"
    ) -> tuple[Tensor, Tensor | None]:
        """(R,) log-probs, and entropies, of the response tokens."""
        with routing.replay(micro.routed_experts) if replay else nullcontext():
            logits = forward_logits(model, micro.token_ids, micro.layout)
        return vocab_parallel_log_probs(
            logits[micro.rows],
            micro.targets,
            self.config.rollout.temperature,
            entropy=entropy,
            kept=micro.kept,
        )

    @torch.no_grad()
    def score(self, samples: list[TrainSample], *, replay: bool) -> dict[str, np.ndarray]:
        """log pi of given responses under the current weights, by request id; this rank's share of them.

        Args:
            replay: route as the rollout engine did (R3), else freely.
        """
        found = {}
        for micro in self._microbatches(samples):
            log_probs, _ = self._log_probs(self.policy, micro, replay=replay)
            pieces = log_probs.cpu().split(micro.lengths)
            found.update({name: piece.numpy() for name, piece in zip(micro.request_ids, pieces, strict=True)})
        return found

    @torch.no_grad()
    def _policy_log_probs(self, microbatches: list[MicroBatch]) -> list[Tensor]:
        return [self._log_probs(self.policy, m, replay=self.method.routing_replay)[0] for m in microbatches]

    def _checkpoint_log_probs(self, samples: list[TrainSample], microbatches: list[MicroBatch]) -> list[Tensor]:
        """log pi_l: the trainer's log-probs under the weights that generated each token (Eq. split)."""
        scores = self._under_generating_weights(
            samples, microbatches, lambda: [{"pi_l": one} for one in self._policy_log_probs(microbatches)]
        )
        return [columns["pi_l"] for columns in scores]

    def _under_generating_weights(
        self, samples: list[TrainSample], microbatches: list[MicroBatch], score: Callable[[], list[Columns]]
    ) -> list[Columns]:
        """What `score` finds of the micro-batches, of each token under the weights that generated it.

        Raises:
            RuntimeError: weights of a version are no longer held; on all ranks alike.
        """
        # Of all samples, not of this rank's: every rank must run the same forward passes.
        versions = sorted({int(version) for sample in samples for version in np.unique(sample.response.versions)})
        if missing := [version for version in versions if version not in self.snapshots]:
            raise RuntimeError(f"weights of version {missing} are not held, only {sorted(self.snapshots)}")
        current = [p.detach().clone() for _, p in self.named_parameters]
        result: list[Columns] = [{} for _ in microbatches]
        for version in versions:
            self._set_policy(self.snapshots[version])
            for micro, known, these in zip(microbatches, result, score(), strict=True):
                generated = micro.versions == version
                for name, values in these.items():
                    known.setdefault(name, torch.zeros_like(values))[generated] = values[generated]
        self._set_policy(current)
        return result

    def _rescored(self, samples: list[TrainSample], microbatches: list[MicroBatch]) -> Columns:
        """What a diagnosis measures of the step's tokens, before the step."""
        assert self.rescorer is not None, "only a diagnosed step is scored again"
        rescorer = self.rescorer

        def as_generated() -> list[Columns]:
            return [
                {
                    **rescorer.columns(micro, "checkpoint_"),
                    "checkpoint_log_probs_engine_dtype": rescorer.in_engine_dtype(micro),
                }
                for micro in microbatches
            ]

        before = self._under_generating_weights(samples, microbatches, as_generated)
        both = [{**rescorer.columns(micro), **known} for micro, known in zip(microbatches, before, strict=True)]
        return {name: torch.cat([columns[name] for columns in both]) for name in both[0]}

    def _proximal(self, samples: list[TrainSample], microbatches: list[MicroBatch]) -> list[Tensor | None]:
        """The denominator where it is not mu. With one step per rollout, `trainer` is the training forward itself."""
        if self.method.denominator == "checkpoint":
            return list(self._checkpoint_log_probs(samples, microbatches))
        if self.method.denominator == "trainer" and self.config.pipeline.optimizer_steps_per_rollout > 1:
            return list(self._policy_log_probs(microbatches))
        return [None] * len(microbatches)

    def _token_batch(self, micro: MicroBatch, log_probs: Tensor, proximal: Tensor | None) -> TokenBatch:
        return TokenBatch(
            log_probs=log_probs,
            rollout_log_probs=micro.rollout_log_probs,
            advantages=micro.advantages,
            mask=torch.ones_like(micro.targets, dtype=torch.bool),
            lengths=torch.tensor(micro.lengths, dtype=torch.int64, device=log_probs.device),
            proximal_log_probs=proximal,
        )

    def _step_quantile(self, microbatches: list[MicroBatch], proximal: list[Tensor | None]) -> Tensor | None:
        """SAT's quantile over all tokens of the step, from a pass without gradients before the first backward."""
        region = self.method.trust_region
        if not isinstance(region, SAT) or region.scope != "step":
            return None
        scores = [
            staleness_score(self.method, self._token_batch(micro, log_probs, denominator))
            for micro, log_probs, denominator in zip(
                microbatches, self._policy_log_probs(microbatches), proximal, strict=True
            )
        ]
        return tail_quantile(torch.cat(scores).abs(), region.alpha, group=self.data_group)

    def _split(
        self, samples: list[TrainSample], microbatches: list[MicroBatch], proximal: list[Tensor | None]
    ) -> Tensor | None:
        """log pi_l of the step's tokens, when it is known already or its measurement is due."""
        every = self.config.diagnose.split_every_n_steps
        if self.method.denominator == "checkpoint":
            return torch.cat([known for known in proximal if known is not None])
        if (every and self.updates % every == 0) or step_is_diagnosed(self.config, self.updates):
            return torch.cat(self._checkpoint_log_probs(samples, microbatches))
        return None

    def _step(
        self,
        samples: list[TrainSample],
        microbatches: list[MicroBatch],
        proximal: list[Tensor | None],
        dump: bool,
    ) -> StepResult:
        config, method = self.config, self.method
        checkpoint = self._split(samples, microbatches, proximal)
        diagnosed = step_is_diagnosed(config, self.updates)
        rescored = self._rescored(samples, microbatches) if diagnosed else {}
        quantile = self._step_quantile(microbatches, proximal)
        response_tokens = sum(len(s.response.output_ids) for s in samples)

        self.policy.zero_grad_buffer()
        accumulator = MetricAccumulator()
        log_probs_of_step: list[Tensor] = []
        entropy_of_step: list[Tensor] = []
        flips = torch.zeros(2)
        compare_routes = config.model.is_moe and not method.routing_replay
        for micro, denominator in zip(microbatches, proximal, strict=True):
            recorded: list[Tensor] = []
            with routing.record(recorded) if compare_routes else nullcontext():
                log_probs, entropy = self._log_probs(
                    self.policy,
                    micro,
                    replay=method.routing_replay,
                    entropy="gradient" if config.loss.entropy_coef else "value",
                )
            if compare_routes:
                flips += torch.tensor(routing.count_flips(recorded, micro.routed_experts, micro.rows))
            reference = None
            if self.reference is not None:
                with torch.no_grad():
                    reference, _ = self._log_probs(self.reference, micro, replay=False)
            batch = self._token_batch(micro, log_probs, denominator)
            loss = policy_loss(
                method,
                batch,
                token_mean_weights(batch.mask, response_tokens)
                if config.loss.reduction == "token_mean"
                else response_mean_weights(batch.mask, batch.lengths, len(samples)),
                kl_coef=config.loss.kl_coef,
                entropy_coef=config.loss.entropy_coef,
                ref_log_probs=reference,
                entropy=entropy,
                quantile=quantile,
            )
            # Megatron averages gradients over data-parallel ranks; the weights above already count the whole step.
            (loss.total * self.data_group.size()).backward()
            accumulator.add(loss.metrics, len(micro.targets))
            log_probs_of_step.append(log_probs.detach())
            assert entropy is not None, "asked for above"
            entropy_of_step.append(entropy.detach())
        finalize_model_grads([self.policy])
        constraint: dict[str, float] = {}
        if method.step_constraint is None:
            grad_norm = self._apply_gradients()
        else:
            grad_norm, constraint = self._constrained_step(method.step_constraint, microbatches)

        log_probs = torch.cat(log_probs_of_step)
        rollout_log_probs = torch.cat([m.rollout_log_probs for m in microbatches])
        metrics = {
            **lag_metrics([sample.response for sample in samples], self.updates),
            "grad_norm": grad_norm,
            **constraint,
            **accumulator.reduce(self.data_group),
            **mismatch_metrics(
                log_probs,
                rollout_log_probs,
                torch.ones_like(log_probs, dtype=torch.bool),
                checkpoint_log_probs=checkpoint,
                group=self.data_group,
            ),
        }
        if compare_routes:
            dist.all_reduce(flips := flips.to(log_probs.device))
            metrics["routing/flip_rate"] = float(flips[0] / flips[1].clamp(min=1))
        histogram = mismatch_histogram((log_probs - rollout_log_probs).abs(), group=self.data_group)
        tokens = None
        if dump or diagnosed:
            columns = {"log_probs": log_probs, "entropy": torch.cat(entropy_of_step), **rescored}
            if checkpoint is not None:
                columns["checkpoint_log_probs"] = checkpoint
            known = [values for values in proximal if values is not None]
            if known:
                columns["proximal_log_probs"] = torch.cat(known)
            order = [sample.response.request_id for sample in samples]
            tokens = gather_columns(columns, microbatches, order, self.data_group)
        self.updates += 1
        metrics["step"] = self.updates
        return StepResult(metrics, histogram, tokens)

    @torch.no_grad()
    def _apply_gradients(self) -> float:
        """Clips and applies the summed gradients; returns their global norm before clipping."""
        # A parameter held by several ranks counts once.
        world = dist.get_world_size()
        square = torch.zeros((), device=parallel.device())
        for (_, parameter), master in zip(self.named_parameters, self.masters, strict=True):
            gradient = parameter.main_grad.to(master.dtype)
            if not getattr(parameter, "allreduce", True):  # Megatron's mark of a parameter cut by expert parallelism
                copies = world // self.config.train.expert_parallel
            elif getattr(parameter, "tensor_model_parallel", False):
                copies = self.config.train.data_parallel
            else:
                copies = world
            square += gradient.square().sum() / copies
            master.grad = gradient
        dist.all_reduce(square)
        norm = float(square.sqrt())
        if not torch.isfinite(square):
            raise FloatingPointError(
                f"the gradient of optimizer step {self.updates + 1} is not finite: start another run with a lower "
                "train.lr"
            )
        scale = min(1.0, self.config.train.grad_clip / (norm + 1e-6))
        torch._foreach_mul_([master.grad for master in self.masters if master.grad is not None], scale)
        self.optimizer.step()
        # In fp32 a master is the parameter and its gradient Megatron's own buffer: backward must not add to that too.
        self.optimizer.zero_grad(set_to_none=True)
        self._policy_from_masters()
        return norm

    def _constrained_step(self, config: TRPO, microbatches: list[MicroBatch]) -> tuple[float, dict[str, float]]:
        """An optimizer step, halved until TRPO's constraint stands; the gradient's norm, and trpo/*.

        AdamW's moments keep the whole gradient, whatever becomes of the step.
        """
        before = self._divergence(microbatches)
        old = [master.detach().clone() for master in self.masters]
        norm = self._apply_gradients()
        new = [master.detach().clone() for master in self.masters]
        after = before

        @torch.no_grad()
        def place(scale: float) -> None:
            for master, start, end in zip(self.masters, old, new, strict=True):
                master.copy_(torch.lerp(start, end, scale))  # exact at both ends
            self._policy_from_masters()

        def stands() -> bool:
            nonlocal after
            after = self._divergence(microbatches)
            # Over all ranks, tensor-parallel copies too: none may decide otherwise than another.
            return step_stands(config, before, after, dist.group.WORLD)

        scale, halvings = backtrack(config, place, stands)
        metrics = divergence_metrics(before, after if scale else before, dist.group.WORLD)
        return norm, {**metrics, "trpo/step_scale": scale, "trpo/backtracks": halvings}

    @torch.no_grad()
    def _divergence(self, microbatches: list[MicroBatch]) -> Tensor:
        """(R,) total variation between mu and the current policy at every state of this rank's responses."""
        found = [torch.zeros(0, device=parallel.device())]
        for micro in microbatches:
            assert micro.distribution is not None, "asked for under TRPO"
            with routing.replay(micro.routed_experts) if self.method.routing_replay else nullcontext():
                logits = forward_logits(self.policy, micro.token_ids, micro.layout)
            pi = whole_log_probs(logits[micro.rows], self.config.rollout.temperature, micro.kept)
            found.append(total_variation(micro.distribution, pi))
        return torch.cat(found)
