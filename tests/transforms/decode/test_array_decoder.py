"""Arrays that are no images: every way in which they are stored, and what is refused."""

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
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def decoded(value, **options):
    return ArrayDecoder(**options)(Record(3, "k", {"array": value, "label": 1}))["array"]


def refused(value, **options):
    with pytest.raises(ValueError) as caught:
        decoded(value, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_it_is_a_decoder():
    good = [
        Record(0, "a", {"array": VOLUME, "label": 3}),
        Record(1, "b", {"array": npy(SPECTRUM), "text": "x"}),
        Record(2, "c", {"array": WAVE}),
    ]
    damaged = [
        Record(3, "d", {"label": 3}),
        Record(4, "e", {"array": "text"}),
        Record(5, "f", {"array": npy(VOLUME)[:-1]}),
        Record(6, "g", {"array": None}),
        Record(7, "h", {"array": np.array(["a"])}),
    ]
    check_decoder(ArrayDecoder(), good, damaged, views=True)


@pytest.mark.parametrize("array", [VOLUME, SPECTRUM, WAVE, VOLUME.astype(">i4"), np.ones((2, 0))])
def test_the_bytes_of_a_file_are_the_array(array):
    assert_same(decoded(npy(array)), array)
    assert_same(decoded(npy(np.asfortranarray(array))), array)


def test_nothing_is_copied_that_need_not_be():
    assert decoded(VOLUME) is VOLUME
    assert np.shares_memory(decoded(VOLUME, axes=[2, 0, 1], dtype="int16"), VOLUME)
    raw = WAVE.tobytes()
    assert np.shares_memory(
        decoded(raw, stored="float32", shape=[-1]), np.frombuffer(raw, np.uint8)
    )


def test_types_axes_and_plain_numbers():
    assert_same(decoded(VOLUME, axes=[2, 0, 1], dtype="float32"),
                VOLUME.transpose(2, 0, 1).astype(np.float32))  # fmt: skip
    raw = VOLUME.astype(">i2").tobytes()
    for value in (raw, bytearray(raw), memoryview(raw)):
        assert_same(decoded(value, stored=">i2", shape=[4, -1, 5], dtype="int16"), VOLUME)
    assert_same(decoded([[1, 2], [3, 4]], dtype="uint8"), np.array([[1, 2], [3, 4]], np.uint8))
    decoder = ArrayDecoder(fields=["a", "b"], dtype="float64")
    sample = decoder(Record(0, "k", {"a": WAVE, "b": npy(VOLUME), "c": WAVE}))
    assert [sample[name].dtype.str for name in "abc"] == ["<f8", "<f8", "<f4"]


def test_what_is_refused():
    assert "no field 'wave' to decode, fields: array, label" in refused(WAVE, fields=["wave"])
    assert "holds Python objects (pickled), which are never loaded" in refused(
        npy(np.array([{}]), allow_pickle=True)
    )
    assert "is no .npy file, or a damaged one" in refused(b"\x80\x04cos\nsystem\n")
    assert "is [4, 3, 5], expected 2 axes" in refused(VOLUME, axes=[1, 0])
    assert "has 200 bytes, expected 192" in refused(WAVE.tobytes(), stored="<f4", shape=[48])
    assert "expected 28 or a multiple" in refused(WAVE.tobytes(), stored="<f4", shape=[7, -1])
    assert "complex64, which float32 cannot hold" in refused(SPECTRUM, dtype="float32")
    assert "is a list, expected an array or bytes" in refused([["a"]])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stored": "float32"}, "stored and shape belong together"),
        ({"stored": "object", "shape": [2]}, "stored 'object', expected a type of numbers"),
        ({"dtype": "nonsense"}, "dtype 'nonsense', expected a type of numbers"),
        ({"stored": "u1", "shape": [-1, -1]}, "-1 at most once"),
        ({"stored": "u1", "shape": [0]}, "expected lengths above 0"),
        ({"axes": [0, 2]}, "expected each number from 0 on once"),
    ],
)
def test_wrong_options(options, text):
    with pytest.raises(ValueError, match=text):
        ArrayDecoder(**options)


def test_damage_at_every_byte_is_one_line_or_other_numbers():
    content = npy(WAVE[:4])
    for at in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit
            try:
                assert decoded(bytes(flipped)).nbytes <= 32
            except ValueError as error:
                assert "\n" not in str(error)
        assert "\n" not in refused(content[:at])
