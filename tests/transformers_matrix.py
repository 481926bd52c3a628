"""The same greedy pictures under every transformers release that ComfyUI users have.

    python tests/transformers_matrix.py [--cache DIR] [RELEASE ...]

Writes tiny checkpoints of all families with this interpreter's transformers (which must know them all), then draws
with each release in an environment of its own, which is made once and kept in the cache: torch and the rest come from
this interpreter, only transformers and what it needs are installed. Where a release has the family itself, its own
``generate`` must give the same tokens. Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, it sees its own folder alone
RELEASES = ("==4.50.3", "==4.57.*", ">=5")
PROMPTS = ["a red cat", "two dogs near a river at night"]

Tokens = list[list[int]]


# --- here ----------------------------------------------------------------------------------------------------------


def write_checkpoints(folder: Path) -> None:
    """One tiny checkpoint of each family and layout, below ``folder``."""
    import emu3_checkpoints
    import lumina_files
    import tiny_janus

    tiny_janus.write_both(folder / "janus")
    emu3_checkpoints.write_both(folder / "emu3")
    lumina_files.write_tiny_lumina(folder / "lumina" / "original")


def environment(release: str, cache: Path) -> Path:
    """The interpreter of a release's environment."""
    place = cache / ("transformers" + release.replace("*", "x").replace(">=", "-from-").replace("==", "-"))
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if (place / "ready").exists():
        return python
    venv.create(place, clear=True, with_pip=True)
    run = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    # Packages of this interpreter come after the environment's own.
    Path(run.stdout.strip(), "inherited.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", f"transformers{release}"], check=True)
    (place / "ready").touch()
    return python


def compare(results: dict[str, dict[str, Any]]) -> list[str]:
    """What differs between the releases, and within one between us and transformers' own ``generate``."""
    problems = []
    first, *_ = results.values()
    for release, result in results.items():
        for folder, tokens in first["ours"].items():
            if result["ours"].get(folder) != tokens:
                problems.append(f"{folder}: transformers {release} gives other tokens than {first['transformers']}")
            theirs = result["theirs"].get(folder)
            if theirs is not None and theirs != tokens:
                problems.append(f"{folder}: generate of transformers {release} gives other tokens than ours")
    return problems


# --- in a release's environment ------------------------------------------------------------------------------------


def draw_all(folder: Path) -> dict[str, Any]:
    """Greedy tokens of every checkpoint below ``folder``: ours, and transformers' own where it has the family."""
    import tokenizers
    import torch
    import transformers

    torch.set_num_threads(1)
    ours: dict[str, Tokens] = {}
    theirs: dict[str, Tokens] = {}
    for config in sorted(folder.rglob("config.json")):
        name = config.parent.relative_to(folder).as_posix()
        family = name.split("/")[0]
        if config.parent.name == "Emu3-VisionTokenizer":
            continue
        ours[name] = _ours(config.parent, family)
        oracle = ORACLES.get(family)
        transformers_has_it = json.loads(config.read_text(encoding="utf-8"))["model_type"] == family
        if oracle is not None and transformers_has_it and hasattr(transformers, f"{family.title()}Config"):
            theirs[name] = oracle(config.parent)
    return {
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "ours": ours,
        "theirs": theirs,
    }


def _backbone(folder: Path, family: str) -> Any:
    from lumina_files import load_tiny

    from ssd_core import load_backbone

    return load_tiny(folder) if family == "lumina" else load_backbone(folder)


def _ours(folder: Path, family: str) -> Tokens:
    from dataclasses import replace

    from ssd_core import generate

    backbone = _backbone(folder, family)
    greedy = replace(backbone.default_sampling, temperature=0.0)
    tokens: Tokens = generate(backbone, PROMPTS, sampling=greedy).tokens.flatten(1).tolist()
    return tokens


def _janus(folder: Path) -> Tokens:
    import torch
    from transformers import JanusForConditionalGeneration

    backbone = _backbone(folder, "janus")
    model = JanusForConditionalGeneration.from_pretrained(folder).eval()
    model.generation_config.generation_kwargs = {"boi_token_id": backbone.prompts.begin_of_image}
    rows = backbone.prompt_ids(PROMPTS, "", guided=False)
    longest = max(map(len, rows))
    ids = torch.tensor([[backbone.prompts.pad] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    drawn = model.generate(ids, attention_mask=mask, generation_mode="image", do_sample=False, guidance_scale=5.0)
    tokens: Tokens = drawn.tolist()
    return tokens


def _emu3(folder: Path) -> Tokens:
    import torch
    from test_emu3 import allowed_tokens
    from transformers import Emu3ForConditionalGeneration

    backbone = _backbone(folder, "emu3")
    grid = backbone.default_grid
    rows = backbone.prompt_ids(PROMPTS, "", grid, guided=True)
    longest, images = max(map(len, rows)), len(PROMPTS)
    ids = torch.tensor([[backbone.ids.pad] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    drawn = (
        Emu3ForConditionalGeneration.from_pretrained(folder)
        .eval()
        .generate(
            input_ids=ids[:images],
            attention_mask=mask[:images],
            negative_prompt_ids=ids[images:],
            negative_prompt_attention_mask=mask[images:],
            guidance_scale=3.0,
            prefix_allowed_tokens_fn=allowed_tokens(*grid),
            do_sample=False,
            max_new_tokens=400,
        )[:, longest:]
    )
    stream = backbone.stream(grid)
    tokens: Tokens = (stream.to_grid(drawn[:, : stream.length]) - backbone.ids.first_code).flatten(1).tolist()
    return tokens


ORACLES: dict[str, Callable[[Path], Tokens]] = {"janus": _janus, "emu3": _emu3}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", default=RELEASES, metavar="RELEASE", help="such as ==4.57.6 or >=5")
    parser.add_argument(
        "--cache", type=Path, default=ROOT / ".cache" / "transformers", help="environments, checkpoints"
    )
    parser.add_argument("--draw", type=Path, help=argparse.SUPPRESS)  # how the script calls itself in an environment
    options = parser.parse_args()
    if options.draw is not None:
        print(json.dumps(draw_all(options.draw)))
        return 0
    checkpoints = options.cache / "checkpoints"
    if not (checkpoints / "ready").exists():
        write_checkpoints(checkpoints)
        (checkpoints / "ready").touch()
    results = {}
    for release in options.releases:
        command = [str(environment(release, options.cache)), __file__, "--draw", str(checkpoints)]
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            print(f"transformers{release}: failed, its output is above")
            return 1
        result = json.loads(done.stdout.splitlines()[-1])
        results[result["transformers"]] = result
        own = ", ".join(result["theirs"]) or "none of the families"
        drew = f"transformers {result['transformers']}, tokenizers {result['tokenizers']}: {', '.join(result['ours'])}"
        print(f"{drew}; own generate: {own}", flush=True)
    problems = compare(results)
    print("\n".join(problems) if problems else "greedy tokens are identical everywhere")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
