"""Looks for the NaN in which a rank of configs/recipes/qwen2.5-7b-8gpus.yaml ends on a GPU, and on it alone.

    PYTHONPATH=SLIME:MEGATRON python bench/nan_hunt.py [FILE] [--set KEY=VALUE] [--tokens 16384] [--response 8192]

Forward passes and the loss were finite there; after the first backward pass NaN stood in the gradients of the embedding
and of the lowest layers' attention, wholly in those of its output's matrix. That gradient is a product with attention's
output, so this says first whether that output is finite when recomputation makes it again, then whether SDPA's own
gradients are, with the file's heads, for each of its kernels.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import rank
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

FILE = Path(__file__).parents[1] / "configs" / "recipes" / "qwen2.5-7b-8gpus.yaml"


def odd(tensor: Tensor) -> int:
    """How many numbers of a tensor are not finite."""
    return int((~torch.isfinite(tensor)).sum())


def watch(part: torch.nn.Module) -> dict[str, Tensor]:
    """Prints the first outputs that are not finite, with what went in, and whether recomputation made them. Returns
    where the query, key and value of the first odd attention, or else of the lowest layer, are kept."""
    names, told, caught = {module: name for name, module in part.named_modules()}, set(), {}

    def look(module: torch.nn.Module, inputs: tuple, output: Any) -> None:
        outputs = [x for x in (output if isinstance(output, tuple) else (output,)) if isinstance(x, Tensor)]
        wrong = sum(odd(x) for x in outputs if x.is_floating_point())
        if type(module).__name__ == "PackedAttention" and (wrong or not caught):
            caught.setdefault("odd" if wrong else "lowest", [x.detach().clone() for x in inputs[:3]])
        # Full recomputation runs a layer again, with gradients, in the backward pass; the first time it has none.
        when = "recomputed" if torch.is_grad_enabled() else "first"
        if wrong and len(told) < 8 and (names[module], when) not in told:
            told.add((names[module], when))
            clean = not any(odd(x) for x in inputs if isinstance(x, Tensor) and x.is_floating_point())
            print(f"  {when}: {names[module]} {type(module).__name__}, {wrong} of its output not finite, input "
                  f"{'finite' if clean else 'not finite either'}", flush=True)  # fmt: skip

    torch.nn.modules.module.register_module_forward_hook(look)
    return caught


def attention_gradients(query: Tensor, key: Tensor, value: Tensor, response: int) -> None:
    """Prints what each kernel of SDPA makes of rows (tokens, heads, dim), forward and backward."""
    grids = [x.reshape(-1, response, *x.shape[-2:]).transpose(1, 2)[:1] for x in (query, key, value)]
    heads = f"{grids[0].shape[1]} heads to {grids[1].shape[1]}, {response} tokens"
    for backend in (
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.MATH,
    ):
        q, k, v = (x.detach().clone().requires_grad_() for x in grids)
        try:
            with sdpa_kernel(backend):
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            out.backward(torch.randn_like(out))
            wrong = [f"{odd(x.grad)} of {name}'s gradient" for name, x in (("q", q), ("k", k), ("v", v))]
            print(f"  SDPA {backend.name}, {heads}: not finite {odd(out)} of the output, {', '.join(wrong)}")
        except RuntimeError as error:
            print(f"  SDPA {backend.name}, {heads}: {str(error).splitlines()[0][:90]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=FILE)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--response", type=int, default=8_192)
    options = parser.parse_args()
    rank.answer_as_this_rank()
    from sat_slime.config import load_config

    config, gpu = load_config(options.file, options.overrides), torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    rank.join(config, gpu)
    part, _ = rank.build(config, device)
    caught = watch(part)
    inputs = rank.step_inputs(options.tokens, options.response, config.model.vocab_size, device)
    rank.run_steps(config, part, None, inputs, "sat-gspo", 1, gpu)
    wrong = [name for name, p in part.named_parameters() if odd(p.main_grad)]
    print(f"gradients: {len(wrong)} of {len(list(part.parameters()))} not finite: {', '.join(wrong[:6]) or 'none'}")
    for which, rows in caught.items():
        print(f"attention of the {which} layer")
        attention_gradients(*rows, options.response)


if __name__ == "__main__":
    main()
