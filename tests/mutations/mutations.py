"""The mutations: a line of the product that is wrong, and the tests that should notice."""

from __future__ import annotations

from typing import NamedTuple

LAWS = "tests/laws/test_"
PLAN = "pipeline/loader/plan.py"
COMPUTE = "pipeline/loader/compute.py"
RNG = "core/rng.py"


class Mutation(NamedTuple):
    """A replacement of `old`, which stands once in `file`, and what to run after it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _laws(*names: str) -> tuple[str, ...]:
    return tuple(f"{LAWS}{name}.py" for name in names)


MUTATIONS = (
    Mutation(
        "positions off by one", PLAN,
        "np.arange(first + start, first + stop, dtype=np.int64)",
        "np.arange(first + start + 1, first + stop + 1, dtype=np.int64)",
        _laws("ranks"),
    ),
    Mutation(
        "a rank's cut moved", PLAN,
        "start = rank * groups // world_size * group",
        "start = -(-rank * groups // world_size) * group",
        _laws("ranks"),
    ),
    Mutation(
        "the tail dropped", PLAN,
        "num_batches = -(-self.num_positions // self.batch_size)",
        "num_batches = self.num_positions // self.batch_size",
        _laws("ranks"),
    ),
    Mutation(
        "padding counted as valid", PLAN,
        "valid = positions < self.num_positions",
        "valid = np.ones(positions.size, np.bool_)",
        _laws("ranks"),
    ),
    Mutation(
        "padding repeats the wrong positions", PLAN,
        "return positions % self.num_positions, valid",
        "return np.minimum(positions, self.num_positions - 1), valid",
        _laws("ranks"),
    ),
    Mutation(
        "a rank without samples counts its row", PLAN,
        "np.array([first % self.num_positions], np.int64), np.zeros(1, np.bool_)",
        "np.array([first % self.num_positions], np.int64), np.ones(1, np.bool_)",
        _laws("ranks"),
    ),
    Mutation(
        "a group cut apart", PLAN,
        "rank_slice(last - first, self.world_size, self.rank, group=self.group)",
        "rank_slice(last - first, self.world_size, self.rank)",
        _laws("ranks", "device_steps"),
    ),
    Mutation(
        "records of several batches handed out in another order", PLAN,
        "return np.split(records.astype(np.int64, copy=False),",
        "return np.split(records[::-1].astype(np.int64),",
        _laws("ranks"),
    ),
    Mutation(
        "draws without the seed", RNG,
        "self._key[0] = seed & _MASK64",
        "self._key[0] = 0",
        _laws("draws"),
    ),
    Mutation(
        "draws without the epoch", RNG,
        "self._key[1] = epoch",
        "self._key[1] = 0",
        _laws("draws"),
    ),
    Mutation(
        "draws without the position", RNG,
        "self._counter[1] = position",
        "self._counter[1] = 0",
        _laws("draws"),
    ),
    Mutation(
        "a small order without the epoch", RNG,
        "keys = philox_words(seed, epoch, 0, length, Stream.SAMPLER)[:, 0]",
        "keys = philox_words(seed, 0, 0, length, Stream.SAMPLER)[:, 0]",
        _laws("draws"),
    ),
    Mutation(
        "a large order without the seed", RNG,
        "return philox_words(seed, epoch, 0, _ROUNDS, Stream.SAMPLER)",
        "return philox_words(0, epoch, 0, _ROUNDS, Stream.SAMPLER)",
        _laws("draws"),
    ),
    Mutation(
        "a permutation that does not walk to its end", RNG,
        "while outside.size:",
        "while False:",
        _laws("draws", "scale"),
    ),
    Mutation(
        "draws on the device without the epoch", RNG,
        "starts = _mixed(key + epochs * _GOLDEN)",
        "starts = _mixed(key + epochs * 0)",
        _laws("draws"),
    ),
    Mutation(
        "draws on the device by row in the batch", "transforms/device/draws.py",
        "words_at(key, epochs, positions)",
        "words_at(key, epochs, np.arange(len(positions)))",
        _laws("device_steps", "draws"),
    ),
    Mutation(
        "the weight of a neighbour", "pipeline/samplers/weighted.py",
        'found = np.searchsorted(cumulative, targets, side="right")',
        'found = np.searchsorted(cumulative, targets, side="right") - 1',
        _laws("draws"),
    ),
    Mutation(
        "an order of weights upside down", "pipeline/samplers/weighted.py",
        "keys[part] = -np.log(",
        "keys[part] = np.log(",
        _laws("draws"),
    ),
    Mutation(
        "windows of shards all shuffled alike", "pipeline/samplers/random.py",
        "order = permute(np.arange(count), length=count, seed=seed, epoch=epoch * (windows + 1))",
        "order = np.arange(count)",
        _laws("draws"),
    ),
    Mutation(
        "batches computed together that share their first rows",
        "pipeline/loader/compute.py",
        "return [{field: value[start:stop] for field, value in batch.items()}",
        "return [{field: value[: stop - start] for field, value in batch.items()}",
        _laws("small_batches"),
    ),
    Mutation(
        "deliveries out of order", "pipeline/loader/scheduler.py",
        "self._ahead.popleft()",
        "self._ahead.pop()",
        _laws("equality"),
    ),
    Mutation(
        "a global state seeded", COMPUTE,
        "stats = BatchStats()\n        if task.asked",
        "np.random.seed(0)\n        stats = BatchStats()\n        if task.asked",
        _laws("global_states"),
    ),
    Mutation(
        "a replaced row counted where it only fills", COMPUTE,
        "rows.add(other, valid)",
        "rows.add(other, True)",
        _laws("ranks", "equality"),
    ),
    Mutation(
        "a state one batch ahead", "pipeline/loader/loader.py",
        "self._next_batch = delivery.number + 1",
        "self._next_batch = delivery.number + 2",
        _laws("resume"),
    ),
    Mutation(
        "a state that forgets what was quarantined", "pipeline/loader/state.py",
        '"quarantined": _listed(quarantined)',
        '"quarantined": []',
        _laws("mosaics", "resume"),
    ),
    Mutation(
        "a quarantined row kept", "pipeline/loader/compute.py",
        "held = np.isin(task.positions, np.asarray(task.quarantined, np.int64))",
        "held = np.zeros(task.positions.size, np.bool_)",
        _laws("mosaics", "resume"),
    ),
    Mutation(
        "a quarantined record read again in the next epoch",
        PLAN,
        "held = list(quarantine)",
        "held = list(quarantine) if epoch == 0 else []",
        ("tests/answers/test_killing_records.py",),
    ),
    Mutation(
        "a state of other data taken", "pipeline/loader/state.py",
        '_IDENTITY = ("seed", "plan", "pixels", "data")',
        '_IDENTITY = ("seed", "plan", "pixels")',
        _laws("resume"),
    ),
    Mutation(
        "a state of other augmentations taken", "pipeline/loader/state.py",
        '_IDENTITY = ("seed", "plan", "pixels", "data")',
        '_IDENTITY = ("seed", "plan", "data")',
        _laws("resume"),
    ),
    Mutation(
        "evaluation that moves from epoch to epoch", "pipeline/loader/loader.py",
        "self._epoch += not self._evaluates",
        "self._epoch += 1",
        _laws("equality"),
    ),
    Mutation(
        "a sample that is its own partner", "datasets/partners.py",
        "return numbers, others + (others >= position)",
        "return numbers, others * 0 + position",
        _laws("mosaics"),
    ),
    Mutation(
        "partners without the epoch", "datasets/partners.py",
        "draws = rng.at(self.seed, epoch, position, stream, index * ATTEMPTS)",
        "draws = rng.at(self._seed, 0, 0, stream, 0)",
        _laws("mosaics"),
    ),
    Mutation(
        "a cache that gives the next record", "datasets/caches/cached_storage.py",
        "zip(numbers, self.store.get_all(numbers), strict=True)",
        "zip(numbers, self.store.get_all([(n + 1) % len(self) for n in numbers]), strict=True)",
        _laws("caches"),
    ),
    Mutation(
        "a stale index taken", "datasets/records/indexed_storage.py",
        'return bool(index.metadata.get("mark") == mark)',
        "return True",
        ("tests/answers/test_derived_arrays.py",),
    ),
    Mutation(
        "checksums not compared", "datasets/storages/lmdb/storage.py",
        'if zlib.crc32(data) != crc32:',
        "if False:",
        _laws("reading"),
    ),
    Mutation(
        "rows of a table in their own order", "datasets/array_shards/storage.py",
        "rows = self.index.rows(indices)\n        forms = {name: form for",
        "rows = np.sort(self.index.rows(indices))\n        forms = {name: form for",
        _laws("reading"),
    ),
    Mutation(
        "a crop decoded two pixels too narrow", "transforms/decode/image/jpeg_tiles.py",
        "return max(0, start - CONTEXT) // size, min(count, (stop + CONTEXT - 1) // size + 1)",
        "return start // size, min(count, (stop - 1) // size + 1)",
        _laws("reading"),
    ),
    Mutation(
        "a mask not flipped", "transforms/cpu/window.py",
        'for name in ("mask", "box_masks"):',
        'for name in ("box_masks",):',
        _laws("together"),
    ),
    Mutation(
        "boxes left where they were", "transforms/cpu/targets.py",
        'sample["boxes"], kept = cut[there], np.asarray(rows, np.int64)[there]',
        "kept = np.asarray(rows, np.int64)[there]",
        _laws("together"),
    ),
    Mutation(
        "left and right not exchanged", "transforms/cpu/targets.py",
        "if mirrored and self.keypoints.swaps != []:",
        "if False:",
        _laws("together"),
    ),
    Mutation(
        "a mask not flipped on the device", "transforms/device/geometry.py",
        'fields = ("image", "mask")',
        'fields = ("image",)',
        _laws("together"),
    ),
    Mutation(
        "a mixed row keeps its own label alone", "transforms/device/mixing.py",
        'result["label_other"] = where(mixed, label[partner], batch.get("label_other", label))',
        'result["label_other"] = label',
        _laws("together"),
    ),
    Mutation(
        "a loss that does not weigh by valid rows", "pipeline/training/loop.py",
        'share = batch_loss * (world.size * batch["num_valid"] / max(expected, 1))',
        "share = batch_loss / settings.accumulate",
        _laws("torchrun"),
    ),
    Mutation(
        "a validation loss that weighs all batches alike", "pipeline/training/validation.py",
        'loss_sum += loss.double() * batch["num_valid"]',
        "loss_sum += loss.double() * 3",
        _laws("torchrun"),
    ),
    Mutation(
        "a record validates by its place", "datasets/records/splits.py",
        "keys = (key for rows in chunks for key in index.raw_keys(np.array(rows)))",
        "keys = (str(n).encode() for n in range(count))",
        ("tests/answers/test_splits_by_key.py",),
    ),
    Mutation(
        "a stream that resumes at its beginning", "pipeline/loader/streams.py",
        "starts = {number: start * (stop - first) for number, (first, stop) in rows.items()}",
        "starts = {number: 0 for number in rows}",
        _laws("streams"),
    ),
    Mutation(
        "every rank takes all of a stream", "pipeline/loader/streams.py",
        "rows = self._share(rows)",
        "pass",
        _laws("streams"),
    ),
    Mutation(
        "a checkpoint not checked", "pipeline/training/checkpoint.py",
        "damaged = archive.testzip()",
        "damaged = None",
        _laws("training"),
    ),
)  # fmt: skip
