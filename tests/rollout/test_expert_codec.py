import base64

import numpy as np
import pytest

from sat_slime.rollout import expert_codec as codec


def test_round_trip():
    experts = np.random.default_rng(0).integers(0, 300, (5, 3, 4))
    assert np.array_equal(codec.decode(codec.encode(experts.astype(np.uint16)), 5, 3, 4), experts)


def test_the_wire_is_little_endian_int32():
    assert base64.b64decode(codec.encode(np.array([[[1, 258]]], dtype=np.uint16))) == b"\x01\0\0\0\x02\x01\0\0"


@pytest.mark.parametrize(("experts", "dtype"), [(1, "u1"), (8, "u1"), (256, "u1"), (257, "u2"), (70_000, "u4")])
def test_smallest_type_that_holds_the_experts(experts, dtype):
    assert codec.storage_dtype(experts) == np.dtype(dtype)
    assert np.array([experts - 1]).astype(codec.storage_dtype(experts))[0] == experts - 1


@pytest.mark.parametrize("rows", [4, 6])
def test_another_size_is_refused(rows):
    with pytest.raises(ValueError, match=f"{rows} tokens x 3 layers x top-2"):
        codec.decode(codec.encode(np.zeros((5, 3, 2))), rows, 3, 2)


@pytest.mark.parametrize("text", ["not base64!", "AAA", "ä"])
def test_what_is_not_base64_is_refused(text):
    with pytest.raises(ValueError, match="not base64"):
        codec.decode(text, 1, 1, 1)
