import pytest

from sat_slime.config.exits import how_it_ended


@pytest.mark.parametrize(
    "code, words",
    [
        (-9, "was killed by SIGKILL"),
        (-40, "was killed by signal 40"),
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
    ],
)
def test_an_end_in_words(code, words):
    assert how_it_ended(code) == words
