"""Pixels in and out, picture by picture, on the embedded model."""

from __future__ import annotations

import pytest
import torch
from nodes_fakes import BUILT_IN


@pytest.fixture
def backbone(pack):
    pack("host.folders").register()
    return pack("host.models").load_backbone(BUILT_IN, "auto")


@pytest.fixture
def pixels(pack, backbone):
    return pack("host.pixels")


@pytest.fixture
def codes():
    return torch.randint(512, (3, 16, 16), generator=torch.Generator().manual_seed(1))


def test_every_picture_is_decoded_as_if_it_were_alone(pixels, backbone, codes):
    images = pixels.decode(backbone, codes)
    assert images.shape == (3, 128, 128, 3)
    assert images.dtype == torch.float32
    assert float(images.min()) >= 0
    assert float(images.max()) <= 1
    for index in range(3):
        assert torch.equal(images[index], backbone.module.decode_pixels(codes[index : index + 1])[0])


def test_pictures_of_the_right_size_are_encoded_as_they_are(pixels, backbone, codes):
    images = backbone.module.decode_pixels(codes)
    tokens = pixels.encode(backbone, torch.cat((images, torch.ones_like(images[..., :1])), -1), (16, 16), "crop")
    assert torch.equal(tokens.codes, backbone.module.encode_pixels(images))
    assert tokens.info["fingerprint"] == backbone.module.fingerprint


@pytest.mark.parametrize(("fit", "crop"), [("crop", "center"), ("stretch", "disabled")])
def test_other_sizes_go_through_comfyuis_scaler(comfy, pixels, backbone, fit, crop):
    tokens = pixels.encode(backbone, torch.rand(2, 50, 70, 3), (16, 16), fit)
    assert tokens.codes.shape == (2, 16, 16)
    assert comfy.scaled == [((1, 3, 50, 70), 128, 128, "lanczos", crop)] * 2


def test_room_is_made_for_one_picture_whatever_the_batch(comfy, pixels, backbone, codes):
    pixels.decode(backbone, codes)
    pixels.decode(backbone, codes[:1])
    pixels.encode(backbone, torch.rand(3, 128, 128, 3), (16, 16), "crop")
    needs = {wishes["memory_required"] for _, wishes in comfy.loads}
    assert len(comfy.loads) == 3
    assert len(needs) == 1
    assert needs.pop() > 128 * 128 * 3 * 4


@pytest.mark.parametrize("way", ["decode", "encode"])
def test_stop_is_asked_before_every_picture(pack, comfy, pixels, backbone, codes, way):
    model, name, seen = backbone.module, f"{way}_pixels", []
    real = getattr(model, name)

    def watched(value):
        seen.append(len(value))
        comfy.stop = len(seen) == 2  # pressed while the second picture is worked on
        return real(value)

    object.__setattr__(model, name, watched)
    settings = {"decode": (codes,), "encode": (torch.rand(3, 128, 128, 3), (16, 16), "crop")}[way]
    with pytest.raises(pack("host.stop").Stopped):
        getattr(pixels, way)(backbone, *settings)
    assert seen == [1, 1]


def test_a_grid_that_the_backbone_does_not_know_is_refused(pack, pixels, backbone):
    with pytest.raises(pack("core").core().SSDError, match="cannot draw 10x10"):
        pixels.encode(backbone, torch.rand(1, 80, 80, 3), (10, 10), "crop")
