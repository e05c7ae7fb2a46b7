"""What a rehearsal starts from."""

import pytest

from sat_slime.rehearsal.material import _follow


@pytest.mark.parametrize("words", [4, 1000])
def test_a_response_has_as_many_words_as_it_is_to_have(words):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    script = [[1, 2, 3, 4], [5], [6, 7], [8]]
    embedding, output = torch.randn(300, 64) * 0.1, torch.randn(300, 64) * 0.1
    _follow(embedding, output, script, words)

    def likely_after(token):
        return (output @ torch.nn.functional.rms_norm(embedding[token], (64,))).softmax(-1)

    for word in script[0]:
        following = likely_after(word)
        assert following[script[0]].sum() / following[script[1]].sum() == pytest.approx(words - 1, rel=0.2)
    for step in (1, 2):
        assert likely_after(script[step][0])[script[step + 1]].sum() > 0.99
