"""Audio: excerpts are those of the whole, only they are decoded, and damage is a line."""

from __future__ import annotations

import io

import numpy as np
import pytest

sf = pytest.importorskip("soundfile")
pytest.importorskip("soxr")

from penstock import build_loader, compose  # noqa: E402
from penstock.core.sample import Record, RecordError  # noqa: E402
from penstock.transforms.cpu.audio_crop import AudioCrop  # noqa: E402
from penstock.transforms.decode.audio import AudioDecoder, PendingClip  # noqa: E402


def written(form: str, *, rate: int = 16_000, seconds: float = 1.0, channels: int = 1) -> bytes:
    time_s = np.arange(int(rate * seconds)) / rate
    tone = 0.5 * np.sin(2 * np.pi * 440 * time_s) * (1 + time_s) / 2
    sf.write(file := io.BytesIO(), np.stack([tone] * channels, 1), rate, format=form)
    return file.getvalue()


def record(content: bytes, field: str = "audio") -> Record:
    return Record(index=0, key="a", fields={field: content, "label": 1})


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG"])
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


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG"])
def test_a_file_that_is_cut_short_is_a_bad_sample_of_one_line(form):
    content = written(form, seconds=2)
    with pytest.raises(ValueError, match=r"cut short|damaged audio") as raised:
        AudioDecoder()(record(content[: len(content) // 2]))
    assert "\n" not in str(raised.value)


def test_what_is_no_audio(tmp_path):
    with pytest.raises(ValueError, match=r"no audio file: Format not recognised$"):
        AudioDecoder()(record(b"no sound at all" * 10))
    with pytest.raises(ValueError, match=r"no field audio to decode, fields: text; set dataset"):
        AudioDecoder()(Record(index=0, key="a", fields={"text": "a"}))


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


def test_batches_are_the_same_and_damage_is_counted(tmp_path):
    for number in range(12):
        folder = tmp_path / "ab"[number % 2]
        folder.mkdir(exist_ok=True)
        content = written("FLAC", seconds=0.5 + number / 10, rate=22_050)
        (folder / f"{number}.flac").write_bytes(content[: len(content) // (1 + (number == 5))])
    typed = ["task=audio", f"dataset.storage.path={tmp_path}", "augment.seconds=0.4"]
    typed += ["dataset.val_fraction=0", "loader.batch_size=4", "loader.max_error_rate=1"]
    found = []
    for engine in (["loader=inline"], ["loader=threads", "loader.num_workers=2"]):
        with build_loader(compose([*typed, *engine]), split="train") as loader:
            found.append([batch["audio"] for batch in loader])
            assert loader.stats.bad_samples == 1
    assert [batch.shape for batch in found[0]] == [(4, 6400)] * 3
    assert all((a == b).all() for a, b in zip(*found, strict=True))


def test_a_spectrogram_shows_a_tone_where_it_sounds():
    import torch

    from penstock.transforms.device.log_mel import LogMel

    time_s = torch.arange(16_000) / 16_000
    tones = [torch.sin(2 * np.pi * pitch * time_s) for pitch in (300.0, 3000.0)]
    batch = LogMel()({"audio": torch.stack(tones), "label": torch.zeros(2)})
    assert list(batch["image"].shape) == [2, 3, 64, 101]
    low, high = batch["image"][:, 0].mean(2).argmax(1).tolist()
    assert high < 32 < low and set(batch) == {"image", "label"}
    with pytest.raises(ValueError, match="log_mel: no audio"):
        LogMel()({"image": torch.zeros(1)})


def test_a_pending_clip_that_turns_out_damaged():
    content = bytearray(written("FLAC", seconds=3))
    clip = PendingClip(bytes(content[: len(content) * 3 // 4]), 16_000)
    clip.excerpt(0, 1000)
    with pytest.raises(RecordError, match="damaged audio"):
        clip.excerpt(47_000, 1000)
