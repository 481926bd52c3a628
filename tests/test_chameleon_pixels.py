"""Chameleon's VQGAN: decoder against a reference, encoder against transformers, its file, and the conversion to it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lumina_files import VQGAN_SHAPES, index_of_code, random_codes, write_tiny_lumina
from safetensors.torch import load_file, save_file
from vqgan_reference import Shapes, State, decode, random_vqgan, vqgan_shapes

from ssd_core import SSDError, load_backbone
from ssd_core.cli import main
from ssd_core.families.chameleon_pixels import empty_vqgan, file_key, load_chameleon_pixels
from ssd_core.families.vqgan import VQGAN
from ssd_core.families.vqgan_ckpt import read_vqgan_ckpt

CPU = torch.device("cpu")
ORDER = torch.tensor([index_of_code(code) for code in range(8192)])
GRIDS = [(3, 3), (1, 1), (2, 5), (6, 4)]
REAL = vqgan_shapes(128, (1, 1, 2, 2, 4), 2, 256, 8192, 256)


@pytest.fixture(scope="module")
def state() -> State:
    return random_vqgan(VQGAN_SHAPES)


@pytest.fixture(scope="module")
def folder(state: State, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vqgan")
    save_file(state, folder / "vqgan.safetensors")
    return folder


@pytest.fixture
def pixels(folder: Path) -> VQGAN:
    return load_chameleon_pixels(folder, CPU, ORDER)


# --- pictures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", GRIDS)
def test_decoder_equals_the_reference(pixels: VQGAN, state: State, grid: tuple[int, int]) -> None:
    """Formula by formula from the file's tensors: 1e-9 in float64, 1e-4 in float32, square grids and others."""
    codes = random_codes(2, *grid)
    for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        tensors = {name: tensor.to(dtype) for name, tensor in state.items()}
        got = pixels.to(dtype).decode(codes)
        assert got.shape == (2, grid[0] * 16, grid[1] * 16, 3)
        assert got.dtype == dtype
        for image, indices in zip(got, ORDER[codes], strict=True):
            want = (decode(tensors, indices).clamp(-1, 1) + 1) / 2
            assert (image - want).abs().max() < limit
            assert float(image.std()) > 0.05  # neither gray nor all clamped


@pytest.mark.parametrize("grid", GRIDS)
def test_encoder_equals_transformers(pixels: VQGAN, state: State, grid: tuple[int, int]) -> None:
    """The features before the codebook to 1e-4 (float32) and 1e-9 (float64), and every code."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ChameleonVQVAEConfig(
        embed_dim=16, num_embeddings=8192, latent_channels=32, base_channels=32, num_res_blocks=1, attn_resolutions=[]
    )
    theirs = transformers.ChameleonVQVAE(config).eval()
    theirs.load_state_dict({name: t for name, t in state.items() if not name.startswith("decoder.")})
    images = torch.rand(2, grid[0] * 16, grid[1] * 16, 3, generator=torch.Generator().manual_seed(1))
    for dtype, limit in ((torch.float32, 1e-4), (torch.float64, 1e-9)):
        theirs, pixels = theirs.to(dtype), pixels.to(dtype)
        inputs = images.to(dtype).permute(0, 3, 1, 2) * 2 - 1
        with torch.no_grad():
            want = theirs.encode(inputs, return_dict=True)
            features = theirs.encoder(inputs)
            assert (pixels.encoder(inputs) - features).abs().max() < limit
        got = pixels.encode(images)
        assert got.shape == (2, *grid)
        assert torch.equal(ORDER[got].flatten(), want.image_tokens.flatten())
        assert grid == (1, 1) or len(got.unique()) > 2


def test_the_real_sizes_have_the_real_names(tmp_path: Path) -> None:
    """Meta's file (ch 128, multipliers 1 1 2 2 4, 8192 x 256) fits the network, and its encoder is transformers'."""
    network = empty_vqgan(REAL, tmp_path)
    assert network.spec.patch == 16
    assert {file_key(name): tuple(t.shape) for name, t in network.state_dict().items()} == REAL
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        theirs = transformers.ChameleonVQVAE(transformers.ChameleonVQVAEConfig(attn_resolutions=[])).state_dict()
    encoder = {name: shape for name, shape in REAL.items() if not name.startswith("decoder.")}
    assert {name: tuple(t.shape) for name, t in theirs.items()} == encoder


def test_a_picture_of_a_batch_is_the_single_picture(pixels: VQGAN) -> None:
    codes = random_codes(3, 2, 4)
    together = pixels.decode(codes)
    for image, single in zip(together, codes, strict=True):
        assert torch.equal(image, pixels.decode(single[None])[0])
    assert torch.equal(pixels.encode(together)[1], pixels.encode(together[1:2])[0])


def test_float32_whatever_the_backbone_computes_in(tmp_path: Path) -> None:
    write_tiny_lumina(tmp_path)
    backbone = load_backbone(tmp_path, dtype="bfloat16")
    assert backbone.dtype == torch.bfloat16
    assert {t.dtype for name, t in backbone.state_dict().items() if name.startswith("pixels.")} == {torch.float32}
    codes = random_codes(1, 2, 3)
    images = backbone.decode_pixels(codes)
    assert images.dtype == torch.float32
    assert torch.equal(images, load_chameleon_pixels(tmp_path, CPU, ORDER).decode(codes))
    assert torch.equal(backbone.encode_pixels(images), load_chameleon_pixels(tmp_path, CPU, ORDER).encode(images))


def test_half_precision_files_are_read_as_float32(folder: Path, state: State, tmp_path: Path) -> None:
    save_file({name: t.half() for name, t in state.items()}, tmp_path / "vqgan.safetensors")
    loaded = load_chameleon_pixels(tmp_path, CPU, ORDER)
    for name, tensor in loaded.state_dict().items():
        want = state[file_key(name)].half().float()
        assert torch.equal(tensor, want[ORDER] if name == "codebook" else want)


def test_loading_leaves_the_random_state_alone(folder: Path) -> None:
    before = torch.random.get_rng_state()
    load_chameleon_pixels(folder, CPU, ORDER)
    assert torch.equal(before, torch.random.get_rng_state())


# --- the file ------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_named_with_its_source_and_the_command(tmp_path: Path) -> None:
    with pytest.raises(SSDError) as told:
        load_chameleon_pixels(tmp_path, CPU, ORDER)
    text = str(told.value)
    assert text.startswith(f"{tmp_path / 'vqgan.safetensors'} is missing")
    assert "facebookresearch/chameleon" in text
    assert "GAIR/Anole-7b-v0.1" in text
    assert f'python -m ssd_core convert "vqgan.ckpt" -o "{tmp_path / "vqgan.safetensors"}"' in text
    (tmp_path / "vqgan.ckpt").touch()  # it is here already: only the command is left to do
    with pytest.raises(SSDError) as told:
        load_chameleon_pixels(tmp_path, CPU, ORDER)
    assert f'convert "{tmp_path / "vqgan.ckpt"}" -o' in str(told.value)
    assert "Anole" not in str(told.value)


def without(state: State, name: str) -> State:
    return {key: tensor for key, tensor in state.items() if key != name}


DAMAGE: dict[str, tuple[Callable[[State], State], str]] = {
    "no codebook": (lambda s: without(s, "quantize.embedding.weight"), "is not Chameleon's VQGAN: .*none for codebook"),
    "no encoder": (
        lambda s: {k: t for k, t in s.items() if not k.startswith("encoder.")},
        "VQGAN: .*none for encoder.conv_in.weight",
    ),
    "one tensor less": (lambda s: without(s, "decoder.norm_out.bias"), "missing decoder.norm_out.bias"),
    "one tensor more": (lambda s: {**s, "loss.x": torch.zeros(1)}, "unexpected loss.x"),
    "wrong shape": (lambda s: {**s, "decoder.norm_out.bias": torch.zeros(3)}, r"\[3\], expected \[32\]"),
    "integers": (lambda s: {**s, "decoder.norm_out.bias": torch.zeros(32, dtype=torch.int32)}, "int32, expected float"),
    "fewer codes": (lambda s: {**s, "quantize.embedding.weight": torch.zeros(99, 16)}, "has 99 codes, .* draws 8192"),
    "odd width": (lambda s: {**s, "encoder.conv_in.weight": torch.zeros(33, 3, 3, 3)}, "33 channels"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_told(state: State, tmp_path: Path, damage: str) -> None:
    change, match = DAMAGE[damage]
    save_file(change(state), tmp_path / "vqgan.safetensors")
    with pytest.raises(SSDError, match=match) as told:
        load_chameleon_pixels(tmp_path, CPU, ORDER)
    assert "vqgan.safetensors" in str(told.value) or str(tmp_path) in str(told.value)


def test_a_truncated_file_is_told(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "vqgan.safetensors").read_bytes()
    (tmp_path / "vqgan.safetensors").write_bytes(whole[:-1000])
    with pytest.raises(SSDError, match=r"vqgan\.safetensors is truncated"):
        load_chameleon_pixels(tmp_path, CPU, ORDER)


# --- the conversion ------------------------------------------------------------------------------------------------


class Bomb:
    """Writes a file when it is unpickled the usual way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def meta_checkpoint(state: State) -> dict[str, Any]:
    """The layout of Meta's file: training state around ``state_dict``, the loss network in it."""
    loss = {
        "loss.discriminator.main.0.weight": torch.ones(4, 3, 4, 4),
        "loss.perceptual_loss.lin0.weight": torch.ones(2),
    }
    return {"epoch": 3, "global_step": 9, "state_dict": {**state, **loss}, "optimizer_states": [{"state": {}}]}


@pytest.fixture
def ckpt(state: State, tmp_path: Path) -> Path:
    torch.save(meta_checkpoint(state), tmp_path / "vqgan.ckpt")
    return tmp_path / "vqgan.ckpt"


def test_convert_writes_what_the_loader_reads(
    ckpt: Path, state: State, pixels: VQGAN, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "model" / "vqgan.safetensors"
    assert main(["convert", str(ckpt), "-o", str(output)]) == 0
    assert capsys.readouterr().out.startswith(f"{output}: {len(state)} tensors")
    written = load_file(output)
    assert written.keys() == state.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in state.items())
    codes = random_codes(1, 2, 3)
    assert torch.equal(load_chameleon_pixels(output.parent, CPU, ORDER).decode(codes), pixels.decode(codes))
    assert sorted(path.name for path in output.parent.iterdir()) == ["vqgan.safetensors"]


def test_convert_writes_beside_the_checkpoint_and_says_what_it_left_out(
    ckpt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(ckpt)]) == 0
    assert "left out 2 others (loss)" in capsys.readouterr().out
    assert ckpt.with_name("vqgan.safetensors").is_file()


def test_tensors_that_share_memory_are_written_apart(state: State, tmp_path: Path) -> None:
    shared = torch.arange(64.0)
    twice = {**state, "encoder.norm_out.bias": state["encoder.norm_out.bias"], "decoder.norm_out.bias": shared[:32],
             "decoder.norm_out.weight": shared[32:], "quant_conv.weight": state["quant_conv.weight"].transpose(0, 1)
             .contiguous().transpose(0, 1)}  # fmt: skip
    torch.save({"state_dict": twice}, tmp_path / "vqgan.ckpt")
    assert main(["convert", str(tmp_path / "vqgan.ckpt")]) == 0
    written = load_file(tmp_path / "vqgan.safetensors")
    assert torch.equal(written["decoder.norm_out.weight"], shared[32:])
    assert torch.equal(written["quant_conv.weight"], state["quant_conv.weight"])


def save_pickle(path: Path, content: object) -> None:
    path.write_bytes(pickle.dumps(content))


REFUSED: dict[str, tuple[Callable[[Path, State], Any], str]] = {
    "code in the file": (
        lambda path, s: torch.save({**meta_checkpoint(s), "hook": Bomb(path.with_name("boom"))}, path),
        "objects that could run code",
    ),
    "code in a bare pickle": (lambda path, s: save_pickle(path, Bomb(path.with_name("boom"))), "could run code"),
    "code among the tensors": (
        lambda path, s: torch.save({"state_dict": {**s, "x": Bomb(path.with_name("boom"))}}, path), "could run code"
    ),
    "truncated": (lambda path, s: path.write_bytes(saved(path, s)[:-5000]), "is damaged"),
    "empty": (lambda path, s: path.write_bytes(b""), "is damaged"),
    "text": (lambda path, s: path.write_text("not a checkpoint"), "is damaged"),
    "git-LFS pointer": (
        lambda path, s: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
        "git-LFS pointer",
    ),
    "no state_dict": (lambda path, s: torch.save({"model": s}, path), "holds a dict of model, expected .*state_dict"),
    "a list": (lambda path, s: torch.save([1, 2], path), "holds list, expected .*state_dict"),
    "another network": (lambda path, s: torch.save({"state_dict": {"w": torch.ones(2)}}, path), "not Chameleon's"),
    "missing tensor": (
        lambda path, s: torch.save({"state_dict": without(s, "decoder.conv_out.bias")}, path),
        "missing decoder.conv_out.bias",
    ),
    "wrong shape": (
        lambda path, s: torch.save({"state_dict": {**s, "decoder.conv_out.bias": torch.ones(4)}}, path),
        r"decoder.conv_out.bias \[4\] instead of \[3\]",
    ),
}  # fmt: skip


def saved(path: Path, state: State) -> bytes:
    torch.save(meta_checkpoint(state), path)
    return path.read_bytes()


@pytest.mark.parametrize("case", REFUSED)
def test_convert_refuses_the_rest_and_leaves_nothing(
    case: str, state: State, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on stderr, no code run, no file written, an old file untouched."""
    make, match = REFUSED[case]
    source, output = tmp_path / "vqgan.ckpt", tmp_path / "out.safetensors"
    make(source, state)
    output.write_bytes(b"old")
    with pytest.raises(SSDError, match=match):
        read_vqgan_ckpt(source)
    assert main(["convert", str(source), "-o", str(output)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"error: {source}")
    assert told.err.count("\n") == 1
    assert "weights_only" not in told.err  # torch's own advice is to read it unsafely
    assert output.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.safetensors", "vqgan.ckpt"]


def test_convert_reads_weights_only(ckpt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    load = torch.load

    def spy(*arguments: Any, **options: Any) -> Any:
        asked.append(options)
        return load(*arguments, **options)

    monkeypatch.setattr(torch, "load", spy)
    read_vqgan_ckpt(ckpt)
    assert [options["weights_only"] for options in asked] == [True]


def test_a_failed_write_leaves_the_old_file(
    ckpt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "vqgan.safetensors"
    output.write_bytes(b"old")

    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", fail)
    assert main(["convert", str(ckpt), "-o", str(output)]) == 2
    assert capsys.readouterr().err == f"error: {output}: No space left on device\n"
    assert output.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vqgan.ckpt", "vqgan.safetensors"]


def test_wrong_paths_are_told(ckpt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases: list[tuple[list[str], str]] = [
        ([str(tmp_path / "nowhere.ckpt")], "nowhere.ckpt: No such file"),
        ([str(ckpt), "-o", str(tmp_path / "vqgan.bin")], "expected a file name ending in .safetensors"),
        ([str(ckpt), "-o", str(tmp_path)], "expected a file name ending in .safetensors"),
        ([str(ckpt), "-o", str(ckpt / "x.safetensors")], "vqgan.ckpt"),
        ([], "CKPT"),
    ]
    for arguments, said in cases:
        assert main(["convert", *arguments]) == 2
        assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["vqgan.ckpt"]


def test_shapes_of_the_tiny_file_are_those_of_the_reference(state: State) -> None:
    shapes: Shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert shapes == VQGAN_SHAPES
