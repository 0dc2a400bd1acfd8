"""Audio: an excerpt has the samples of the whole clip, and damage is a line."""

from __future__ import annotations

import io

import numpy as np
import pytest

sf = pytest.importorskip("soundfile")
pytest.importorskip("soxr")

from penstock import build_loader, compose  # noqa: E402
from penstock.core.sample import Record, RecordError  # noqa: E402
from penstock.transforms.cpu.excerpts import AudioCrop  # noqa: E402
from penstock.transforms.decode.audio import AudioDecoder, PendingClip  # noqa: E402


def written(form: str, *, rate: int = 16_000, seconds: float = 1.0, channels: int = 1) -> bytes:
    time_s = np.arange(int(rate * seconds)) / rate
    tone = 0.5 * np.sin(2 * np.pi * 440 * time_s) * (1 + time_s) / 2
    sf.write(file := io.BytesIO(), np.stack([tone] * channels, 1), rate, format=form)
    return file.getvalue()


def record(content: bytes, field: str = "audio") -> Record:
    return Record(index=0, key="a", fields={field: content, "label": 1})


FORMS = ("WAV", "FLAC", "OGG")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_an_excerpt_is_that_of_the_whole(form, rate):
    clip = PendingClip(written(form, rate=rate, channels=2), 16_000)
    whole = clip.whole()
    assert (len(clip), whole.dtype, whole.ndim) == (16_000, np.float32, 1)
    for start, length in ((0, 4000), (5001, 3000), (13_000, 3000)):
        assert np.abs(clip.excerpt(start, length) - whole[start : start + length]).max() < 2e-3


def test_no_more_is_decoded_than_the_excerpt(monkeypatch):
    decoded = []
    read = sf.SoundFile.read
    monkeypatch.setattr(
        sf.SoundFile, "read", lambda self, n, **k: decoded.append(n) or read(self, n, **k)
    )
    PendingClip(written("FLAC", seconds=20), 8_000).excerpt(80_000, 8_000)
    assert sum(decoded) < 18_000


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        *(({"wav": written(form)[:-2000]}, "cut short|damaged audio") for form in FORMS),
        ({"audio": b"no sound at all" * 10}, "Format not recognised$"),
        ({"audio": 3}, "'audio' is a int, expected the file's bytes"),
        ({"text": "a"}, "no field 'audio', fields: text"),
    ],
)
def test_refusals(fields, cause):
    with pytest.raises(RecordError, match=cause) as raised:
        AudioDecoder()(Record(index=0, key="a", fields=fields))
    assert "\n" not in str(raised.value)


def test_crops_are_of_one_length_whether_a_clip_is_pending_or_not():
    for seconds, start in ((0.5, 0), (1.0, 4000)):
        crop = AudioCrop(seconds=0.5, place="centre")
        pending = AudioDecoder().defer(record(written("WAV", seconds=seconds), "wav"))
        rng = np.random.default_rng(0)
        audio = crop(pending, rng)["audio"]
        decoded = pending["audio"].whole()
        assert np.array_equal(audio, decoded[start : start + 8000])
        assert np.array_equal(audio, crop({"audio": decoded}, rng)["audio"])
    short = crop({"audio": np.ones(3, np.float32)}, rng)["audio"]
    assert short[:3].all() and not short[3:].any() and len(short) == 8000


def test_a_batch_has_one_length_and_damage_is_counted(tmp_path):
    for number in range(12):
        folder = tmp_path / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        content = written("FLAC", seconds=0.5 + number / 10, rate=22_050)
        (folder / f"{number}.flac").write_bytes(content[: len(content) // (1 + (number == 5))])
    typed = ["task=audio", f"dataset.storage.path={tmp_path}", "augment.seconds=0.4"]
    typed += ["dataset.val_fraction=0", "loader.batch_size=4", "loader.max_error_rate=1"]
    with build_loader(compose([*typed, "loader=inline"]), split="train") as loader:
        assert [batch["audio"].shape for batch in loader] == [(4, 6400)] * 3
        assert loader.stats.bad_samples == 1
