import math

from sat_slime.report.checkup.rollout_facts import facts, longest_version
from sat_slime.report.dumps.rollout_dump import Sampled


def sampled(group=0, reward=1.0, versions=(1,), fingerprint=b"a", status="completed", length=4):
    return Sampled(group, reward, length, status, versions, fingerprint, False, True)


def test_groups_doubles_and_versions():
    samples = [
        sampled(0, 1.0, (3,), b"a"),
        sampled(0, 1.0, (3, 5), b"a", "truncated"),
        sampled(1, 0.0, (5,), b"a", "aborted"),
        sampled(1, 1.0, (4,), b"b"),
    ]
    found = facts(7, samples)
    assert (found.rollout, found.samples, found.reward, found.length) == (7, 4, 0.75, 4)
    assert (found.equal_groups, found.doubled) == (0.5, 0.5)  # the first prompt's, both
    assert (found.truncated, found.aborted, found.mixed) == (0.25, 0.25, 0.25)
    assert (found.newest, found.oldest, found.spread) == (5, 2, (2 + 2 + 0 + 1) / 4)


def test_what_a_dump_does_not_tell_is_not_known():
    found = facts(0, [sampled(None, None, ()), sampled(None, None, ())])
    assert all(math.isnan(value) for value in (found.reward, found.equal_groups, found.doubled, found.spread))


def test_rollouts_of_one_version_in_a_row():
    def numbered(*versions):
        return [facts(i, [sampled(versions=(one,) if one else ())]) for i, one in enumerate(versions)]

    assert longest_version(numbered(1, 2, 2, 2, 3)) == 3
    assert longest_version(numbered(1, 1, 1, 2, 2)) == 2  # rollouts 0 to 2 have lag 0 to 2
    assert longest_version(numbered(1, 2, 3)) == 1
    assert longest_version(numbered(None, None)) == 0
    assert longest_version([]) == 0
    _, first, _, third = numbered(1, 1, 1, 1)
    assert longest_version([first, third]) == 1
