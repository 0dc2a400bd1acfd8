"""Who may import whom: the directions that keep every component a leaf."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.heavy_modules import HEAVY

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("datasets", "transforms", "pipeline")

# The contracts import what flows between the stages, and each other downwards.
PROTOCOLS = {
    "datasets.protocols.annotations": {"datasets.protocols.storage"},
    "datasets.protocols.collate": {"datasets.sample"},
    "datasets.protocols.dataset": {
        "datasets.protocols.sampler",
        "datasets.protocols.storage",
        "datasets.sample",
        "datasets.stage_times",
    },
    "datasets.protocols.decoder": {"datasets.sample"},
    "datasets.protocols.sampler": set(),
    "datasets.protocols.source": {"datasets.sample"},
    "datasets.protocols.storage": {"datasets.sample"},
    "datasets.protocols.training": {"datasets.sample"},
    "datasets.protocols.transform": {"datasets.sample"},
    "datasets.protocols.writer": {"datasets.sample"},
}
# What every leaf builds on; these import each other downwards only.
FOUNDATION = {
    "datasets.sample": set(),
    "pipeline.registry": set(),
    "pipeline.rng": set(),
    "pipeline.cores": set(),
    "pipeline.global_random": {"pipeline.rng"},
    "datasets.stage_times": set(),
    "datasets.parts": {"datasets.sample"},
    "datasets.protocols": set(PROTOCOLS),
    "datasets.pending_image": set(),
}
LEAF_PACKAGES = (
    "datasets.storages",
    "datasets.caches",
    "datasets.annotations",
    "datasets.sources",
    "datasets.writers",
    "transforms.decode",
    "transforms.cpu",
    "transforms.device",
    "pipeline.samplers",
    "pipeline.collates",
    "pipeline.models",
    "pipeline.tasks",
    "pipeline.schedulers",
    "pipeline.training.loggers",
)
# Light project modules that hold no component and that leaves of a group share.
SHARED_BY_LEAVES = {
    "datasets.storages": {
        "datasets.array_rows",
        "datasets.index",
        "datasets.index_cache",
        "datasets.indexed_storage",
        "datasets.file_reader",
        "datasets.file_runs",
        "datasets.scan",
        "datasets.annotations.file_labels",
        "datasets.annotations.label_arrays",
        "datasets.annotations.label_columns",
        "datasets.annotations.labels",
        "datasets.annotations.unique_keys",
        "datasets.data_files",
        "datasets.group_cache",
        "datasets.inside",
        "datasets.row_groups",
        "datasets.sample_files",
        "datasets.shard_rows",
        "datasets.shard_storage",
        "datasets.shards",
        "datasets.shared_file",
        "datasets.shared_flags",
        "datasets.table_storage",
        "datasets.formats.arrow_columns",
        "datasets.formats.arrow_damage",
        "datasets.formats.arrow_files",
        "datasets.formats.arrow_lengths",
        "datasets.formats.arrow_roles",
        "datasets.formats.arrow_table",
        "datasets.formats.arrow_values",
        "datasets.formats.column_roles",
        "datasets.formats.csv_columns",
        "datasets.formats.csv_rows",
        "datasets.formats.csv_table",
        "datasets.formats.array_files",
        "datasets.formats.hdf5_arrays",
        "datasets.formats.hdf5_found",
        "datasets.formats.hdf5_process",
        "datasets.formats.hdf5_reader",
        "datasets.formats.hdf5_rows",
        "datasets.formats.hdf5_samples",
        "datasets.formats.hdf5_tables",
        "datasets.formats.hdf5_texts",
        "datasets.formats.lmdb_layouts",
        "datasets.formats.lmdb_pages",
        "datasets.formats.lmdb_packed",
        "datasets.formats.npy_bytes",
        "datasets.formats.npy_shards",
        "datasets.formats.packed_fields",
        "datasets.formats.parquet_files",
        "datasets.formats.record_columns",
        "datasets.formats.pt_files",
        "datasets.formats.saved_folder",
        "datasets.formats.sqlite_files",
        "datasets.formats.sqlite_table",
        "datasets.formats.sqlite_values",
        "datasets.formats.tar_headers",
        "datasets.formats.tar_indexing",
        "datasets.formats.tar_samples",
        "datasets.formats.tar_shards",
        "datasets.formats.zip_members",
        "datasets.formats.zip_packed",
    },
    "datasets.annotations": {
        "datasets.annotation_files",
        "datasets.annotation_rows",
        "datasets.file_reader",
        "datasets.formats.box_columns",
        "datasets.formats.csv_rows",
        "datasets.index",
        "datasets.index_cache",
    },
    "datasets.sources": {
        "datasets.byte_shards",
        "datasets.file_reader",
        "datasets.inside",
        "datasets.shared_file",
        "datasets.stream_labels",
        "datasets.formats.byte_streams",
        "datasets.formats.tar_samples",
        "datasets.formats.tar_stream",
    },
    "datasets.writers": {
        "datasets.annotations.labels",
        "datasets.scan",
        "datasets.formats.arrow_records",
        "datasets.shard_writer",
        "datasets.index",
        "datasets.formats.hdf5_fields",
        "datasets.formats.hdf5_objects",
        "datasets.table_writer",
        "datasets.formats.array_parts",
        "datasets.formats.lmdb_packed",
        "datasets.formats.lmdb_pages",
        "datasets.formats.packed_fields",
        "datasets.formats.record_columns",
        "datasets.formats.sqlite_table",
        "datasets.formats.zip_packed",
        "datasets.formats.tar_headers",
        "datasets.formats.tar_keys",
        "datasets.formats.tar_samples",
        "datasets.formats.tar_writing",
    },
    "datasets.caches": {
        "datasets.available_memory",
        "datasets.index_cache",
        "datasets.caching.byte_limits",
        "datasets.caching.cached_storage",
        "datasets.caching.disk_store",
        "datasets.caching.keep_store",
        "datasets.caching.policies",
        "datasets.caching.pool_store",
        "datasets.caching.whole_images",
    },
    "pipeline.samplers": {
        "pipeline.class_batches",
        "pipeline.permutation",
        "pipeline.orders",
        "pipeline.shares",
        "pipeline.weights",
    },
    "pipeline.collates": {"pipeline.columns", "pipeline.padded_arrays"},
    # The torch modules that registered models are light factories of.
    "pipeline.models": {
        "pipeline.networks.box_detector",
        "pipeline.networks.embedder",
        "pipeline.networks.fed_module",
        "pipeline.networks.keypoint_net",
        "pipeline.networks.multi_net",
        "pipeline.networks.segmenter",
        "pipeline.networks.sequence_cnn",
        "pipeline.networks.small_cnn",
        "pipeline.networks.table_net",
    },
    "pipeline.tasks": {
        "pipeline.prediction_columns",
        "pipeline.boxes",
        "pipeline.metrics.box_map",
        "pipeline.metrics.mask_iou",
        "pipeline.metrics.retrieval",
        "pipeline.triplets",
        "pipeline.metrics.named_metrics",
        "pipeline.metrics.r2",
    },
    "transforms.decode": {
        "datasets.formats.npy_bytes",
        "transforms.record_decoder",
        "transforms.table_columns",
        "transforms.table_fit",
        "transforms.formats.image_pixels",
        "transforms.formats.jpeg_pixels",
        "transforms.formats.opencv_pixels",
    },
    "transforms.cpu": {
        "transforms.albumentations_stage",
        "transforms.box_rows",
        "transforms.sample_targets",
        "transforms.target_settings",
    },
    "transforms.device": {
        "transforms.batch_rows",
        "transforms.gathered_rows",
        "transforms.row_draws",
        "transforms.row_pairs",
        "transforms.row_pixels",
        "transforms.row_resize",
        "transforms.row_windows",
    },
}


def _modules() -> dict[str, Path]:
    files = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            files[name.removesuffix(".__init__")] = file
    return files


def _imports(file: Path, *, top_only: bool = False) -> set[str]:
    """Dotted names that a file imports, those under TYPE_CHECKING left out."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.orelse:
                visit(child)
            return
        if top_only and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(file.read_text()))
    return names


MODULES = _modules()
GRAPH = {name: {i for i in _imports(file) if i in MODULES} for name, file in MODULES.items()}


# Light modules among the leaves that hold no component.
NO_LEAVES = {f"datasets.annotations.{name}" for name in ("file_labels", "label_columns", "labels")}


def _is_leaf(name: str) -> bool:
    return name not in NO_LEAVES and any(
        name.startswith(f"{package}.") for package in LEAF_PACKAGES
    )


LEAVES = sorted(name for name in MODULES if _is_leaf(name))


def test_there_are_leaves_to_look_at():
    assert len(LEAVES) > 15


@pytest.mark.parametrize("name", sorted(FOUNDATION | PROTOCOLS))
def test_the_foundation_imports_nothing_above_it(name):
    assert GRAPH[name] <= (FOUNDATION | PROTOCOLS)[name]


def test_every_contract_is_on_the_page_and_taken_from_it():
    """One way to import a name; a new file of contracts has its rule above."""
    parts = {name for name in MODULES if name.startswith("datasets.protocols.")}
    assert parts == set(PROTOCOLS) == GRAPH["datasets.protocols"]
    for name, file in MODULES.items():  # also where only a type checker imports
        if not name.startswith("datasets.protocols"):
            assert "from datasets.protocols." not in file.read_text(), name


@pytest.mark.parametrize("name", sorted(FOUNDATION | PROTOCOLS))
def test_the_foundation_imports_nothing_heavy(name):
    top = {module.partition(".")[0] for module in _imports(MODULES[name], top_only=True)}
    assert not top & set(HEAVY)


@pytest.mark.parametrize("name", LEAVES)
def test_a_leaf_imports_the_foundation_and_no_sibling(name):
    package = next(p for p in LEAF_PACKAGES if name.startswith(f"{p}."))
    allowed = set(FOUNDATION) | SHARED_BY_LEAVES.get(package, set())
    assert GRAPH[name] - set(PACKAGES) <= allowed, f"{name} knows too much"


@pytest.mark.parametrize("name", LEAVES)
def test_registering_a_leaf_imports_nothing_heavy(name):
    top = {module.partition(".")[0] for module in _imports(MODULES[name], top_only=True)}
    assert not top & set(HEAVY)


def test_training_sees_batches_and_never_a_storage():
    forbidden = ("datasets.storages", "datasets.index", "datasets.map_dataset", "transforms.decode")
    for name, imports in GRAPH.items():
        if name.startswith("pipeline.training"):
            assert not [i for i in imports if i.startswith(forbidden)], name


def test_objects_are_made_in_one_place():
    """Only build.py resolves targets; other modules get objects."""
    resolvers = {name for name, imports in GRAPH.items() if "pipeline.config.allowed" in imports}
    outside = {name for name in resolvers if not name.startswith("pipeline.config")}
    assert outside == {"pipeline.build"}


def test_there_are_no_cycles():
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> None:
        if name in path:
            raise AssertionError(" -> ".join([*path[path.index(name) :], name]))
        if name in done:
            return
        path.append(name)
        for imported in sorted(GRAPH[name] - set(PACKAGES)):
            visit(imported)
        path.pop()
        done.add(name)

    for name in sorted(GRAPH):
        visit(name)
