import assert from "node:assert/strict";
import { test } from "node:test";
import { seconds, statusLine, statusLines } from "../../web/js/live/status.js";
import { reduce } from "../../web/js/live/store.js";
import { begin, end, event, image } from "./events.mjs";

const grid = { rows: 24, cols: 24, fewer: 5.79, tokens_per_second: 158.3 };
const cells = (accepted, more = {}) => ({ ...image(accepted), rows_accepted: Math.floor(accepted / 24), ...more });
const running = (more = {}) => {
    const first = reduce(undefined, begin({ ...grid, fewer: null, tokens_per_second: null }), 0);
    const next = event(9, { ...grid, images: [cells(301)], forwards: 52, acceptance: 0.712, elapsed: 1.9, eta: 2.1, ...more });
    return reduce(first, next, 1).runs[0];
};

test("the line of a run under way", () => {
    assert.equal(statusLine(running()), "row 13/24 · 52 forwards · 71 % accepted · 5.8× fewer than plain · 158 tokens/s · 2.1 s left");
});

test("the line of a finished run", () => {
    const last = end(9, { ...grid, images: [cells(576)], forwards: 99, acceptance: 0.71, elapsed: 3.42 });
    const [run] = reduce(undefined, last, 0).runs;
    assert.equal(statusLine(run), "24 rows · 99 forwards · 71 % accepted · 5.8× fewer than plain · 158 tokens/s · 3.4 s");
});

test("stop, error and a lost end say where", () => {
    const line = (status) => statusLine({ ...running(), status });
    assert.match(line("stopped"), /^stopped at row 13\/24 · 52 forwards · .* · 1\.9 s$/);
    assert.match(line("failed"), /^failed at row 13\/24/);
    assert.match(line("lost"), /^last seen at row 13\/24/);
});

test("unknown numbers are left out", () => {
    assert.equal(statusLine(running({ acceptance: null, eta: null, fewer: null, tokens_per_second: null, forwards: 0 })), "row 13/24 · 0 forwards");
    assert.match(statusLine(running({ forwards: 1 })), /· 1 forward ·/);
});

test("slow runs tell tenths of a token", () => {
    assert.match(statusLine(running({ tokens_per_second: 1.26 })), / · 1\.3 tokens\/s · /);
    assert.match(statusLine(running({ tokens_per_second: 9.96 })), / · 10 tokens\/s · /);
});

test("the last row is not passed", () => {
    assert.match(statusLine(running({ images: [cells(576)] })), /^row 24\/24/);
});

test("a batch says how many, and follows the slowest", () => {
    const images = [cells(301), cells(250)];
    assert.match(statusLine(running({ images, batch: 2 })), /^row 11\/24 · 2 pictures · 52/);
    assert.match(statusLine(running({ images, batch: 8 })), /8 pictures \(first 2 shown\)/);
});

test("the ratio waits until it tells something, and plain decoding is not compared with itself", () => {
    assert.doesNotMatch(statusLine(running({ fewer: null })), /fewer/);
    assert.doesNotMatch(statusLine(running({ fewer: 0.4 })), /fewer/);
    assert.match(statusLine({ ...running({ fewer: 0.94 }), status: "done" }), / 0\.9× fewer/, "the truth at the end");
    assert.doesNotMatch(statusLine({ ...running(), label: "plain" }), /fewer/);
});

test("a comparison has a line for each run", () => {
    const lines = statusLines([{ ...running(), label: "plain" }, { ...running(), label: "ssd" }]);
    assert.deepEqual(lines.map((line) => line.split(" · ")[0]), ["plain: row 13/24", "ssd: row 13/24"]);
});

test("seconds", () => {
    const said = [0, 0.04, 2.14, 9.94, 9.96, 42.4, 119.4, 119.6, 185].map(seconds);
    assert.deepEqual(said, ["0.0 s", "0.0 s", "2.1 s", "9.9 s", "10 s", "42 s", "119 s", "2 min 0 s", "3 min 5 s"]);
});
