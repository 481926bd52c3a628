"""What the live view costs a run in ComfyUI, and how soon Stop ends one.

Run: ``python -m benchmarks.comfy_overhead``. It builds a real ComfyUI on the first use (about 2 GB, see
``tests/comfy_engine/build.py``) and draws with the embedded model on the CPU. The same seeds are drawn in turn with
progress and ``ssd.rows`` events and without any; the ratios are medians over the pairs, of wall time and of the
server's CPU time. The share is steadier where other programs run too: of one run's CPU time, what was spent inside the
telling methods and, beyond what a run without a view takes there, in the network thread. Stop is pressed at different
moments of a run; its latency is set beside the mean time of one forward.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from comfy_engine import graphs  # noqa: E402
from comfy_engine.build import build  # noqa: E402
from comfy_engine.client import Client, Prompt, Run, connected  # noqa: E402
from comfy_engine.fixtures import PROBE  # noqa: E402
from comfy_engine.server import ComfyServer  # noqa: E402

LIMIT = 0.03
"""Share of a run that preview and progress may cost."""


def sampler_seconds(run: Run) -> float:
    """Wall time of the sampler node: from when it starts to when the next node does, as the client sees it."""
    steps = [event for event in run.events if event.kind == "executing"]
    at = next(index for index, event in enumerate(steps) if event.data["node"] == "sampler")
    return steps[at + 1].at - steps[at].at


def measured(client: Client, prompt: Prompt) -> dict[str, float]:
    """One run: wall seconds of the sampler, CPU seconds by the probe's parts, events received."""
    before = client.get("/probe/cpu")
    run = client.run(prompt, 600)
    after = client.get("/probe/cpu")
    assert run.end == "execution_success", run.of("execution_error")
    parts = {name: after[name] - before[name] for name in after}
    return {"wall": sampler_seconds(run), "events": len(run.of("ssd.rows")), **parts}


def overhead(client: Client, pairs: int, **settings: Any) -> dict[str, Any]:
    """The same seeds with and without a live view, in changing order."""
    told, untold = [], []
    for seed in range(pairs):
        for quiet in (False, True) if seed % 2 else (True, False):
            client.request("/probe/quiet", {"quiet": quiet})
            # A negative prompt that differs keeps ComfyUI's cache from answering the second run of a seed.
            negative = "a dog" if quiet else "a dog "
            found = measured(client, graphs.picture(seed=seed, negative=negative, **settings))
            (untold if quiet else told).append(found)
    client.request("/probe/quiet", {"quiet": False})

    def ratio(name: str) -> float:
        return round(statistics.median(a[name] / b[name] for a, b in zip(told, untold, strict=True)), 4)

    pairs_of_runs = list(zip(told, untold, strict=True))
    network = [(a["network"] - b["network"]) / a["process"] for a, b in pairs_of_runs]
    telling = [a["telling"] / a["process"] for a in told]
    return {
        "settings": settings,
        "pairs": pairs,
        "seconds_without": round(statistics.median(run["wall"] for run in untold), 3),
        "events": statistics.median(run["events"] for run in told),
        "wall_ratio": ratio("wall"),
        "cpu_ratio": ratio("process"),
        "share": round(statistics.median(a + b for a, b in zip(telling, network, strict=True)), 4),
        "share_in_network": round(statistics.median(network), 4),
    }


def stop_latency(client: Client, times: int, **settings: Any) -> dict[str, Any]:
    """Seconds from pressing Stop to `execution_interrupted`, at `times` moments spread over a run."""
    whole = client.run(graphs.picture(seed=1000, **settings), 600)
    end = whole.of("ssd.rows")[-1]
    latencies = []
    for number in range(times):
        prompt_id = client.queue(graphs.picture(seed=1001 + number, **settings))
        wanted = max(1, end["forwards"] * number // times)
        client.listener.wait(
            lambda events, prompt_id=prompt_id, wanted=wanted: any(
                event.kind == "ssd.rows" and event.data["prompt_id"] == prompt_id and event.data["forwards"] >= wanted
                for event in events
            ),
            600,
        )
        pressed = time.monotonic()
        client.interrupt()
        run = client.wait(prompt_id, 600)
        if run.end == "execution_interrupted":  # not when Stop came too late
            latencies.append(next(event.at for event in run.events if event.kind == run.end) - pressed)
    forward = end["elapsed"] / end["forwards"]
    return {
        "settings": settings,
        "stops": len(latencies),
        "milliseconds": round(1000 * statistics.median(latencies), 1),
        "worst_milliseconds": round(1000 * max(latencies), 1),
        "milliseconds_of_one_forward": round(1000 * forward, 1),
        "forwards": round(statistics.median(latencies) / forward, 2),
    }


def tell(figures: dict[str, Any]) -> None:
    """Prints figures with how busy the machine is, at once: on a busy one this takes long."""
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    print(json.dumps({**figures, "load": load}), flush=True)


def main() -> None:
    """Measures and prints a JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--stops", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1, help="threads of the server's torch")
    options = parser.parse_args()
    environment = {"OMP_NUM_THREADS": str(options.threads)}
    with tempfile.TemporaryDirectory() as base:
        server = ComfyServer(build(), Path(base), environment=environment, custom_nodes=[PROBE])
        with server, connected(server.url) as client:
            client.run(graphs.picture(seed=999, grid="24x24"))  # load and warm up
            costs = []
            for settings in ({"grid": "24x24"}, {"grid": "24x24", "batch_size": 4}):
                tell({"stop": stop_latency(client, options.stops, **settings)})
                costs.append(overhead(client, options.pairs, **settings))
                tell({"overhead": costs[-1]})
    worst = max(cost["share"] for cost in costs)
    if worst > LIMIT:
        sys.exit(f"comfy_overhead: the live view costs {worst:.1%}, the limit is {LIMIT:.0%}")


if __name__ == "__main__":
    main()
