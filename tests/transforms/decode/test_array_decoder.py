"""Arrays of any kind: ways of storing them, and refusals."""

import io

import numpy as np
import pytest

from penstock.core.sample import Record
from penstock.transforms.decode.array import ArrayDecoder
from tests.contracts.decoder import check_decoder
from tests.contracts.equality import assert_same

rng = np.random.default_rng(0)
VOLUME = rng.integers(-1000, 1000, (4, 3, 5)).astype(np.int16)
SPECTRUM = (rng.normal(size=(6, 2)) + 1j * rng.normal(size=(6, 2))).astype(np.complex64)
WAVE = rng.normal(size=50).astype(np.float32)


def npy(array, **options):
    np.save(file := io.BytesIO(), array, **options)
    return file.getvalue()


def decoded(value, **options):
    return ArrayDecoder(**options)(Record(3, "k", {"array": value, "label": 1}))["array"]


def test_it_is_a_decoder():
    good = [{"array": VOLUME, "label": 3}, {"array": npy(SPECTRUM), "text": "x"}, {"array": WAVE}]
    damaged = [{"label": 3}, {"array": "text"}, {"array": npy(VOLUME)[:-1]}, {"array": None},
               {"array": np.array(["a"])}, {"array": [["a"]]}, {"array": b"\x80\x04cos\nsystem\n"},
               {"array": npy(np.array([{}]), allow_pickle=True)}]  # fmt: skip
    records = [[Record(i, str(i), fields) for i, fields in enumerate(some)]
               for some in (good, damaged)]  # fmt: skip
    check_decoder(ArrayDecoder(), *records, views=True)


@pytest.mark.parametrize("array", [VOLUME, SPECTRUM, WAVE, VOLUME.astype(">i4"), np.ones((2, 0))])
def test_the_bytes_of_a_file_are_the_array(array):
    assert_same(decoded(npy(array)), array)
    assert_same(decoded(npy(np.asfortranarray(array))), array)


def test_types_and_axes():
    assert decoded(VOLUME) is VOLUME
    assert np.shares_memory(decoded(VOLUME, axes=[2, 0, 1], dtype="int16"), VOLUME)
    expected = VOLUME.transpose(2, 0, 1).astype(np.float32)
    assert_same(decoded(VOLUME, axes=[2, 0, 1], dtype="float32"), expected)
    assert_same(decoded([[1, 2], [3, 4]], dtype="uint8"), np.array([[1, 2], [3, 4]], np.uint8))
    decoder = ArrayDecoder(fields=["a", "b"], dtype="float64")
    sample = decoder(Record(0, "k", {"a": WAVE, "b": npy(VOLUME), "c": WAVE}))
    assert [sample[name].dtype.str for name in "abc"] == ["<f8", "<f8", "<f4"]


@pytest.mark.parametrize(
    ("value", "options", "text"),
    [
        (WAVE, {"fields": ["wave"]}, "no field 'wave' to decode, fields: array, label"),
        (VOLUME, {"axes": [1, 0]}, r"is \[4, 3, 5\], expected 2 axes"),
        (SPECTRUM, {"dtype": "float32"}, "complex64, which float32 cannot hold"),
        (VOLUME, {"dtype": "uint8"}, "has numbers that uint8 cannot hold"),
        ([np.nan], {"dtype": "int64"}, "has numbers that int64 cannot hold"),
        (WAVE, {"axes": [0, 2]}, "expected an order of all"),
    ],
)
def test_refusals(value, options, text):
    with pytest.raises(ValueError, match=text):
        decoded(value, **options)
