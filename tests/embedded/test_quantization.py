"""Rounded weights against the rounding of each single number, spelled out."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from sat_slime.embedded.quantization import ROUNDED, quantize_folder

E4M3 = sorted(
    {sign * (m / 8) * 2.0**-6 for sign in (-1, 1) for m in range(8)}
    | {sign * (1 + m / 8) * 2.0**e for sign in (-1, 1) for e in range(-6, 9) for m in range(8) if (e, m) != (8, 7)}
)
"""Every finite number of E4M3: exponents -6 to 8, three bits of mantissa, the largest 448."""


def rounded_by_hand(row: list[float], to: str) -> list[float]:
    """A row to the nearest code times the row's scale; in float64, so ties and last bits may differ."""
    codes = E4M3 if to == "float8_e4m3" else list(range(-127, 128))
    largest = max(map(abs, row)) or max(codes)
    scale = largest / max(codes)
    return [min(codes, key=lambda code: abs(code - value / scale)) * scale for value in row]


@pytest.mark.parametrize("to", ["float8_e4m3", "int8"])
@pytest.mark.parametrize("size", [1e-6, 1.0, 300.0])
def test_each_row_has_a_scale_of_its_own(to, size):
    weight = torch.randn(8, 40, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 2, 8)[:, None] * size
    expected = [rounded_by_hand(row, to) for row in weight.double().tolist()]
    torch.testing.assert_close(ROUNDED[to](weight), torch.tensor(expected), rtol=1e-5, atol=0)


@pytest.mark.parametrize("to", ["float8_e4m3", "int8"])
def test_a_row_of_zeros_and_a_row_of_one_size_stay_as_they_are(to):
    weight = torch.tensor([[0.0, 0.0], [0.3, -0.3], [0.0, 5.0]])
    torch.testing.assert_close(ROUNDED[to](weight), weight, rtol=1e-6, atol=0)


def test_bfloat16_is_the_cast():
    weight = torch.randn(4, 4)
    assert torch.equal(ROUNDED["bfloat16"](weight), weight.bfloat16().float())


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    source = tmp_path / "v000008"
    source.mkdir()
    (source / "config.json").write_text("{}")
    names = ["self_attn.q_proj", "self_attn.o_proj", "mlp.experts.3.gate_proj", "mlp.experts.3.down_proj", "mlp.gate"]
    weights = {f"model.layers.0.{name}.weight": torch.randn(16, 32) for name in names}
    weights |= {"model.embed_tokens.weight": torch.randn(16, 32), "lm_head.weight": torch.randn(16, 32)}
    weights |= {"model.layers.0.self_attn.q_norm.weight": torch.randn(16), "model.norm.weight": torch.randn(32)}
    save_file(weights, source / "model.safetensors")
    return source


@pytest.mark.parametrize(
    ("to", "least", "most"), [("bfloat16", 1e-3, 3e-3), ("int8", 5e-3, 1e-2), ("float8_e4m3", 0.02, 0.04)]
)
def test_projections_alone_are_rounded_and_the_error_is_theirs(folder, tmp_path, to, least, most):
    target = tmp_path / f"v000008.{to}"
    told = quantize_folder(folder, target, to)
    before, after = load_file(folder / "model.safetensors"), load_file(target / "model.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith("_proj.weight")}
    errors = sum(float((after[name] - before[name]).double().square().sum()) for name in changed)
    norms = sum(float(before[name].double().square().sum()) for name in changed)
    assert told == pytest.approx(math.sqrt(errors / norms)) and least < told < most
    assert (target / "config.json").read_text() == "{}"
    assert quantize_folder(folder, target, to) == told  # over itself, as after a resume
