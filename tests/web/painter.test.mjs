import assert from "node:assert/strict";
import { test } from "node:test";
import { FADE_MS, paint } from "../../web/js/live/painter.js";

const theme = { empty: "dark", mark: "mark", edge: "edge", text: "text", font: "sans" };

/** A 2D context that writes down what is drawn, with the state that decides how it looks. */
function recorder() {
    const calls = [];
    const note = (name) =>
        function (...args) {
            calls.push({ name, args, fill: this.fillStyle, alpha: this.globalAlpha, smooth: this.imageSmoothingEnabled });
        };
    const names = ["clearRect", "fillRect", "strokeRect", "drawImage", "fillText"];
    return { calls, globalAlpha: 1, ...Object.fromEntries(names.map((name) => [name, note(name)])) };
}

const mosaic = { width: 4, height: 4 };
const cells = (more = {}) => ({ accepted: 6, drafted: 10, changed: [], mosaic, picture: null, ...more });
const run = (tiles, more = {}) => ({ label: "", status: "running", rows: 4, cols: 4, updated: 0, tiles, ...more });

function painted(runs, { now = 10_000, size = { w: 40, h: 40 } } = {}) {
    const ctx = recorder();
    const fading = paint(ctx, runs, size, theme, 1, now);
    assert.equal(ctx.globalAlpha, 1, "left as it was found");
    return { calls: ctx.calls, fading, of: (name) => ctx.calls.filter((call) => call.name === name) };
}

test("final cells in full, drafted cells dimmed, the rest dark", () => {
    const { of, calls } = painted([run([cells()])]);
    const ground = calls.find((call) => call.name === "fillRect");
    assert.deepEqual([ground.fill, ...ground.args], ["dark", 0, 0, 40, 40]);
    const draws = of("drawImage").map(({ args, alpha, smooth }) => ({ alpha, smooth, source: args.slice(1, 5), at: args.slice(5) }));
    const bright = draws.filter((draw) => draw.alpha === 1);
    const dimmed = draws.filter((draw) => draw.alpha < 1);
    assert.deepEqual(bright.map((draw) => draw.source), [[0, 0, 4, 1], [0, 1, 2, 1]]);
    assert.deepEqual(bright.map((draw) => draw.at), [[0, 0, 40, 10], [0, 10, 20, 10]]);
    assert.deepEqual(dimmed.map((draw) => draw.source), [[2, 1, 2, 1], [0, 2, 2, 1]]);
    assert.deepEqual(dimmed.map((draw) => draw.at), [[20, 10, 20, 10], [0, 20, 20, 10]]);
    assert.ok(draws.every((draw) => draw.smooth === false), "cells stay squares");
});

test("true pixels lie over the mosaic, in final rows only", () => {
    const image = { width: 32, height: 24 };
    const { of } = painted([run([cells({ accepted: 9, picture: { rows: 3, image } })])]);
    const last = of("drawImage").at(-1);
    assert.equal(last.args[0], image);
    assert.deepEqual(last.args.slice(1), [0, 0, 32, 16, 0, 0, 40, 20], "two of its three rows are final");
    assert.equal(last.smooth, true);
    const early = painted([run([cells({ accepted: 3, picture: { rows: 3, image } })])]);
    assert.ok(early.of("drawImage").every((call) => call.args[0] !== image), "no row is final");
});

test("a step shows where the final part ends", () => {
    const { of } = painted([run([cells()])]);
    assert.equal(of("fillRect").filter((call) => call.fill === "edge").length, 3);
    const whole = painted([run([cells({ accepted: 8 })])]);
    assert.equal(whole.of("fillRect").filter((call) => call.fill === "edge").length, 1, "a straight line");
    for (const accepted of [0, 16]) {
        const none = painted([run([cells({ accepted, drafted: 16 })])]);
        assert.equal(none.of("fillRect").filter((call) => call.fill === "edge").length, 0);
    }
});

test("corrected cells are marked and fade", () => {
    const runs = [run([cells({ changed: [6, 7] })], { updated: 1000 })];
    const alphas = [0, FADE_MS / 2].map((age) => {
        const { of, fading } = painted(runs, { now: 1000 + age });
        assert.equal(fading, true);
        const marks = of("strokeRect");
        assert.deepEqual(marks.map((mark) => mark.args), [[20.5, 10.5, 9, 9], [30.5, 10.5, 9, 9]]);
        return marks[0].alpha;
    });
    assert.deepEqual(alphas, [1, 0.5]);
    const later = painted(runs, { now: 1000 + FADE_MS });
    assert.equal(later.fading, false);
    assert.equal(later.of("strokeRect").length, 0);
    assert.equal(painted([run([cells()], { updated: 1000 })], { now: 1000 }).fading, false, "nothing to fade");
});

test("a finished picture bears no marks", () => {
    const done = run([cells({ accepted: 16, drafted: 16, changed: [3] })], { status: "done", updated: 1000 });
    const { of, fading } = painted([done], { now: 1000 });
    assert.equal(fading, false);
    assert.equal(of("strokeRect").length, 0);
    assert.deepEqual(of("fillRect").map((call) => call.fill), ["dark"]);
});

test("missing images leave the ground dark", () => {
    const { of } = painted([run([cells({ mosaic: null })])]);
    assert.equal(of("drawImage").length, 0);
});

test("neighbouring cells meet without a gap at any size", () => {
    const { of } = painted([run([cells({ accepted: 0, drafted: 0, changed: [...Array(16).keys()] })], { updated: 0 })], {
        now: 0,
        size: { w: 37, h: 37 },
    });
    const marks = of("fillRect").filter((call) => call.fill === "mark").map((call) => call.args);
    assert.equal(marks.reduce((sum, [, , w, h]) => sum + w * h, 0), 37 * 37);
});

test("labels stand above a comparison; the second place is kept from the start", () => {
    const size = { w: 100, h: 66 };
    const first = painted([run([cells()], { label: "plain" })], { size });
    const both = painted([run([cells()], { label: "plain" }), run([cells()], { label: "ssd" })], { size });
    assert.deepEqual(first.of("fillText").map((call) => call.args[0]), ["plain"]);
    assert.deepEqual(both.of("fillText").map((call) => call.args[0]), ["plain", "ssd"]);
    const ground = (result) => result.of("fillRect").find((call) => call.fill === "dark").args;
    assert.deepEqual(ground(first), ground(both));
});

test("nothing to show clears the canvas", () => {
    const { calls } = painted([]);
    assert.deepEqual(calls.map((call) => call.name), ["clearRect"]);
});
