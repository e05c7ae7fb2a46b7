import subprocess
import sys

import pytest

FIRST_USES = [
    "torch.tensor(1).item()",
    "from torch import Tensor",
    "import torch.nn.functional as F; F.relu(torch.tensor(1.0))",
    "import torch.distributed as dist; assert dist is torch.distributed; assert dist.__spec__.origin",
    "import torch.utils.data.dataloader",
    "import torch.onnx; assert torch.onnx is sys.modules['torch.onnx']",
]


def answer(program: str) -> str:
    lines = [
        "import inspect, sys, threading",
        "from sat_slime.cli.torch_on_use import import_torch_on_use",
        "import_torch_on_use()",
        "import torch",
        "inspect.getmodule(inspect.currentframe())",  # asks every module for its file
        "assert 'torch._C' not in sys.modules",
        program,
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("use", FIRST_USES)
def test_torch_is_whole_at_its_first_use(use):
    assert answer(f"{use}\nprint(type(torch).__name__, torch is sys.modules['torch'], torch._C is not None)") == (
        "module True True\n"
    )


def test_threads_that_come_at_once_all_wait_for_the_whole_of_it():
    program = """
found = []
threads = [threading.Thread(target=lambda: found.append(torch.compile is not None)) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(found)"""
    assert answer(program) == "[True, True, True, True]\n"


def test_an_attribute_that_torch_does_not_have_is_named():
    assert "no attribute 'nothing'" in answer("try: torch.nothing\nexcept AttributeError as error: print(error)")
