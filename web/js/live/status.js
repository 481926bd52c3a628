/** The line under the picture. Numbers look the same in every locale. */

/** Seconds as a person says them: "2.1 s", "42 s", "3 min 5 s". */
export function seconds(value) {
    if (value < 9.95) return `${value.toFixed(1)} s`;
    const whole = Math.round(value);
    if (whole < 120) return `${whole} s`;
    return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** Tokens a second: whole numbers where they say enough. */
const speed = (value) => (value < 9.95 ? value.toFixed(1) : String(Math.round(value)));

const counted = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** The row that is being worked on, counted from 1: the slowest picture's. */
export function currentRow(run) {
    const finished = run.images.map((image) => image.rowsAccepted);
    return Math.min(Math.min(...finished, run.rows) + 1, run.rows);
}

/** Like "row 13/24 · 39 forwards · 71 % accepted · 5.8× fewer than plain · 158 tokens/s · 2.1 s left". */
export function statusLine(run) {
    const row = `row ${currentRow(run)}/${run.rows}`;
    const where = {
        running: row,
        done: counted(run.rows, "row"),
        stopped: `stopped at ${row}`,
        failed: `failed at ${row}`,
        lost: `last seen at ${row}`,
    };
    const parts = [where[run.status]];
    if (run.batch > 1) {
        const shown = run.images.length;
        parts.push(shown < run.batch ? `${run.batch} pictures (first ${shown} shown)` : `${run.batch} pictures`);
    }
    parts.push(counted(run.forwards, "forward"));
    if (run.acceptance !== null) parts.push(`${Math.round(run.acceptance * 100)} % accepted`);
    // Plain decoding is not compared with itself, and before a few codes are final there is nothing to compare.
    const telling = run.label !== "plain" && run.fewer !== null && (run.status === "done" || run.fewer >= 1);
    if (telling) parts.push(`${run.fewer.toFixed(1)}× fewer than plain`);
    if (run.tokensPerSecond) parts.push(`${speed(run.tokensPerSecond)} tokens/s`);
    if (run.status === "running") {
        if (run.eta !== null) parts.push(`${seconds(run.eta)} left`);
    } else {
        parts.push(seconds(run.elapsed));
    }
    return parts.join(" · ");
}

/** One line per run, with its label in front where it has one. */
export function statusLines(runs) {
    return runs.map((run) => (run.label ? `${run.label}: ${statusLine(run)}` : statusLine(run)));
}
