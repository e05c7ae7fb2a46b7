"""A diagnosis against loops over tokens, in float64."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re

import numpy as np
import pytest
from made_up_dumps import PARTS, made_up_dump, write_dumps

from sat_slime.report.attribution import (
    Tokens,
    attribute,
    bound,
    by_entropy,
    by_lag,
    by_position,
    by_probability,
    load_tokens,
    overlap,
    proxies,
    quantile,
    rank_correlation,
    tail_bounds,
)
from sat_slime.rollout.token_dump import TokenDump, dump_path, dump_paths, write_dump


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[list[TokenDump], Tokens]:
    folder = tmp_path_factory.mktemp("run")
    dumps = write_dumps(folder)
    return dumps, load_tokens(dump_paths(folder))


def active(dumps: list[TokenDump], name: str) -> list[float]:
    columns = [getattr(dump, name) if hasattr(dump, name) else dump.more[name] for dump in dumps]
    return [float(v) for dump, column in zip(dumps, columns, strict=True) for v in column[dump.mask]]


@pytest.mark.parametrize("replayed", [False, True], ids=["free routing", "r3"])
def test_tokens_are_the_active_ones_and_parts_sum_to_d_exactly(tmp_path, replayed):
    dumps = write_dumps(tmp_path, replayed=replayed)
    tokens = load_tokens(dump_paths(tmp_path))
    names = ("log_probs_own_routing", "log_probs_replayed", *(f"checkpoint_log_probs_{routes}" for routes in ROUTES))
    a_own, a_engine, b_own, b_engine, in_engine_dtype = (np.array(active(dumps, name)) for name in names)
    pi, mu = np.array(active(dumps, "log_probs")), np.array(active(dumps, "rollout_log_probs"))
    by_hand = {
        "policy_weights": a_engine - b_engine,
        "policy_routes": 0 * pi if replayed else (a_own - b_own) - (a_engine - b_engine),
        "routing": 0 * pi if replayed else b_own - b_engine,
        "precision": b_engine - in_engine_dtype,
        "rest": in_engine_dtype - mu,
    }
    assert list(tokens.parts) == list(by_hand) and tokens.replayed is replayed
    for name, part in tokens.parts.items():
        assert part.dtype == np.float64 and part.tolist() == by_hand[name].tolist(), name
    assert (tokens.d == pi - mu).all() and (sum(tokens.parts.values()) == tokens.d).all()
    positions = [t for dump in dumps for length in dump.lengths for t in range(length)]
    kept = [keep for dump in dumps for keep in dump.mask]
    assert tokens.position.tolist() == [p for p, keep in zip(positions, kept, strict=True) if keep]
    assert set(tokens.lag) == {1, 2, 3, 4} and tokens.steps == len(dumps)


ROUTES = ("own_routing", "replayed", "engine_dtype")


@pytest.mark.parametrize("alpha", [None, 0.9, 0.99])
def test_shares_are_those_by_hand_and_sum_to_one(run, alpha):
    _, tokens = run
    beyond = None if alpha is None else quantile(np.abs(tokens.d), alpha)
    inside = tokens.lag > 1
    found = attribute(tokens.parts, inside, beyond)
    rows = [i for i in np.flatnonzero(inside) if beyond is None or abs(tokens.d[i]) > beyond]
    total = sum(abs(tokens.d[i]) for i in rows)
    for name, part in tokens.parts.items():
        assert found["size"][name] == pytest.approx(sum(abs(part[i]) for i in rows) / len(rows))
        share = sum(math.copysign(1, tokens.d[i]) * part[i] for i in rows if tokens.d[i]) / total
        assert found["share"][name] == pytest.approx(share, abs=1e-12)
        if beyond is None:
            assert math.isnan(found["decides"][name])
        else:
            decided = sum(abs(tokens.d[i] - part[i]) <= beyond for i in rows) / len(rows)
            assert found["decides"][name] == pytest.approx(decided)
    assert found["share"].sum() == pytest.approx(1)


def test_the_tail_begins_at_the_papers_quantile():
    d = np.array([0.1, -0.5, 0.2, 0.4, -0.3, 0.6, 0.7, 0.8, 0.9, 1.0])
    assert tail_bounds(d) == {"q90": 0.9, "q99": 1.0}


def test_groups_hold_every_token_once(run):
    _, tokens = run
    for group in (
        by_lag,
        by_position,
        by_probability,
        by_entropy,
    ):
        groups = group(tokens)
        assert len(groups) > 2 and all(inside.any() for inside in groups.values())
        assert (np.sum(list(groups.values()), axis=0) == 1).all(), group.__name__
    for name, inside in by_probability(tokens).items():
        low, high = map(float, name.split("–"))
        assert (np.exp(tokens.log_mu[inside]) >= low).all() and (np.exp(tokens.log_mu[inside]) <= high).all()
    places = [name.split("–") for name in by_position(tokens)]
    assert places[0][0] == "1" and all(int(a[-1]) + 1 == int(b[0]) for a, b in itertools.pairwise(places))


def test_the_bound_is_that_by_hand(run):
    dumps, tokens = run
    gains, penalties, sampled = [], [], []
    for dump in dumps:
        start = 0
        for length, reward in zip(dump.lengths, dump.rewards, strict=True):
            mine = [i for i in range(start, start + length) if dump.mask[i]]
            start += length
            r = [math.exp(float(dump.log_probs[i]) - float(dump.rollout_log_probs[i])) for i in mine]
            gains.append(float(reward) * sum(x - 1 for x in r))
            penalties.append(4 * sum(float(dump.more["tv"][i]) for i in mine))
            sampled.append(4 * sum(abs(x - 1) / 2 for x in r))
    found = bound(tokens)
    assert found.responses == len(gains)
    assert found.gain == pytest.approx(np.mean(gains))
    assert found.error == pytest.approx(np.std(gains, ddof=1) / math.sqrt(len(gains)))
    assert found.penalty == pytest.approx(np.mean(penalties)) and found.sampled_penalty == pytest.approx(
        np.mean(sampled)
    )
    assert bound(tokens, xi=0.5).penalty == pytest.approx(np.mean(penalties) / 2)


def test_the_sampled_ratio_estimates_the_total_variation_and_the_log_ratio_does_not():
    """Eq. tvid, on distributions of 6 tokens from which many samples are drawn."""
    rng = np.random.default_rng(0)
    mu, pi = rng.dirichlet(np.ones(6), 400), rng.dirichlet(np.ones(6), 400)
    tv = np.abs(mu - pi).sum(1) / 2
    states = np.repeat(np.arange(400), 200)
    samples = np.concatenate([rng.choice(6, 200, p=row) for row in mu])
    pi, mu, empty = pi[states, samples], mu[states, samples], np.zeros(0)
    found = proxies(Tokens(np.log(pi) - np.log(mu), empty, empty, np.log(mu), empty, {}, {}, {}, False))
    assert found["|r − 1| / 2"].mean() == pytest.approx(tv.mean(), rel=0.05)
    np.testing.assert_allclose(found["|π − μ| / 2"], np.abs(pi - mu) / 2, rtol=1e-9)
    np.testing.assert_allclose(found["|log r|"], np.abs(np.log(pi / mu)), rtol=1e-9)


def test_rank_correlation_and_overlap():
    values = np.array([3.0, 1.0, 2.0, 2.0, 5.0])
    assert rank_correlation(values, np.exp(values)) == pytest.approx(1)
    assert rank_correlation(values, -values) == pytest.approx(-1)
    # ranks 4, 1, 2.5, 2.5, 5 against 1, 2, 3, 4, 5
    assert rank_correlation(values, np.arange(5.0)) == pytest.approx(
        np.corrcoef([4, 1, 2.5, 2.5, 5], [1, 2, 3, 4, 5])[0, 1]
    )
    assert math.isnan(rank_correlation(values, np.ones(5)))
    a, b = np.arange(100.0), np.arange(100.0)
    b[[95, 0]] = b[[0, 95]]
    assert overlap(a, a) == 1 and overlap(a, b) == pytest.approx(0.9)


def test_what_is_broken_in_a_dump_is_named_and_makes_no_share_nan(tmp_path):
    write_dumps(tmp_path, range(5, 12, 3))
    whole = load_tokens(dump_paths(tmp_path))
    one = made_up_dump(8)
    token = int(np.flatnonzero(one.mask)[3])
    one.more["checkpoint_log_probs"][token] = np.nan
    write_dump(dump_path(tmp_path, 8), one)
    write_dump(dump_path(tmp_path, 12), made_up_dump(11))
    last = made_up_dump(14)
    write_dump(dump_path(tmp_path, 14), dataclasses.replace(last, mask=np.zeros_like(last.mask)))
    tokens = load_tokens(dump_paths(tmp_path))
    assert len(tokens.d) == len(whole.d) - 1 and tokens.steps == 3
    assert np.isfinite(attribute(tokens.parts)["share"]).all()
    nan, again, empty = tokens.damaged
    assert re.search(r"000008\.safetensors: iteration 8, update 8: checkpoint_log_probs is nan at response \d+", nan)
    assert "000012.safetensors: it is update 11 again, which 000011.safetensors holds" in again
    assert "000014.safetensors: it has no active token" in empty


def test_only_the_dumps_that_tell_most_are_taken(tmp_path):
    write_dumps(tmp_path, range(5, 12, 3))
    split = made_up_dump(6)
    known = {"checkpoint_log_probs": split.more["checkpoint_log_probs"]}
    write_dump(dump_path(tmp_path, 6), dataclasses.replace(split, more=known))
    write_dump(dump_path(tmp_path, 7), dataclasses.replace(split, step=7, more={}))
    dump_path(tmp_path, 9).write_bytes(b"torn")
    tokens = load_tokens(dump_paths(tmp_path))
    assert (tokens.steps, tokens.others, list(tokens.parts)) == (3, 2, list(PARTS))
    assert len(tokens.damaged) == 1 and "000009.safetensors" in tokens.damaged[0]

    only_split = load_tokens([dump_path(tmp_path, 6), dump_path(tmp_path, 7)])
    assert list(only_split.parts) == ["policy", "implementation"] and only_split.steps == 1
    assert load_tokens([dump_path(tmp_path, 7), dump_path(tmp_path, 9)]) is None
