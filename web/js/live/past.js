/** Looking back: the state of runs at an earlier moment, chosen by a position between 0 (first) and 1 (last). */

/** One run at a moment of its past, with the picture of its present: final rows never change. */
function runAt(run, position) {
    const index = Math.min(Math.floor(position * (run.past.length + 1)), run.past.length);
    const then = run.past[index];
    if (then === undefined) return run;
    const images = then.images.map((image, k) => ({ ...image, picture: run.images[k]?.picture ?? null }));
    return { ...then, images };
}

/** All runs at a moment. Runs that still go on are not looked back into: the present is what counts then. */
export function runsAt(runs, position) {
    if (position === null || runs.some((run) => run.status === "running")) return runs;
    return runs.map((run) => runAt(run, Math.min(Math.max(position, 0), 1)));
}
