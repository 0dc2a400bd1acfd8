"""What belongs to the identity of a run: how its samples are held does not."""

from __future__ import annotations

from penstock import build_loader, compose

SMALL = ["loader=inline", "loader.batch_size=8", "dataset.storage.path=demo"]


def _state(data_dir, *overrides):
    with build_loader(compose([*SMALL, f"data_dir={data_dir}", *overrides])) as loader:
        next(iter(loader))
        return loader.state_dict()


def _accept(state, data_dir, *overrides):
    with build_loader(compose([*SMALL, f"data_dir={data_dir}", *overrides])) as loader:
        loader.load_state_dict(state)
        return next(iter(loader))["position"].tolist()


def test_a_run_goes_on_where_the_same_samples_are_held_otherwise(data_dir):
    state = _state(data_dir)
    assert _accept(state, data_dir, "dataset=eager") == list(range(8, 16))
    assert _accept(state, data_dir, "loader.num_workers=1") == list(range(8, 16))
