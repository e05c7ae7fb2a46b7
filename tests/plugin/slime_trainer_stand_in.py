"""Stands in for what the hooks meet of slime's MegatronTrainRayActor, train_async.py and train.py, without slime.

It calls the same methods in the same order on a model that is one number; test_train_hooks.py compares them with the
real ones.
"""

from __future__ import annotations

from typing import Any

from sat_slime.plugin import train_hooks


def serve_as_slime(monkeypatch: Any, problems: tuple[str, ...] = ()) -> None:
    """Has the hooks take this module for slime's until the test ends, and the probe find `problems`."""
    monkeypatch.setattr(train_hooks, "TRAINER", __name__)
    monkeypatch.setattr(train_hooks, "probe_slime", lambda **_: list(problems))
    monkeypatch.setattr(train_hooks, "_state", train_hooks._State())


class UpdateWeightFromDistributed:
    def __init__(self, recorder: Any):
        self.recorder, self.weight_version = recorder, 0

    def update_weights(self) -> None: ...


class UpdateWeightFromTensor(UpdateWeightFromDistributed):
    def update_weights(self) -> None: ...


def push(updater: UpdateWeightFromDistributed) -> None:
    updater.weight_version += 1
    updater.recorder.push(updater.weight_version)


def initialize_model_and_optimizer(args: Any, role: str) -> Any: ...


def save(iteration: int, model: Any, optimizer: Any, opt_param_scheduler: Any) -> None: ...


class Backuper:
    def __init__(self, model: Any):
        self.model, self.weights = model, {}

    def backup(self, tag: str) -> None:
        self.weights[tag] = self.model.item()

    def copy(self, *, src_tag: str, dst_tag: str) -> None:
        self.weights[dst_tag] = self.weights[src_tag]

    def restore(self, tag: str) -> None:
        self.model.fill_(self.weights[tag])


class Trainer:
    def __init__(self, recorder: Any, checkpoints: dict[str, float]):
        self.recorder, self.checkpoints, self._rank = recorder, checkpoints, 0

    def init(self, args: Any, role: str, with_ref: bool = False) -> int:
        self.args, self.role = args, role
        train_hooks.install(args)
        *_, loaded_rollout_id = initialize_model_and_optimizer(args, role)
        self.weights_backuper = Backuper(self.recorder.model)
        self._active_model_tag = "actor"
        self.weights_backuper.backup("actor")
        if with_ref:
            self.load_other_checkpoint("ref", args.ref_load)
        if args.keep_old_actor:
            self.load_other_checkpoint("old_actor", args.load)
            if args.update_weights_interval == 1:
                self.weights_backuper.backup("rollout_actor")
        self.weight_updater = UpdateWeightFromDistributed(self.recorder)
        return loaded_rollout_id + 1

    def _switch_model(self, target_tag: str) -> None:
        self.weights_backuper.restore(target_tag)
        self._active_model_tag = target_tag

    def load_other_checkpoint(self, model_tag: str, path: str) -> None:
        self.recorder.model.fill_(self.checkpoints[path])
        self.weights_backuper.backup(model_tag)
        self._active_model_tag = model_tag

    def train(self, rollout_id: int, rollout_data_ref: dict[str, Any], external_data: Any = None) -> None:
        self.train_actor(rollout_id, rollout_data_ref, external_data=external_data)

    def train_actor(self, rollout_id: int, rollout_data: dict[str, Any], external_data: Any = None) -> None:
        if "ref" in self.weights_backuper.weights:
            self._switch_model("ref")
            self.recorder.score("ref_", rollout_data)
        self._switch_model("old_actor" if self.args.keep_old_actor else "actor")
        self.recorder.score("", rollout_data)
        if self._active_model_tag != "actor":
            self._switch_model("actor")
        self.recorder.train(rollout_data, len(rollout_data["num_microbatches"]))
        self.weights_backuper.backup("actor")

    def save_model(self, rollout_id: int, force_sync: bool = False) -> None:
        save(rollout_id, self.recorder.model, None, None)

    def update_weights(self) -> None:
        self.weight_updater.update_weights()
        if self.args.keep_old_actor:
            if self.args.update_weights_interval == 1:
                self.weights_backuper.copy(src_tag="rollout_actor", dst_tag="old_actor")
                self.weights_backuper.backup("rollout_actor")
            else:
                self.weights_backuper.backup("old_actor")


def train_async(args: Any, recorder: Any, actor: Trainer, start: int, steps: int) -> None:
    actor.init(args, "actor", with_ref=args.use_kl_loss)
    actor.update_weights()
    following = recorder.generate(start, steps)
    for rollout_id in range(start, args.num_rollout):
        if following is not None:
            current = following
        if rollout_id + 1 < args.num_rollout:
            following = recorder.generate(rollout_id + 1, steps)
        actor.train(rollout_id, current)
        if (rollout_id + 1) % args.update_weights_interval == 0:
            current, following = following, None
            actor.update_weights()
        if args.eval_interval and (rollout_id + 1) % args.eval_interval == 0:
            recorder.evaluate(rollout_id)


def train(args: Any, recorder: Any, actor: Trainer, start: int, steps: int) -> None:
    actor.init(args, "actor", with_ref=args.use_kl_loss)
    actor.update_weights()
    for rollout_id in range(start, args.num_rollout):
        if args.eval_interval and rollout_id == 0 and not args.skip_eval_before_train:
            recorder.evaluate(rollout_id)
        actor.train(rollout_id, recorder.generate(rollout_id, steps))
        actor.update_weights()
        if args.eval_interval and (rollout_id + 1) % args.eval_interval == 0:
            recorder.evaluate(rollout_id)
