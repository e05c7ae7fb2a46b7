"""Which processes are patched, and what they patch; each test starts a new Python."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sat_slime.launch.cpu_run import SITE

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


def test_megatron_and_slime_see_the_cpu_as_cuda(tmp_path):
    package(tmp_path, "megatron", ASKS_FOR_CUDA)
    assert python("import megatron; print(*megatron.ask())", tmp_path) == ["cpu", "cpu", "1"]


def test_everyone_elses_torch_is_torchs_own(tmp_path):
    package(tmp_path, "megatron", ASKS_FOR_CUDA)
    package(tmp_path, "other", ASKS_FOR_CUDA)
    program = """
import torch
zeros, kind = torch.zeros, torch.Tensor.type
import megatron, other
print(other.torch is torch, torch.zeros is zeros, torch.Tensor.type is kind, megatron.torch.nn is torch.nn)
try:
    other.ask()
except (RuntimeError, AssertionError):
    print("refused")
"""
    assert python(program, tmp_path) == ["True", "True", "True", "True", "refused"]


def test_what_ray_sends_of_megatrons_torch_arrives_as_it(tmp_path):
    package(tmp_path, "megatron", ASKS_FOR_CUDA)
    program = """
import pickle, megatron
for module in (megatron.torch, megatron.torch.cuda, megatron.torch.cuda.nvtx):
    print(pickle.loads(pickle.dumps(module)) is module)
"""
    assert python(program, tmp_path) == ["True"] * 3


def test_types_are_named_as_on_a_gpu_only_while_the_optimizer_asks(tmp_path):
    program = """
import torch
from sat_slime.cpu.megatron import types_named_cuda
name = lambda x: x.type()
x = torch.zeros(1)
print(types_named_cuda()(name)(x), name(x), types_named_cuda()(lambda x: x.type(torch.float64).dtype)(x))
"""
    assert python(program, tmp_path) == ["torch.cuda.FloatTensor", "torch.FloatTensor", "torch.float64"]


MEETS = """
import socket, psutil, torch.distributed as dist
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
for _ in range(2):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    store = dist.TCPStore("127.0.0.1", port)
    store.set("key", "value")
    heard = [c.laddr for c in psutil.Process().net_connections("inet") if not c.raddr]
    print(*{address.ip for address in heard}, port in [address.port for address in heard], store.get("key").decode())
    dist.destroy_process_group()
"""


def test_process_groups_meet_on_loopback_and_again_where_they_met(tmp_path):
    pytest.importorskip("psutil")
    words = python(MEETS, tmp_path, GLOO_SOCKET_IFNAME="lo")
    assert words == ["127.0.0.1", "True", "value"] * 2


def test_slime_is_asked_for_fp32_by_its_own_function(tmp_path):
    program = """
from types import SimpleNamespace as N
from sat_slime.cpu import slime
def defaults(args):
    args.bf16 = not args.fp16
    return args
arguments = N(_set_default_megatron_args=defaults, set_default_megatron_args=defaults)
slime.choose_dtype(arguments)
print(arguments._set_default_megatron_args(N(fp16=False)).bf16, arguments.set_default_megatron_args(N(fp16=False)).bf16)
"""
    assert python(program, tmp_path, SAT_SLIME_CPU_DTYPE="float32") == ["False", "False"]
    assert python(program, tmp_path, SAT_SLIME_CPU_DTYPE="bfloat16") == ["True", "True"]


@pytest.mark.parametrize("module, found", [("package", True), ("missing", False)])
def test_only_what_is_there_is_patched(tmp_path, monkeypatch, module, found):
    from sat_slime.cpu.processes import AfterImport

    package(tmp_path, "package", "value = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    finder = AfterImport({"package": lambda m: setattr(m, "value", 2), "missing": print}, {})
    assert (finder.find_spec(module, None) is not None) is found


LOADS = """
import ctypes, re
def held():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
def load(name):
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [libc.malloc(4096) for _ in range(2**15)]
    for block in blocks:
        ctypes.memset(block, 1, 4096)
    for block in blocks[:-1]:  # the last one keeps the heap from shrinking by itself
        libc.free(block)
    return held()
"""
LOADERS = {
    "transformers.models.auto.tokenization_auto": "class AutoTokenizer:\n    from_pretrained = load\n",
    "sglang.srt.utils.hf_transformers.tokenizer": "get_tokenizer = load\n",
}


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc keeps memory and gives it back")
@pytest.mark.parametrize("module", LOADERS)
def test_a_loaded_tokenizer_leaves_no_free_memory_behind(tmp_path, module):
    """128 MiB of small blocks are freed while it loads."""
    *folders, name = module.split(".")
    for depth in range(1, len(folders) + 1):
        package(tmp_path.joinpath(*folders[: depth - 1]), folders[depth - 1], "")
    tmp_path.joinpath(*folders, f"{name}.py").write_text(LOADS + LOADERS[module])
    program = f"""
import {module} as module
load = module.get_tokenizer if hasattr(module, "get_tokenizer") else module.AutoTokenizer.from_pretrained
print(load("words") - module.held() > 96)
"""
    assert python(program, tmp_path) == ["True"]
