"""Measures what R3's routes cost on their way from an engine to the routers that replay them: seconds and memory of
each place, on a slice of the paper's batch, scaled to the whole of it.

    python bench/dataplane.py --slime SLIME --megatron MEGATRON [--responses 64] [--rounds 2] [--sides slime plugin]

The slice has the shape of a batch of the paper's run: Qwen3-30B-A3B's 48 layers with 8 of 128 experts, prompts of 200
tokens, responses whose lengths are those of a run on mathematics (log-normal, median 6,000, cut off at 32,768),
log-probs and versions of each. It goes through slime's own functions and the plugin's: an HTTP server answers in
SGLang's form, slime's rollout manager posts, decodes and converts, Ray carries the batch to four trainer ranks (TP 4
with sequence parallelism), which fill and read slime's RoutingReplay. Two batches are made, so that at the peak one is
in training and one was just put, as at every lag above 0. Sides alternate, a round each, in processes and a Ray of
their own; all must replay the same routes.

Memory is what comes after a round with the eight shortest responses: each process's own (proportional, where several
have a page); and all pages of the object store, mapped or not. A store keeps the pages it once had, so that its memory
never falls. A copy is the routes of one batch at a byte each, 384 bytes a token; how many there are is what a side has
above the side *without*, which has no routes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import hashlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
import types
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parents[1]
LAYERS, TOP_K, EXPERTS, PROMPT = 48, 8, 128, 200
BYTES = LAYERS * TOP_K
RANKS, LONGEST = 4, 32_768
MICRO_BATCH = 32_768
FULL_RESPONSES = 4096
WITHOUT = "without"
SIDES = ("slime", "plugin", WITHOUT)
"""slime alone; the plugin's way for routes; and no routes at all."""
PLACES = {
    "engine: gather, base64, JSON": "the engine's tokenizer process, CPU",
    "manager: a response's serial work": "the event loop's thread, CPU: HTTP, JSON, decode, hooks",
    "manager: idle tail": "conversion, split and put, while engines wait",
    "rank: get and fill": "slowest rank",
    "rank: replay, one pass": "slowest rank: all routers, once forward",
    "rank: mismatch_metrics": "one thread, the whole batch on a rank",
    "token dump": "write_dump of the batch",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slime", type=Path, required=True, help="checkout of slime")
    parser.add_argument("--megatron", type=Path, required=True, help="checkout of slime's Megatron-LM")
    parser.add_argument("--responses", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    options = parser.parse_args()
    if "SAT_SLIME_DEVICE" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], environment(options.slime, options.megatron))
    tokens = sum(lengths(options.responses))
    print(
        f"{options.responses} responses, {tokens:,} tokens, routes of {tokens * BYTES / 2**20:.0f} MiB, "
        f"{options.rounds} rounds; {FULL_RESPONSES} of full length have {FULL_RESPONSES * LONGEST / 1e6:.0f} M",
        flush=True,
    )
    measured: dict[str, list[dict[str, Any]]] = {side: [] for side in options.sides}
    for _ in range(options.rounds):
        for side in options.sides:
            with node(options.responses, side) as (manager, ranks, processes, port):
                of_length = sorted(range(options.responses), key=lengths(options.responses).__getitem__)
                round_of(side, manager, ranks, Memory(processes), port, sorted(of_length[:8]))
                measured[side].append(
                    round_of(side, manager, ranks, Memory(processes), port, list(range(options.responses)))
                )
            print(f"{side}: {measured[side][-1]['seconds']}", file=sys.stderr, flush=True)
    replayed = {one["digest"] for side, rounds in measured.items() if side != WITHOUT for one in rounds}
    assert len(replayed) <= 1, "replayed routes differ"
    report(measured, tokens)


def environment(slime: Path, megatron: Path) -> dict[str, str]:
    """Return the environment of a process that imports slime without a GPU, and of the Ray that it starts."""
    from sat_slime.launch.cpu_run import cpu_python_path
    from sat_slime.runs.ray_start import PATIENCE

    return {
        **os.environ,
        **PATIENCE,
        "PYTHONPATH": os.pathsep.join(cpu_python_path([str(slime.resolve()), str(megatron.resolve())])),
        "SAT_SLIME_DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONWARNINGS": "ignore",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_worker_niceness": "0",
        "TORCHDYNAMO_DISABLE": "1",
    }


def report(measured: dict[str, list[dict[str, Any]]], tokens: int) -> None:
    """Prints a table of seconds and one of memory, a column for each side, with ratios to the first."""
    sides = list(measured)
    scale = FULL_RESPONSES * LONGEST / tokens

    def median(side: str, table: str, name: str) -> float:
        return statistics.median(one[table][name] for one in measured[side])

    print(f"\n{'microseconds a token':38}" + "".join(f"{side:>12}" for side in sides)
          + "".join(f"{'s a full ' + side:>18}" for side in sides))  # fmt: skip
    for name in PLACES:
        of_sides = [median(side, "seconds", name) for side in sides]
        print(f"{name:38}" + "".join(f"{s / tokens * 1e6:12.2f}" for s in of_sides)
              + "".join(f"{s * scale:18.0f}" for s in of_sides))  # fmt: skip
    serial = [median(side, "seconds", "manager: a response's serial work") * LONGEST / tokens for side in sides]
    print(f"{'serial ms of a 32k response':38}" + "".join(f"{s * 1e3:12.0f}" for s in serial))
    print(f"\n{'bytes a token':38}" + "".join(f"{side:>12}" for side in sides)
          + "".join(f"{'GiB a full ' + side:>18}" for side in sides))  # fmt: skip
    for name in next(iter(measured.values()))[0]["memory"]:
        of_sides = [median(side, "memory", name) for side in sides]
        print(f"{name:38}" + "".join(f"{b / tokens:12.0f}" for b in of_sides)
              + "".join(f"{b * scale / 2**30:18.0f}" for b in of_sides))  # fmt: skip
    if WITHOUT in sides:
        peak = {side: median(side, "memory", "peak: the whole node") for side in sides}
        copies = [(peak[side] - peak[WITHOUT]) / (tokens * BYTES) for side in sides]
        print(f"{'peak, copies of a batch of routes':38}" + "".join(f"{c:12.2f}" for c in copies))


# ------------------------------------------------------------------------------------------------------- the material


def lengths(responses: int) -> list[int]:
    """Return the tokens of each response, prompt included."""
    drawn = np.random.default_rng(0).lognormal(np.log(6000), 0.9, responses)
    return [int(n) + PROMPT for n in np.clip(drawn, 64, LONGEST - PROMPT)]


def routes(seed: int, rows: int) -> np.ndarray:
    """Return (rows, layers, top-k) int32 routes, no expert twice for a token. The prompt's, which come first, are the
    same for all."""
    parts = []
    for part_seed, part_rows in ((12345, PROMPT), (seed, rows - PROMPT)):
        random = np.random.default_rng(part_seed)
        first = random.integers(0, EXPERTS, (part_rows, LAYERS, 1), np.uint8)
        step = random.integers(0, EXPERTS // 2, (part_rows, LAYERS, 1), np.uint8) * 2 + 1
        parts.append((first + step * np.arange(TOP_K, dtype=np.uint8)) % EXPERTS)
    return np.concatenate(parts).astype(np.int32)


def log_probs(seed: int, n: int) -> list[float]:
    """Return log-probs as a run has them: most tokens near certain, a few far from it."""
    random = np.random.default_rng(seed)
    values = -random.exponential(0.3, n) * (random.random(n) < 0.4) - random.exponential(1e-3, n)
    return [float(np.float32(value)) for value in values]


# --------------------------------------------------------------------------------------------------------- the engine


def serve(responses: int, narrow: bool, pipe: Any) -> None:
    """Answers /generate as SGLang does, out of a host buffer of routes, on a port that it sends through the pipe; what
    SGLang does for an answer in its detokenizer and its server is timed, and GET /seconds tells the sum."""
    import orjson
    import pybase64
    import torch
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    torch.set_num_threads(1)
    spent = {"seconds": 0.0}

    def answer_of(index: int, n: int, with_routes: bool) -> bytes:
        host = torch.from_numpy(routes(index, n - 1))
        if narrow:
            host = host.to(torch.uint8)
        n_new = n - PROMPT
        values, ids = log_probs(index, n_new), np.random.default_rng(index).integers(0, 150_000, n_new).tolist()
        location = torch.arange(n - 1)
        begun = time.thread_time()
        gathered = host[location]  # BaseTopkCapturer.get_topk
        encoded = pybase64.b64encode(gathered.numpy().tobytes()).decode("utf-8")  # DetokenizerManager
        entries = [(value, token, None) for value, token in zip(values, ids, strict=True)]
        meta = {
            "finish_reason": {"type": "stop"},
            "weight_version": "3",
            "cached_tokens": 0,
            "prompt_tokens": PROMPT,
            "completion_tokens": n_new,
            "output_token_logprobs": entries,
            **({"routed_experts": encoded} if with_routes else {}),
        }
        body: bytes = orjson.dumps({"text": "x" * (4 * n_new), "output_ids": ids, "meta_info": meta})
        spent["seconds"] += time.thread_time() - begun
        return body

    async def generate(request: Any) -> Any:
        asked = json.loads(await request.body())
        index = asked["sampling_params"]["index"]
        body = answer_of(index, lengths(responses)[index], asked["return_routed_experts"])
        return Response(body, media_type="application/json")

    async def seconds(_: Any) -> Any:
        told, spent["seconds"] = spent["seconds"], 0.0
        return JSONResponse(told)

    app = Starlette(routes=[Route("/generate", generate, methods=["POST"]), Route("/seconds", seconds)])
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))

    async def run() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.05)
        pipe.send(server.servers[0].sockets[0].getsockname()[1])
        await serving

    asyncio.run(run())


# ------------------------------------------------------------------------------------------- slime's manager and ranks


def arguments(side: str, responses: int) -> Namespace:
    """Return slime's arguments, as far as its functions on this way read them."""
    from sat_slime.plugin.settings import DRIVEN

    return Namespace(
        num_layers=LAYERS, moe_router_topk=TOP_K, num_experts=EXPERTS, moe_layer_freq=1,
        use_rollout_routing_replay=side != WITHOUT,
        rollout_sample_hook_path=[] if side == "slime" else ["sat_slime.plugin.rollout_hooks.on_sample"],
        sglang_server_concurrency=16, rollout_num_engines=1, use_distributed_post=False,
        sglang_speculative_algorithm=None, reward_key=None, advantage_estimator="grpo", rewards_normalization=True,
        grpo_std_normalization=True, n_samples_per_prompt=8, rollout_batch_size=responses // 8,
        global_batch_size=responses, rollout_top_p=1.0, use_dynamic_batch_size=True, max_tokens_per_gpu=MICRO_BATCH,
        micro_batch_size=1, balance_data=False, balance_by_flops=False, data_pad_size_multiplier=128,
        sequence_parallel=True, allgather_cp=False, eps_clip=0.2, eps_clip_high=0.2, eps_clip_c=None,
        use_rollout_logprobs=True, keep_old_actor=False, update_weight_transport="nccl", use_wandb=False,
        use_tensorboard=False, log_multi_turn=False, **{DRIVEN: True},
        sat_slime={"method": "sat-gspo" + ("-r3" if side != WITHOUT else ""), },
    )  # fmt: skip


async def responses_of(args: Namespace, indices: list[int], url: str, rollout: int) -> tuple[list[Any], float]:
    """Return slime's samples of a batch, and the CPU seconds of the event loop's thread for all of them.

    indices: which of the slice's responses they are.
    """
    from slime.rollout.sample_hooks import apply_rollout_sample_hooks
    from slime.utils.http_utils import post
    from slime.utils.types import Sample

    gate = asyncio.Semaphore(4)

    async def one(place: int, index: int) -> Any:
        sample = Sample(index=index, group_index=place // 8, rollout_id=index, tokens=list(range(PROMPT)))
        async with gate:  # as in slime.rollout.sglang_rollout.generate
            routes = args.use_rollout_routing_replay
            output = await post(url, {"sampling_params": {"index": index}, "return_routed_experts": routes})
            entries = output["meta_info"]["output_token_logprobs"]
            sample.append_response_tokens(
                args,
                tokens=[entry[1] for entry in entries],
                log_probs=[entry[0] for entry in entries],
                trainable=True,
                meta_info=output["meta_info"],
                text=output["text"],
            )
        sample = await apply_rollout_sample_hooks(args, sample, evaluation=False, rollout_id=rollout)
        sample.reward = float(place % 2)
        return sample

    begun = time.thread_time()
    samples = list(await asyncio.gather(*(one(*which) for which in enumerate(indices))))
    return samples, time.thread_time() - begun


class Manager:
    """slime's rollout process: what slime does around a response and a batch, without its engines."""

    def __init__(self) -> None:
        from slime.ray.rollout import RolloutManager
        from slime.utils.http_utils import init_http_client

        self.args = arguments("slime", 8)
        init_http_client(self.args)
        slimes = RolloutManager.__ray_metadata__.modified_class
        self.slimes = object.__new__(slimes)
        self.slimes.custom_convert_samples_to_train_data_func = None
        self.slimes.custom_reward_post_process_func = None
        self.slimes.set_train_parallel_config(
            {"dp_size": 1, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
        )
        self.samples: list[Any] = []

    def pid(self) -> int:
        return os.getpid()

    def generate(self, side: str, port: int, rollout: int, indices: list[int]) -> float:
        """Return the CPU seconds of the event loop's thread for all responses of a batch."""
        from slime.utils.async_utils import run

        from sat_slime.plugin import r3

        self.args = self.slimes.args = arguments(side, len(indices))
        if side != "slime":  # a side has a manager of its own
            r3.read_narrow_replies()
        url = f"http://127.0.0.1:{port}/generate"
        self.samples, seconds = run(responses_of(self.args, indices, url, rollout))
        return seconds

    def convert(self, rollout: int) -> tuple[float, list[Any]]:
        """Return the seconds from the last response to the batch's reference, and the reference."""
        from sat_slime.plugin.rollout_hooks import log_rollout

        begun = time.perf_counter()
        if self.args.rollout_sample_hook_path:
            log_rollout(rollout, self.args, self.samples, {}, 1.0)
        data = self.slimes._convert_samples_to_train_data(self.samples)
        self.samples = []
        references = self.slimes._split_train_data_by_dp(data)
        return time.perf_counter() - begun, references


class Rank:
    """A trainer rank of TP 4: it gets the batch, fills slime's RoutingReplay and pops it as the routers do."""

    def __init__(self, rank: int, side: str) -> None:
        import torch
        import torch.distributed as dist
        from megatron.core import mpu
        from slime.backends.megatron_utils import cp_utils
        from slime.utils import distributed_utils
        from slime.utils.routing_replay import RoutingReplay

        from sat_slime.plugin.step import TrainerState, prepare

        torch.set_num_threads(1)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        mpu.initialize_model_parallel(create_gloo_process_groups=True)
        distributed_utils.init_gloo_group()
        cp_utils.mpu = types.SimpleNamespace(
            get_tensor_model_parallel_world_size=lambda: RANKS,
            get_tensor_model_parallel_rank=lambda: rank,
            get_context_parallel_world_size=lambda: 1,
            get_context_parallel_rank=lambda: 0,
        )
        self.state = TrainerState(8)
        if side != "slime":
            prepare(arguments(side, 8), self.state)
        self.routers = [RoutingReplay() for _ in range(LAYERS)]
        self.batch: dict[str, Any] = {}
        gc.collect()

    def pid(self) -> int:
        return os.getpid()

    def fill(self, side: str, references: list[Any], responses: int) -> float:
        from slime.backends.megatron_utils.actor import MegatronTrainRayActor
        from slime.backends.megatron_utils.data import get_data_iterator

        config = types.SimpleNamespace(moe_layer_freq=1, num_layers=LAYERS, pipeline_model_parallel_size=1)
        config.__dict__.update(
            virtual_pipeline_model_parallel_size=None, pipeline_model_parallel_layout=None,
            num_layers_in_first_pipeline_stage=None, num_layers_in_last_pipeline_stage=None,
            account_for_embedding_in_pipeline_split=False, account_for_loss_in_pipeline_split=False,
        )  # fmt: skip
        actor = types.SimpleNamespace(
            args=arguments(side, responses),
            model=[types.SimpleNamespace(module=types.SimpleNamespace(config=config))],
        )
        begun = time.perf_counter()
        batch = MegatronTrainRayActor._get_rollout_data(actor, references)
        self.state.begin(batch)
        iterator = get_data_iterator(batch)
        if side != WITHOUT:
            MegatronTrainRayActor.fill_routing_replay(actor, iterator, batch["num_microbatches"], batch)
        self.batch = batch
        return time.perf_counter() - begun

    def replay(self) -> tuple[float, str]:
        """Return the seconds of a forward pass's pops, and a digest of what they gave."""
        spent, digest = 0.0, hashlib.blake2b(digest_size=16)
        for _ in range(sum(self.batch["num_microbatches"])):
            for router in (router for router in self.routers if router.top_indices_list):
                begun = time.perf_counter()
                popped = router.pop_forward()
                spent += time.perf_counter() - begun
                digest.update(popped.int().numpy().tobytes())
        return spent, digest.hexdigest()

    def metrics(self) -> float:
        """Return the CPU seconds of the mismatch over the batch."""
        import torch

        from sat_slime.objective import mismatch_metrics

        mu = torch.cat(self.batch["rollout_log_probs"])
        pi = mu + torch.randn(len(mu), generator=torch.Generator().manual_seed(0)) * 0.02
        begun = time.thread_time()
        mismatch_metrics(pi, mu, torch.ones(len(mu), dtype=torch.bool))
        return time.thread_time() - begun

    def dump(self) -> float:
        """Return the seconds of a token dump of the batch."""
        import torch

        from sat_slime.rollout.token_dump import TokenDump, write_dump

        mu = torch.cat(self.batch["rollout_log_probs"]).numpy()
        n = self.batch["response_lengths"]
        prompt_index = np.arange(len(n)) // 8
        tokens = np.concatenate(
            [tokens[-length:].numpy() for tokens, length in zip(self.batch["tokens"], n, strict=True)]
        )
        ones, versions = np.ones(len(mu), bool), np.full(len(mu), 3)
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            dump = TokenDump(1, 1, 0, "grpo", 1.0, np.array(n), prompt_index, np.ones(len(n), np.float32), tokens, ones,
                             mu, mu, mu, versions, mu)  # fmt: skip
            write_dump(Path(folder) / "000001.safetensors", dump)
            return time.perf_counter() - begun

    def finish(self) -> None:
        """Forgets the batch, as slime does after training."""
        from slime.utils.routing_replay import RoutingReplay

        RoutingReplay.clear_all()
        self.batch = {}
        gc.collect()


# ------------------------------------------------------------------------------------------------------ a side's round


class Memory:
    """Memory of the node's processes and of its object store: a thread reads it over and over and keeps the peaks."""

    def __init__(self, processes: dict[str, list[int]]):
        self.processes = processes
        self.base = {**self.now(), "object store": 0}
        self.peaks = dict.fromkeys(self.base, 0)
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def now(self) -> dict[str, int]:
        store = os.statvfs("/dev/shm")
        own = {name: sum(map(own_bytes, pids)) for name, pids in self.processes.items()}
        return {**own, "object store": (store.f_blocks - store.f_bfree) * store.f_frsize}

    def above_base(self) -> dict[str, int]:
        return {name: value - self.base[name] for name, value in self.now().items()}

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            now = self.above_base()
            self.peaks = {name: max(self.peaks[name], value) for name, value in now.items()}
            self.peak = max(self.peak, sum(now.values()))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def own_bytes(pid: int) -> int:
    """Return the bytes of a process that are of no file and not of the object store."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(rollup.split("Pss_Anon:")[1].split()[0]) * 1024


@contextlib.contextmanager
def node(responses: int, side: str) -> Iterator[tuple[Any, list[Any], dict[str, list[int]], int]]:
    """Start a Ray with a manager and the ranks, and an engine; yield the manager, the ranks, process numbers by what
    they are, and the engine's port."""
    import ray

    from sat_slime.rollout.scratch import temporary_folder

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    engine = context.Process(target=serve, args=(responses, side != "slime", theirs), daemon=True)
    engine.start()
    port = ours.recv()
    store = max(10 * sum(lengths(responses)) * BYTES, 2**29)
    with tempfile.TemporaryDirectory(prefix="dataplane-", dir=temporary_folder()) as folder:
        ray.init(
            address="local", num_cpus=RANKS + 2, include_dashboard=False, object_store_memory=store, _temp_dir=folder,
            logging_level="ERROR",
        )  # fmt: skip
        try:
            manager = ray.remote(Manager).remote()
            ranks = [ray.remote(Rank).remote(rank, side) for rank in range(RANKS)]
            processes = {
                "manager": ray.get([manager.pid.remote()]),
                "ranks": ray.get([rank.pid.remote() for rank in ranks]),
            }
            yield manager, ranks, processes, port
        finally:
            ray.shutdown()
            engine.terminate()


def round_of(
    side: str, manager: Any, ranks: list[Any], memory: Memory, port: int, indices: list[int]
) -> dict[str, Any]:
    """Makes two batches: the first is in training when the second is put.

    indices: which of the slice's responses are in a batch.
    """
    import urllib.request

    import ray

    held: dict[str, int] = {}

    def note(when: str) -> None:
        held[when] = sum(memory.above_base().values())

    serial = ray.get(manager.generate.remote(side, port, 0, indices))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/seconds") as answer:
        engine = json.load(answer)
    note("a batch generated")
    tail, references = ray.get(manager.convert.remote(0))
    note("a batch put")
    fills = ray.get([rank.fill.remote(side, references, len(indices)) for rank in ranks])
    note("a batch filled")
    ray.get(manager.generate.remote(side, port, 1, indices))
    note("in training, next generated")
    _, following = ray.get(manager.convert.remote(1))
    note("in training, next put")
    replays = ray.get([rank.replay.remote() for rank in ranks])
    metrics, dump = ray.get([ranks[0].metrics.remote(), ranks[0].dump.remote()])
    ray.get([rank.finish.remote() for rank in ranks])
    del references
    gc.collect()
    time.sleep(0.5)
    note("trained, next put")
    memory.stop()
    del following
    peaks = {f"peak: {name}": peak for name, peak in memory.peaks.items()}
    digests = hashlib.blake2b("".join(digest for _, digest in replays).encode(), digest_size=8).hexdigest()
    values = (engine, serial, tail, max(fills), max(s for s, _ in replays), metrics, dump)
    return {
        "seconds": dict(zip(PLACES, values, strict=True)),
        "memory": {**held, **peaks, "peak: the whole node": memory.peak},
        "digest": digests,
    }


if __name__ == "__main__":
    main()
