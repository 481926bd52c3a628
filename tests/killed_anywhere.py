"""Work that is killed at each of its file operations in turn, and taken up again: run as a script, since it forks.

The process dies by SIGKILL, without a chance to tidy up, right before the n-th time it opens, renames, changes or
removes a file of its folder; half a file that the safetensors library was writing is left there as well. Then the work
runs to its end and the folder must hold what an uninterrupted run leaves.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from toys import ToyBackbone

from ssd_core.distill import state
from ssd_core.distill.samples import Samples, collect
from ssd_core.distill.session import Wanted, train_file
from ssd_core.distill.settings import TrainSettings

EVENTS = {"open", "os.rename", "os.remove", "os.chmod", "os.mkdir"}
PROMPTS = ["ab", "c", "", "dea", "b"]


def dies(work: Callable[[Path], None], folder: Path, number: int, half: bool) -> bool:
    """Whether the work on ``folder``, in a process of its own, met its end at file operation ``number``."""
    child = os.fork()
    if child == 0:
        left = number

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event in EVENTS and str(arguments[0]).startswith(str(folder)):
                left -= 1
                if left == 0:
                    path = Path(str(arguments[0]))
                    if half and path.suffix == ".partial" and path.exists():
                        os.truncate(path, path.stat().st_size // 2)
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            work(folder)
        except BaseException as error:  # the parent's tests and clean-up are not this process's
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status != 0


def tensors(paths: Iterable[Path]) -> dict[str, object]:
    """Everything that is stored, by file; reading fails for a file that is not whole."""
    found: dict[str, object] = {}
    for path in sorted(paths):
        with safe_open(str(path), framework="pt") as file:
            found[path.name] = {name: file.get_tensor(name).tolist() for name in sorted(file.keys())}
    return found


def draw(folder: Path) -> None:
    collect(ToyBackbone(3, 4), PROMPTS, folder / "s", grid=(3, 4), seed=5, batch=2)


def train(folder: Path) -> None:
    """Three steps, the state written after each."""
    pictures = Samples(torch.arange(72).view(6, 3, 4) % 11, ["ab", "c", "", "dea", "b", "e"])
    settings = TrainSettings(steps=3, batch=2, learning_rate=1e-2, warmup=0, checkpoint_minutes=1e-9)
    train_file(
        ToyBackbone(3, 4), [pictures], folder / "heads.safetensors", Wanted((1,), (1,)), settings, work=folder / "w"
    )


def check(work: Callable[[Path], None], base: Path, result: Callable[[Path], dict[str, object]]) -> int:
    """Kills the work everywhere; returns at how many places."""
    base.mkdir()
    whole = base / "whole"
    whole.mkdir()
    work(whole)
    wanted, number = result(whole), 0
    while True:
        number += 1
        folder = base / "killed"
        folder.mkdir()
        if not dies(work, folder, number, half=bool(number % 2)):
            return number - 1
        tensors(folder.rglob("*.safetensors"))  # whatever is there is whole
        work(folder)
        assert result(folder) == wanted, number
        leavings = sorted(path.name for path in folder.rglob("*.partial"))
        assert len(leavings) <= 1, leavings  # the small file that was being written
        shutil.rmtree(folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    print(
        check(draw, place / "draw", lambda folder: tensors((folder / "s").glob("*.safetensors"))),
        check(
            train,
            place / "train",
            lambda folder: tensors([folder / "heads.safetensors", folder / "w" / state.STATE_FILE]),
        ),
    )
