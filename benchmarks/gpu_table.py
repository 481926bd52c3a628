"""The printed tables: speed of every line, parts of a step, memory, checks, targets."""

from __future__ import annotations

from typing import Any

from .gpu_shapes import Shape

Data = dict[str, Any]
GRAPHED, EAGER = "AR, graphed", "AR, eager"


def picture_seconds(line: Data) -> float | None:
    """Measured if it was, else extrapolated."""
    seconds: float | None = line.get("whole_s", line["picture_s"])
    return seconds


def ratio(lines: dict[str, Data], slow: str, fast: str) -> float | None:
    """How many times as fast ``fast`` is as ``slow``."""
    if slow not in lines or fast not in lines:
        return None
    a, b = picture_seconds(lines[slow]), picture_seconds(lines[fast])
    return a / b if a and b else None


def transformers_line(lines: dict[str, Data]) -> str:
    """The first of transformers' lines: the loop of its own ``generate``."""
    return next((name for name in lines if name.startswith("transformers")), "")


def step_shares(data: Data, parts: Data) -> dict[str, float]:
    """Line -> bytes that each forward must read, over what a copy moves in the time of one."""
    sizes = parts.get("widths", {}).get("K = 1")
    bandwidth = parts.get("bandwidth")
    if not sizes or not bandwidth or data["layers"] != [data["layers_full"]]:
        return {}
    return {
        name: sizes["bytes"] / bandwidth / (line["ms_per_forward"] / 1e3)
        for name, line in data["lines"].items()
        if line["ms_per_forward"]
    }


def graphs_off(name: str, line: Data, checks: Data) -> bool:
    """Whether a graphed line ran eagerly, by its own whole picture or else by the small one of the checks."""
    small = {"AR": "AR, graphed", "SSD as": "SSD, graphed", "SSD, rolling": "exact, graphed"}
    texts: dict[str, str] = checks.get("graphs", {})
    told = [texts.get(check, "") for begin, check in small.items() if name.startswith(begin)]
    return "graphed" in name and str(line.get("graphs") or "".join(told)).startswith("off")


def speed_table(shape: Shape, data: Data, parts: Data, checks: Data) -> list[str]:
    """Markdown. ``~`` marks what was extrapolated, ``≤`` forwards that may turn out fewer."""
    lines: dict[str, Data] = data["lines"]
    plain = GRAPHED if GRAPHED in lines else EAGER
    theirs, shares = transformers_line(lines), step_shares(data, parts)
    rows = [
        f"{shape.title}, {shape.grid[0]}×{shape.grid[1]} codes, {_layers(data)}",
        "",
        f"| decoder | forwards | ms a forward | of copy bandwidth | seconds a picture | × {plain} | × transformers |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, line in lines.items():
        seconds, share = picture_seconds(line), shares.get(name)
        measured = "whole_s" in line
        forwards = line.get("whole_forwards", line["forwards"])
        count = "by drafts" if forwards is None else f"{'≤ ' if line['at_most'] and not measured else ''}{forwards}"
        wide = "–" if line["ms_per_forward"] is None else f"{line['ms_per_forward']:.2f}"
        took = "–" if seconds is None else f"{'' if measured else '~'}{seconds:.3g}"
        cut = " (short spans)" if line["shortened"] or line["repeats"] < 2 else ""
        cut += " (GRAPHS OFF)" if graphs_off(name, line, checks) else ""
        cells = [
            name + cut, count, wide, "–" if share is None else f"{share:.0%}", took,
            _times(ratio(lines, plain, name)), _times(ratio(lines, theirs, name)),
        ]  # fmt: skip
        rows.append("| " + " | ".join(cells) + " |")
    for name, line in lines.items():
        if line["forwards"] is None and line["ms_per_forward"]:
            rows += ["", _break_even(shape, lines, name)]
    rows += [f"missing: {what}: {why}" for what, why in data["missing"].items()]
    return rows


def _break_even(shape: Shape, lines: dict[str, Data], name: str) -> str:
    """Random weights say nothing of acceptance: what a rolling line needs to be as fast as the published schedule."""
    kind = name.rpartition(", ")[2]
    paper = lines.get(f"SSD as published, {kind}")
    seconds = None if paper is None else picture_seconds(paper)
    codes = shape.grid[0] * shape.grid[1]
    step = lines[name]["ms_per_forward"] / 1e3
    if not seconds:
        return f"{name}: forwards depend on trained heads."
    return f"{name}: as fast as the published schedule when it accepts {codes * step / seconds:.1f} tokens a forward."


def _layers(data: Data) -> str:
    if data["layers"] == [data["layers_full"]]:
        return f"{data['layers_full']} layers"
    counts = " and ".join(map(str, data["layers"]))
    return f"EXTRAPOLATED to {data['layers_full']} layers from measurements with {counts}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def parts_table(shape: Shape, data: Data) -> list[str]:
    """Forward widths, drafting, memory."""
    rows = [f"{shape.title}, parts of a step ({data['layers']} of {data['layers_full']} layers)", ""]
    rows += ["| part | tokens | eager ms | graph alone ms | × K = 1 | of copy bandwidth |", "|---|--:|--:|--:|--:|--:|"]
    first = data["widths"]["K = 1"]
    for name, part in [*data["widths"].items(), ("drafting a row", data["drafting"])]:
        graphed = f"{part['graphed_ms']:.3f}" if "graphed_ms" in part else "–"
        share = f"{part['share']:.0%}" if "share" in part else "–"
        kind = "graphed_ms" if "graphed_ms" in first and "graphed_ms" in part else "eager_ms"
        steps = f"{part[kind] / first[kind]:.3f}"
        rows.append(f"| {name} | {part['tokens']} | {part['eager_ms']:.3f} | {graphed} | {steps} | {share} |")
    steps = ", ".join(f"{value:.3f} ({kind})" for kind, value in data["drafting"]["in_ar_steps"].items())
    sizes = ", ".join(f"{name} {_size(value)}" for name, value in data["memory"].items())
    rows += ["", f"Drafting a row in AR steps: {steps}. Memory: {sizes}."]
    for name, told in data["attention"].items():
        for kind in ("masked", "unmasked"):
            times = ", ".join(f"{backend} {_attention_time(part)}" for backend, part in told[kind].items())
            rows.append(f"Attention of a forward, {name}, {told['kv']} keys, {kind}, ms: {times}.")
    return rows


def _attention_time(part: Data) -> str:
    return "does not take it" if "failed" in part else f"{part.get('graphed_ms', part['eager_ms']):.3f}"


def _size(value: int | None) -> str:
    return "not told" if value is None else f"{value / 2**20:.0f} MiB"


def checks_table(data: Data) -> list[str]:
    """A line a check, then the shares in the model's own dtype."""
    rows = [
        f"{'passed' if result['passed'] else 'FAILED'}  {name} ({result['detail']})"
        for name, result in data["checks"].items()
    ]
    rows += [f"equal   {pair}: {share:.1%} of codes" for pair, share in data.get("shares", {}).items()]
    return rows + [f"missing: {what}: {why}" for what, why in data.get("missing", {}).items()]
