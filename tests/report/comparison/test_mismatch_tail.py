import pytest

from sat_slime.report.comparison.mismatch_tail import gate_table, lag_table, pool


def test_tail_is_pooled_by_realized_lag(comparison):
    runs = comparison.collection.of("grpo", 8)
    pools = pool(runs)
    assert set(pools) <= set(range(9)) and len(pools) > 4
    assert sum(one.counts.sum() for one in pools.values()) == len(runs) * 200 * 3300


def test_gate_opens_above_q_alone(comparison):
    pools = pool(comparison.collection.of("sat-grpo", 8))
    for one in pools.values():
        assert (one.beyond_gate <= one.counts).all()
        below, above = one.edges < 1e-3, one.edges > 1
        assert one.beyond_gate[:-1][below].sum() == 0
        assert (one.beyond_gate[1:][above] == one.counts[1:][above]).all()


def test_lag_tables(comparison):
    rows = lag_table(comparison.collection)
    assert rows[0][:4] == ["method", "lag", "realized", "steps"]
    at_8 = [row for row in rows[1:] if row[:2] == ["SAT-GRPO", "8"]]
    assert [row[2] for row in at_8] == [str(lag) for lag in range(9)]
    assert sum(int(row[3]) for row in at_8) == 3 * 200
    shares = [float(cell.split("%")[0]) for cell in gate_table(comparison.collection)[1][2:]]
    assert sum(shares) == pytest.approx(100, abs=0.1)
