"""Ways to decode a part of a JPEG."""

from __future__ import annotations

import pytest

from penstock.transforms.decode.image import jpeg
from penstock.transforms.decode.image.turbojpeg import region_decoder


@pytest.fixture(params=["regions", "smaller files"])
def part_of_a_jpeg(request, monkeypatch) -> str:
    """By the decoder of regions, and without one."""
    if request.param == "smaller files":
        monkeypatch.setattr(jpeg, "region_decoder", lambda: None)
    elif region_decoder() is None:
        pytest.skip("no TurboJPEG 3 on this machine: pip install turbojpeg")
    return request.param
