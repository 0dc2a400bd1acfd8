"""One state of what the loaders of all ranks say."""

from penstock.pipeline.loader.state import united


def test_what_any_rank_has_quarantined_is_in_the_one_state():
    held = ([[0, 9]], [], [[0, 3], [0, 9]])
    states = [{"next_batch": 4, "quarantined": pairs} for pairs in held]
    assert united(states) == {"next_batch": 4, "quarantined": [[0, 3], [0, 9]]}
