"""Batches of a mix taken as a whole: those that samples one by one would make, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock import compose
from penstock.core.contracts import Dataset
from penstock.datasets.map_dataset import MapDataset
from penstock.datasets.mix import MixDataset, MixIndex, Part, joined
from penstock.datasets.records.table import Table
from penstock.datasets.storages.memmap import MemmapStorage
from penstock.pipeline.build import build_loader
from penstock.pipeline.collates.stack import stack
from penstock.pipeline.loader.compute import BatchComputer
from penstock.pipeline.loader.compute.by_sample import pieces_of
from penstock.pipeline.loader.contract import BatchTask
from penstock.pipeline.samplers.sequential import SequentialSampler
from penstock.transforms.cpu.stack import build_stack
from penstock.transforms.decode.raw import RawDecoder
from tests.building import build_step
from tests.contracts.equality import assert_same
from tests.laws.runs import digests
from tests.pipeline.loader.fakes import Bare

SIZES = {"a": 13, "b": 7, "c": 5}
CLASSES = {"a": ["ant", "bee", "cat"], "b": ["dog", "cat", "ant"], "c": ["bee"]}


def write(folder: Path, name: str, **more) -> Path:
    """Arrays of a source; `more` by field, or None for one that is left out."""
    n, rng = SIZES[name], np.random.default_rng(SIZES[name])
    fields = {
        "images": rng.integers(0, 256, (n, 8, 6, 3), np.uint8),
        "labels": rng.integers(0, len(CLASSES[name]), n),
        "depth": rng.normal(size=(n, 8)).astype(">f4"),
        "age": rng.normal(size=n) * 1e30,
        **more,
    }
    (folder / name).mkdir()
    for field, values in fields.items():
        if values is not None:
            np.save(folder / name / f"{field}.npy", values)
    (folder / name / "keys.txt").write_text("".join(f"{name}-{i}\n" for i in range(n)))
    if fields["labels"] is not None:
        (folder / name / "classes.txt").write_text("\n".join(CLASSES[name]))
    return folder / name


class OwnIndex(Table):
    """An index that a test makes up for a storage."""

    def rows(self, indices):
        return indices


def mixed(*folders: Path, bare: bool = False, keys=None) -> MixDataset:
    sources = {}
    for folder in folders:
        storage = MemmapStorage(str(folder))
        sources[folder.name] = MapDataset(
            Bare(storage) if bare else storage,
            decode=RawDecoder(),
            transform=build_stack({}, build_step=build_step),
            seed=0,
            keys=keys,
        )
    return MixDataset(sources)


def computed(data, indices, **options):
    at, asked = np.arange(len(indices)) * 3, np.array(indices, np.int64)
    task = BatchTask(3, 1, at, np.ones(at.size, np.bool_), asked)
    sampler = SequentialSampler(len(data))
    computer = BatchComputer(data, sampler=sampler, collate=stack, seed=0, on_error="raise")
    return computer(task, **options).batch


def never(*_, **__):
    raise AssertionError("samples were made one by one")


def both(folders, indices, **options):
    """A batch taken as a whole, and the one of its samples."""
    whole = mixed(*folders, **options)
    for source in whole.sources.values():
        source.finish = never
    return computed(whole, indices), computed(mixed(*folders, bare=True, **options), indices)


@pytest.fixture
def folders(tmp_path):
    return [write(tmp_path, name) for name in SIZES]


INDICES = {
    "all, interleaved": [24, 0, 13, 12, 19, 20, 1, 14, 0],
    "the last first": [24, 22, 3],
    "two of three": [3, 15, 4],
    "one source": [14, 13, 19, 14],
    "one sample": [21],
}


@pytest.mark.parametrize("indices", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("keys", [None, {"depth": None}, {"image": "array", "label": "kind"}])
def test_a_batch_is_that_of_its_samples(folders, indices, keys):
    whole, expected = both(folders, indices, keys=keys)
    assert_same(whole, expected)
    if keys is None:
        names = ("ant", "bee", "cat", "dog")
        sources = [list(SIZES)[s] for s in whole["source"].tolist()]
        own = [int(key.partition("-")[2]) for key in whole["key"]]
        labels = {n: np.load(f / "labels.npy") for n, f in zip(SIZES, folders, strict=True)}
        for source, row, label in zip(sources, own, whole["label"].tolist(), strict=True):
            assert names[label] == CLASSES[source][labels[source][row]]


def test_numbers_of_several_widths_are_those_of_their_samples(tmp_path):
    small = (np.arange(13) % 3).astype(np.uint8), np.arange(13).astype(np.float32) / 3
    kinds = {"kinds": np.arange(13)}, {"kinds": np.arange(7) / 3}
    folders = [
        write(tmp_path, "a", labels=small[0], age=small[1], **kinds[0]),
        write(tmp_path, "b", **kinds[1]),
    ]
    whole, expected = both(folders, [0, 14, 12, 13])
    assert_same(whole, expected)
    assert expected["kinds"].dtype.kind == "f"


def test_integers_that_no_type_holds_together_are_left_to_samples():
    parts = [
        Part(np.array([row]), {"age": np.array([(1 << 53) + 1], kind)})
        for row, kind in enumerate(("int64", "uint64"))
    ]
    assert joined(parts) is None
    assert joined([parts[0], Part(np.array([1]), parts[0].columns)]) is not None


def test_masks_get_the_classes_of_the_mix(tmp_path):
    folders = []
    for name in ("a", "b"):
        masks = np.random.default_rng(1).integers(0, 3, (SIZES[name], 8, 6)).astype(np.uint8)
        folders.append(write(tmp_path, name, mask=masks))
    batches = []
    for bare in (False, True):
        data = mixed(*folders, bare=bare)
        for source in data.sources.values():
            index = OwnIndex.of(source.index)
            index.metadata["field_classes"] = {"mask": CLASSES["a" if len(source) == 13 else "b"]}
            source.storage.__dict__["_index" if not bare else "index"] = index
        again = MixDataset(data.sources)
        assert bool(again.columnar) != bare
        assert again.index.field_classes["mask"] == ("ant", "bee", "cat", "dog")
        batches.append(computed(again, [0, 14, 3, 19]))
    assert_same(*batches)
    assert batches[0]["mask"].max() == 3


def test_images_are_put_where_they_are_wanted(folders):
    slot = bytearray(100_000)
    for indices in INDICES.values():
        batch = computed(mixed(*folders), indices, allocate=lambda n: memoryview(slot)[:n])
        assert np.shares_memory(batch["image"], np.frombuffer(slot, np.uint8))
        assert_same(batch, computed(mixed(*folders, bare=True), indices))


UNLIKE = {
    "a field of one": ({"depth": None}, "field 'depth' is in sample 'a-0' but not in 'b-1'"),
    "sizes": ({"images": np.zeros((7, 6, 6, 3), np.uint8)}, r"\[8, 6, 3\] in sample 'a-0' and"),
    "types": ({"depth": np.zeros((7, 8), np.float64)}, "'depth' is >f4 in sample 'a-0' and"),
    "a field of the mix": ({"source": np.zeros(7)}, "samples of 'b' have a field 'source'"),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_cannot_be_put_together_is_said_as_of_samples(tmp_path, name):
    more, message = UNLIKE[name]
    folders = [write(tmp_path, "a"), write(tmp_path, "b", **more)]
    for bare in (False, True):
        with pytest.raises(ValueError, match=message):
            computed(mixed(*folders, bare=bare), [0, 14])


def test_class_ids_without_names_beside_named_ones_are_refused_as_of_samples(tmp_path):
    folders = [write(tmp_path, "a"), write(tmp_path, "b")]
    for bare in (False, True):
        data = mixed(*folders, bare=bare)
        storage = data.sources["b"].storage
        label = {"label": storage.index.column("label")}
        storage.__dict__["index" if bare else "_index"] = OwnIndex(list("tuvwxyz"), label)
        again = MixDataset(data.sources)
        assert bool(again.columnar) != bare
        with pytest.raises(ValueError, match="'label' of 'b' has class ids without names"):
            computed(again, [0, 14])


def test_fields_come_in_the_order_of_the_first_sample():
    parts = [
        Part(np.array([1]), {"p": np.array([2]), "q": ["x"]}),
        Part(np.array([0]), {"q": ["y"], "p": np.array([3])}),
    ]
    assert_same(joined(parts), {"q": ["y", "x"], "p": np.array([3, 2])})


def test_a_source_without_columns_leaves_all_to_samples(folders):
    assert mixed(*folders).columnar
    bare = mixed(*folders[:1], bare=True).sources | mixed(*folders[1:]).sources
    assert not MixDataset(bare).columnar


def test_rows_of_a_column_are_those_of_the_whole_column(folders):
    rng = np.random.default_rng(0)
    index = mixed(*folders).index
    for indices in (rng.integers(0, 25, 40), np.array([14, 13]), np.zeros(0, np.int64)):
        for name in index.columns:
            found = index.values(name, indices)
            assert found.tolist() == index.column(name)[indices].tolist(), name
    with pytest.raises(KeyError, match="no column 'size'; of all sources: size_bytes, "):
        index.values("size", np.array([0]))
    in_memory = MixIndex({"x": Table(["p", "q"], {"label": [5, 6]}), "y": index})
    assert in_memory.values("label", np.array([1, 2, 0])).tolist()[::2] == [6, 5]


class Heavy(Dataset):
    """A dataset whose records take a megabyte each."""

    def __init__(self, inner):
        self.index, self.inner = inner.index, inner
        self.held_bytes = lambda indices: np.full(len(indices), 1 << 20)

    def fetch(self, indices, positions, epoch):
        return self.inner.fetch(indices, positions, epoch)

    def fingerprint(self):
        return self.inner.fingerprint()

    def __len__(self):
        return len(self.index)


def test_large_records_of_a_mix_are_computed_in_pieces(folders):
    data = mixed(*folders)
    for source in data.sources.values():
        assert source.held_bytes
    data = MixDataset({name: Heavy(source) for name, source in data.sources.items()})
    sizes = data.held_bytes(np.array([0, 20, 14, 3]))
    assert pieces_of(sizes, 4) == [slice(0, 2), slice(2, 4)]


WAYS = {
    "threads": {"engine": "threads", "num_workers": 2},
    "processes": {"engine": "processes", "num_workers": 2},
    "torch": {"engine": "torch", "num_workers": 2},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_engine_makes_the_batches_of_single_samples(folders, way):
    data = ["dataset=mix"]
    for folder in folders:
        source = f"dataset.sources.{folder.name}"
        data += [f"{source}.dataset=memmap", f"{source}.dataset.storage.path={folder}"]
        data += [f"{source}.dataset.val_fraction=0.2"]
    data += ["dataset.sources.b.weight=2.5", "dataset.length=40"]
    config = compose([*data, "augment=small", "loader.batch_size=6", "loader.drop_last=false"])
    with build_loader(config) as loader:
        assert loader._compute.way == "columns"
    inline = {"engine": "inline", "num_workers": 0}
    whole = digests(config, **inline)
    assert digests(config, **WAYS[way]) == whole
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MapDataset, "_makes_samples", True)
        assert digests(config, **inline) == whole
