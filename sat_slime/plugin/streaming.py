"""Fully asynchronous rollouts on slime, within a bound on staleness (docs/asynchrony.md).

slime takes these by --rollout-function-path (generate_rollout) and --data-source-path (StreamingDataSource). Our driver
asks for a rollout when all rollouts before it are trained, and their checkpoint and push, where due, are done.
"""

from __future__ import annotations

import inspect
import logging
from argparse import Namespace
from pathlib import Path
from typing import Any

from slime.rollout import sglang_rollout
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.utils.async_utils import run
from slime.utils.http_utils import get_rollout_num_engines
from slime.utils.types import Sample

from sat_slime.config.rules import NOT_STREAMED
from sat_slime.config.slime_schema import PluginConfig
from sat_slime.config.source import ConfigError
from sat_slime.plugin.compat import slime_function, wrap_once
from sat_slime.plugin.generation import Generation, Samples, read_queue, write_queue
from sat_slime.plugin.settings import plugin_config, steps_per_rollout
from sat_slime.plugin.versions import are_steps
from sat_slime.rollout.stream import StalenessBound, Stream
from sat_slime.runs.saved import queue_folder

logger = logging.getLogger(__name__)

RolloutDataSourceWithBuffer: Any = slime_function("RolloutDataSourceWithBuffer")


def generate_rollout(
    args: Namespace, rollout_id: int, data_source: StreamingDataSource, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """Waits for the groups of a rollout and returns them; generation goes on meanwhile and afterwards. An evaluation is
    slime's own, on the same event loop. Raises RuntimeError where a prompt could not be generated or rewarded."""
    if evaluation:
        return sglang_rollout.generate_rollout(args, rollout_id, data_source, evaluation=True)
    if not isinstance(data_source, StreamingDataSource):
        raise ConfigError(
            f"--data-source-path is {args.data_source_path}: with --rollout-function-path "
            f"{__name__}.generate_rollout set it to {__name__}.StreamingDataSource"
        )
    groups, metrics = run(data_source.generation.next_batch(rollout_id))
    return RolloutFnTrainOutput(samples=groups, metrics=metrics)


class StreamingDataSource(RolloutDataSourceWithBuffer):
    """slime's data source, with the stream that is filled from it: both are saved and loaded together."""

    def __init__(self, args: Namespace) -> None:
        """Raises ConfigError with a line for everything that cannot be in mode streaming."""
        if errors := streaming_errors(args, plugin_config(args)):
            raise ConfigError(*errors)
        if "response_length" not in inspect.getsource(sglang_rollout.generate):  # v0.3.1
            wrap_once(sglang_rollout, "generate", _within_limit)
        super().__init__(args)
        driver = plugin_config(args).driver
        bound = StalenessBound(driver.max_staleness, steps_per_rollout(args), args.rollout_batch_size)
        self.stream: Stream[Samples, Samples] = Stream(
            bound, args.num_rollout, lambda _: next(iter(self.get_samples(1)), None), over_age=driver.over_age
        )
        self.generation = Generation(self.stream, max(driver.lag, 1), self)

    @property
    def slots(self) -> int:
        """The number of samples that the engines decode side by side."""
        return int(self.args.sglang_server_concurrency * get_rollout_num_engines(self.args))

    async def generate(self, group: Samples) -> Samples:
        """Generates and rewards a group; samples that a push cut off come back aborted."""
        parameters = sglang_rollout.GenerateState(self.args).sampling_params.copy()
        samples: Samples = await sglang_rollout.generate_and_rm_group(
            self.args, group, sampling_params=parameters, evaluation=False
        )
        return samples

    def save(self, rollout_id: int) -> None:
        """Saves the position in the data, and the stream beside it. A resume begins prompts in generation anew. Raises
        as `Stream.freeze` and `write_queue` do."""
        state = run(self.generation.freeze(rollout_id))
        try:
            write_queue(queue_folder(Path(self.args.save), rollout_id), state)
            super().save(rollout_id)
        finally:
            self.stream.thaw()

    def load(self, rollout_id: int | None = None) -> None:
        """Loads what `save` saved. Raises ValueError where it is damaged."""
        super().load(rollout_id)
        if self.args.load is None or rollout_id is None or rollout_id < 0:
            return
        folder = queue_folder(Path(self.args.load), rollout_id)
        if not folder.exists():
            logger.warning("sat_slime: no %s: prompts that waited or were in generation then are skipped", folder)
            return
        state = read_queue(folder, Sample)
        self.stream.restore(state, rollout_id + 1)
        logger.info(
            "sat_slime: %d prompts wait, %d start again (%s)", len(state.waiting), len(state.unfinished), folder
        )


def _within_limit(generate: Any, /, args: Namespace, sample: Sample, sampling_params: dict[str, Any]) -> Any:
    """Has slime's `generate` go on with an interrupted response for as many tokens as --rollout-max-response-len leaves
    it, where it would ask for all of them anew."""
    left = sampling_params["max_new_tokens"] - sample.response_length
    return generate(args, sample, {**sampling_params, "max_new_tokens": left})


def streaming_errors(args: Namespace, config: PluginConfig) -> list[str]:
    """Return a line for every reason why a run in mode streaming would fail or break its bound."""
    driver, steps = config.driver, steps_per_rollout(args)
    is_streaming, least = driver.mode == "streaming", driver.lag * steps - 1
    unstreamed = [name for name in NOT_STREAMED if getattr(args, name.replace("-", "_"), None)]
    lines = {
        f"sat_slime.driver.mode is {driver.mode}, but --data-source-path is that of mode streaming: set it to "
        "streaming, and start `python3 -m sat_slime.plugin.driver`": not is_streaming,
        f"sat_slime.driver.max_staleness is {driver.max_staleness}, but with lag {driver.lag} and {steps} optimizer "
        f"steps per rollout tokens of the newest weights are up to {least} steps old: raise it to that or more, or "
        "lower lag": is_streaming and driver.max_staleness < least,
        "mode streaming needs our order of a run: start `python3 -m sat_slime.plugin.driver`": not are_steps(args),
        "--num-rollout is not set, and mode streaming has to know where the run ends: set it": args.num_rollout is None,
        **{f"--{name} cannot be in mode streaming: leave it out": True for name in unstreamed},
    }
    return [line for line, is_told in lines.items() if is_told]
