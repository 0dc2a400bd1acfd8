"""Components that lack something, or give something else, are named in a line."""

from __future__ import annotations

import pytest

from penstock import build_loader, compose
from penstock.core.registry import register
from penstock.core.user_errors import is_explained
from penstock.pipeline.build import build_loggers
from penstock.pipeline.learning.building import build_task
from tests.pipeline.loader.fakes import FakeDataset, make_loader


@register("logger", "test_without_close")
class WithoutClose:
    """Takes figures, and cannot be closed."""

    def log(self, step, values):
        """Nothing."""

    def state_dict(self):
        """Nothing."""

    def load_state_dict(self, state):
        """Nothing."""


@register("task", "test_without_losses")
class WithoutLosses:
    """Metrics alone."""

    def metrics(self):
        """None."""

    def update(self, metrics, outputs, batch):
        """Nothing."""


@register("collate", "test_no_call")
class NoCall:
    """An object that is no function."""


@register("collate", "test_listed")
def listed(samples):
    """A list in place of a dict."""
    return list(samples)


@register("collate", "test_lister")
class Lister:
    """The same, of a class."""

    def __call__(self, samples):
        """A list."""
        return list(samples)


@register("sampler", "test_bare")
class Bare:
    """What a sampler has, without the base class."""

    def __init__(self, n):
        """Take the number of records."""
        self.n = n

    def __len__(self):
        return self.n

    def indices(self, epoch, start, stop):
        """Never called."""


def test_a_sampler_extends_the_base_class(data_dir):
    with pytest.raises(ValueError, match=r"sampler/test_bare \(Bare\) .*class Bare\(Sampler\)"):
        build_loader(compose([f"data_dir={data_dir}", "sampler=test_bare"]))
    with pytest.raises(ValueError, match="sampler: Bare does not extend"):
        make_loader(FakeDataset(8), sampler=Bare(8))


def test_what_is_missing_is_said_when_it_is_built(data_dir, tmp_path):
    base = [f"data_dir={data_dir}"]
    with pytest.raises(
        ValueError, match=r"^logger/test_without_close \(WithoutClose\) has no clos"
    ):
        build_loggers(compose([*base, "+logger=test_without_close"]), tmp_path)
    with pytest.raises(ValueError, match=r"^task/test_without_losses \(WithoutLosses\) has no los"):
        build_task(compose([*base, "task=test_without_losses"]), 2, ("a", "b"))
    with pytest.raises(
        ValueError, match=r"^collate/test_no_call \(NoCall\) has no __call__; "
    ) as e:
        build_loader(compose([*base, "collate=test_no_call"]))
    assert "see Collate in core/contracts.py" in str(e.value) and is_explained(e.value)


@pytest.mark.parametrize("name", ["test_listed", "test_lister"])
@pytest.mark.parametrize("loader", ["inline", "threads"])
def test_a_batch_that_is_no_dict_is_refused(name, loader, data_dir):
    typed = [f"data_dir={data_dir}", f"collate={name}", f"loader={loader}", "loader.batch_size=4"]
    with build_loader(compose(typed)) as batches:
        with pytest.raises(ValueError, match=r"the collate gave a list .*dict") as error:
            next(iter(batches))
        assert is_explained(error.value)
