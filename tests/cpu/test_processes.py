"""Which processes are patched, and what they patch, in a new Python."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sat_slime.launch.small_run import SITE

ROOT = Path(__file__).parents[2]


def python(program, tmp_path, **variables):
    """Standard output of a program in a process of a run on a CPU, which can import from tmp_path."""
    path = os.pathsep.join([str(SITE), str(tmp_path), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "SAT_SLIME_DEVICE": "cpu", **variables}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def package(tmp_path, name, text):
    """Writes a package of one module."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(text)


ASKS_FOR_CUDA = """
import torch
def ask():
    x = torch.zeros(2, device="cuda", pin_memory=True) + torch.tensor([1.0], device=torch.cuda.current_device())
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.synchronize()
    return x.cuda().device, torch.empty(1, device=0).device, torch.cuda.device_count()
"""


def test_a_process_of_such_a_run_starts_without_torch(tmp_path):
    assert python("import sys; print('torch' in sys.modules, 'sat_slime.cpu' in sys.modules)", tmp_path) == [
        "False",
        "True",
    ]


SEES = """
import json, os, pickle, socket, psutil, torch, torch.distributed as dist
from types import SimpleNamespace as N
zeros, kind = torch.zeros, torch.Tensor.type
import megatron, other
from sat_slime.cpu import slime
from sat_slime.cpu.megatron import types_named_cuda

seen = {"megatron": [str(answer) for answer in megatron.ask()]}
seen["everyone else"] = [other.torch is torch, torch.zeros is zeros, torch.Tensor.type is kind]
seen["everyone else"] += [megatron.torch.nn is torch.nn]
try:
    other.ask()
except (RuntimeError, AssertionError):
    seen["everyone else"].append("refused")
sent = (megatron.torch, megatron.torch.cuda, megatron.torch.cuda.nvtx)
seen["sent"] = [pickle.loads(pickle.dumps(module)) is module for module in sent]

name, x = lambda x: x.type(), torch.zeros(1)
of_float = types_named_cuda()(lambda x: x.type(torch.float64).dtype)(x)
seen["types"] = [types_named_cuda()(name)(x), name(x), str(of_float)]

def defaults(args):
    args.bf16 = not args.fp16
    return args
arguments = N(_set_default_megatron_args=defaults, set_default_megatron_args=defaults)
slime.train_in_fp32(arguments)
seen["bf16"] = [set_(N(fp16=False)).bf16 for set_ in vars(arguments).values()]

seen["meets"] = []
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
for _ in range(2):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    store = dist.TCPStore("127.0.0.1", port)
    store.set("key", "value")
    heard = [c.laddr for c in psutil.Process().net_connections("inet") if not c.raddr]
    seen["meets"] += [*{address.ip for address in heard}, port in [address.port for address in heard]]
    seen["meets"] += [store.get("key").decode()]
    dist.destroy_process_group()
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What a process of such a run sees."""
    folder = tmp_path_factory.mktemp("packages")
    for name in ("megatron", "other"):
        package(folder, name, ASKS_FOR_CUDA)
    return json.loads(" ".join(python(SEES, folder, GLOO_SOCKET_IFNAME="lo")))


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("megatron", ["cpu", "cpu", "1"]),  # Megatron and slime see the CPU as CUDA
        ("everyone else", [True, True, True, True, "refused"]),  # their torch is torch's own
        ("sent", [True] * 3),  # what Ray sends of Megatron's torch arrives as it
        ("types", ["torch.cuda.FloatTensor", "torch.FloatTensor", "torch.float64"]),  # while the optimizer asks
        ("bf16", [False, False]),  # slime is asked for fp32 by its own function
        ("meets", ["127.0.0.1", True, "value"] * 2),  # process groups meet on loopback, and again where they met
    ],
)
def test_a_process_sees(seen, what, expected):
    assert seen[what] == expected


@pytest.mark.parametrize("module, found", [("package", True), ("missing", False)])
def test_only_what_is_there_is_patched(tmp_path, monkeypatch, module, found):
    from sat_slime.cpu.processes import AfterImport

    package(tmp_path, "package", "value = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    finder = AfterImport({"package": lambda m: setattr(m, "value", 2), "missing": print}, {})
    assert (finder.find_spec(module, None) is not None) is found
