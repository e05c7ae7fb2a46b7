"""Token dumps: what is written is read back, and nothing else is taken for one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sat_slime.rollout.token_dump import (
    RESPONSE_COLUMNS,
    TOKEN_COLUMNS,
    DumpError,
    TokenDump,
    dump_path,
    dump_paths,
    forget_dumps,
    read_dump,
    write_dump,
)


def make_dump(**changes) -> TokenDump:
    """Three responses of 2, 0 and 3 tokens."""
    rng = np.random.default_rng(0)
    n = 5
    fields = {
        "iteration": 17,
        "step": 17,
        "updates": 16,
        "method": "sat-gspo-r3",
        "temperature": 0.95,
        "lengths": np.array([2, 0, 3]),
        "prompt_index": np.array([0, 0, 1]),
        "rewards": np.array([1, 0, 1], np.float32),
        "tokens": np.arange(n, dtype=np.int32),
        "mask": np.array([True, True, True, False, True]),
        "log_probs": -rng.random(n, np.float32),
        "rollout_log_probs": -rng.random(n, np.float32),
        "advantages": rng.random(n, np.float32),
        "versions": np.full(n, 8, np.int32),
        "entropy": rng.random(n, np.float32),
        "more": {"expert_flips": np.zeros((n, 2), np.uint8), "tv": rng.random(n, np.float32)},
        "metadata": {"trainer_dtype": "float32"},
    }
    return TokenDump(**{**fields, **changes})


@pytest.fixture
def path(tmp_path):
    return dump_path(tmp_path, 17)


def edit(path, changed=(), removed=(), **metadata) -> None:
    """Writes a dump again with other arrays or metadata; a value of None removes the key."""
    facts = {"schema": "sat_slime.tokens/1", "iteration": "17", "step": "17", "updates": "16", "method": "grpo"}
    facts = {**facts, "temperature": "1.0", **metadata}
    arrays = {k: v for k, v in {**load_file(path), **dict(changed)}.items() if k not in removed}
    save_file(arrays, path, metadata={k: v for k, v in facts.items() if v is not None})


def test_reading_gives_what_was_written(path):
    dump = make_dump()
    write_dump(path, dump)
    found = read_dump(path)
    for name, kind in {**RESPONSE_COLUMNS, **TOKEN_COLUMNS}.items():
        assert getattr(found, name).dtype == kind, name
        np.testing.assert_array_equal(getattr(found, name), getattr(dump, name), err_msg=name)
    assert found.more.keys() == dump.more.keys()
    for name, values in dump.more.items():
        assert found.more[name].dtype == values.dtype
        np.testing.assert_array_equal(found.more[name], values)
    facts = ("iteration", "step", "updates", "method", "temperature", "metadata")
    assert [getattr(found, name) for name in facts] == [getattr(dump, name) for name in facts]
    assert [file.name for file in path.parent.iterdir()] == ["000017.safetensors"]


def test_files_are_found_in_the_order_of_their_steps(tmp_path):
    wanted = [dump_path(tmp_path, i, part) for i, part in ((9, 0), (9, 1), (9, 10), (10, 0), (1234567, 0))]
    for path in reversed(wanted):
        write_dump(path, make_dump())
    (tmp_path / "dumps" / "000011.safetensors.part").write_text("torn")
    (tmp_path / "dumps" / "other.safetensors").write_text("")
    assert dump_paths(tmp_path) == wanted
    assert dump_paths(tmp_path / "nowhere") == []
    forget_dumps(tmp_path, after=9)
    assert dump_paths(tmp_path) == wanted[:3]


@pytest.mark.parametrize(
    ("column", "value", "named"),
    [
        ("log_probs", np.nan, "log_probs is nan"),
        ("rollout_log_probs", -np.inf, "rollout_log_probs is -inf"),
        ("rollout_log_probs", 5.0, "rollout_log_probs is 5"),
        ("log_probs", -7e34, "log_probs is -7e+34"),
        ("versions", 10000, "lag is -99"),
        ("rewards", np.nan, "rewards is nan"),
        ("checkpoint_log_probs", np.nan, "checkpoint_log_probs is nan"),
        ("tv", np.inf, "tv is inf"),
    ],
)
def test_a_token_that_cannot_be_is_named_and_left_out(path, column, value, named):
    dump = make_dump()
    write_dump(path, dump)
    assert read_dump(path).left_out == ()
    values = np.array(getattr(dump, column) if hasattr(dump, column) else np.full(len(dump.tokens), -0.5, np.float32))
    active = int(np.flatnonzero(dump.mask)[-1])
    response = int(np.searchsorted(np.cumsum(dump.lengths), active, side="right"))
    values[response if column == "rewards" else active] = value
    edit(path, changed={column: values})
    found = read_dump(path)
    (told,) = found.left_out
    assert told.startswith(named) and f"at response {response}, position " in told
    assert not found.mask[active] and found.mask.sum() < dump.mask.sum()
    values[:] = 0 if column == "versions" else -0.5
    edit(path, changed={column: values})
    assert read_dump(path).left_out == ()


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float32])
def test_a_mask_of_numbers_is_read_and_what_is_neither_0_nor_1_left_out(path, kind):
    dump = make_dump()
    write_dump(path, dump)
    mask = dump.mask.astype(kind)
    edit(path, changed={"mask": mask})
    assert read_dump(path).left_out == () and (read_dump(path).mask == dump.mask).all()
    mask[0] = 2
    edit(path, changed={"mask": mask})
    assert read_dump(path).left_out == ("mask is 2 at response 0, position 0: left out (from 0)",)
    assert not read_dump(path).mask[0]


@pytest.mark.parametrize("kept", [0, 7, 300, -1])
def test_a_torn_file_is_named(path, kept):
    write_dump(path, make_dump())
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DumpError, match=r"000017\.safetensors is no whole safetensors file"):
        read_dump(path)


def test_a_missing_or_foreign_file_is_named(tmp_path, path):
    with pytest.raises(DumpError, match="000017"):
        read_dump(path)
    save_file({"weight": np.zeros(3)}, tmp_path / "x.safetensors")
    with pytest.raises(DumpError, match="names no schema"):
        read_dump(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"schema": "sat_slime.tokens/2"}, "has schema 'sat_slime.tokens/2', expected is 'sat_slime.tokens/1'"),
        ({"updates": "many"}, "updates is 'many', not of type int"),
        ({"temperature": None}, "temperature is None"),
        ({"removed": ["entropy"]}, "lacks the column entropy"),
        ({"changed": {"tokens": np.zeros(5, np.float32)}}, "tokens is of type float32"),
        ({"changed": {"mask": np.zeros(5, np.complex64)}}, "mask is of type complex64"),
        ({"changed": {"log_probs": np.zeros(4, np.float32)}}, r"log_probs has shape \(4,\), but lengths tell 3"),
        ({"changed": {"tv": np.zeros((1, 5), np.float32)}}, r"tv has shape \(1, 5\)"),
        ({"changed": {"entropy": np.zeros((5, 2), np.float32)}}, r"entropy has shape \(5, 2\)"),
        ({"changed": {"lengths": np.array([6, -1, 0])}}, "lengths of shape"),
        ({"changed": {"lengths": np.array([2**62, 2**62, 2**62, 2**62 + 5])}}, "there are 5 tokens"),
    ],
)
def test_what_contradicts_itself_is_refused(path, changes, told):
    write_dump(path, make_dump())
    edit(path, **changes)
    with pytest.raises(DumpError, match=f"000017.*{told}"):
        read_dump(path)


def test_an_inactive_token_may_hold_anything(path):
    dump = make_dump()
    log_probs = np.where(dump.mask, dump.log_probs, np.nan)
    write_dump(path, dataclasses.replace(dump, log_probs=log_probs))
    assert np.isnan(read_dump(path).log_probs).sum() == 1
