"""Names of points that hide neither each other nor a point."""

import numpy as np
import pytest

from sat_slime.report.point_names import NAME_SIZE, name_places

WIDTH, HEIGHT = 560, 300


def box(x, y, name, place):
    """Left, right, top and bottom of a name; letters are at least half as wide as high."""
    length = 0.5 * NAME_SIZE * len(name)
    left = x + place.dx - {"left": 0, "center": length / 2, "right": length}[place.align]
    return left, left + length, y + place.dy - 0.7 * NAME_SIZE, y + place.dy


def meet(one, other):
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]


@pytest.mark.parametrize("seed", range(5))
def test_no_name_hides_another_or_a_point(seed):
    random = np.random.default_rng(seed)
    x, y = random.uniform(10, 250, 40), random.uniform(10, 150, 40)
    names = [f"eps-{i}" if i % 3 else "" for i in range(40)]
    places = name_places(x, y, names, WIDTH, HEIGHT)
    assert all(place is None for place, name in zip(places, names, strict=True) if not name)
    boxes = [box(*one) for one in zip(x, y, names, places, strict=True) if one[3]]
    assert len(boxes) > 10
    assert not any(meet(one, other) for i, one in enumerate(boxes) for other in boxes[:i])
    points = [(cx - 4, cx + 4, cy - 4, cy + 4) for cx, cy in zip(x, y, strict=True)]
    assert not any(meet(one, point) for one in boxes for point in points)
    assert all(left >= 0 and right <= WIDTH and top >= 0 for left, right, top, _ in boxes)


def test_a_point_by_itself_has_its_name_on_the_right_and_at_the_right_edge_on_the_left():
    (free,) = name_places([100], [100], ["eps-0.1"], WIDTH, HEIGHT)
    (edge,) = name_places([WIDTH - 5], [100], ["eps-0.1"], WIDTH, HEIGHT)
    assert (free.align, edge.align) == ("left", "right") and free.dx > 0 > edge.dx


def test_a_name_without_room_is_left_out():
    places = name_places([100] * 30, [100] * 30, ["eps-0.1"] * 30, WIDTH, HEIGHT)
    assert 1 < sum(place is not None for place in places) < 30
    assert name_places([10], [10], ["a name that is wider than its panel"], 60, 40) == [None]
