"""Lets the unmodified slime, Megatron-LM and SGLang run where there is no GPU.

A run with `cluster.device: cpu` puts the folder `site` onto its job's PYTHONPATH: every Python of the job then calls
`processes.install`, which patches a module right after it is imported, and only then. Nothing else in the plugin knows
of it: trainer, engines, rollout manager, hooks and driver run as on GPUs.

There is a file for each thing that is patched, and `card` for a run whose trainer and engine share one GPU, which has
the folder, too. Megatron's layers without Transformer Engine are those of the model's family (sat_slime.models).
`slimes_parser` is apart: it asks slime's parser alone, about a run on GPUs too where there is none.

Importing this package imports no torch.
"""

import importlib.util

VARIABLE = "SAT_SLIME_DEVICE"
"""Environment variable that is `cpu` in every process of such a run."""
CARD_VARIABLE = "SAT_SLIME_CARD"
"""Environment variable with the number of the GPU that all processes of a run share; unset in other runs."""
PUSH_VARIABLE = "SAT_SLIME_PUSH"
"""Environment variable that is `gloo` where such a run pushes weights by Gloo, which takes tensors on a GPU, too."""
INSTEAD = {
    "transformer_engine": "Megatron's layers of sat_slime/models/layers.py, not fused, not compiled, torch's AdamW",
    "fused_weight_gradient_mlp_cuda": "gradients added up without Apex",
    "flash_attn": "the attention that Megatron chooses",
    "flashinfer": "Triton's attention and experts, PyTorch's sampling, no CUDA graphs",
}
"""Modules of slime's image, and what a run on one GPU has in place of each that is missing."""


def missing() -> list[str]:
    """Return the modules of INSTEAD that this Python has not. A stand-in for one is of this package."""
    specs = {module: importlib.util.find_spec(module) for module in INSTEAD}
    return [module for module, spec in specs.items() if spec is None or "sat_slime" in type(spec.loader).__module__]
