import assert from "node:assert/strict";
import { test } from "node:test";
import { Frames } from "../../web/js/live/frames.js";
import { reduce } from "../../web/js/live/store.js";
import { JPEG, PNG, end, event, image } from "./events.mjs";

const runs = (...args) => reduce(undefined, event(...args), 0).runs;
const settled = () => new Promise((resolve) => setTimeout(resolve, 5));

test("images are decoded and put in place", async () => {
    const seen = [];
    const frames = new Frames((shown) => seen.push(shown), async (url) => ({ url }));
    frames.request(reduce(undefined, end(3, { images: [image(12, { picture: { rows: 4, data: JPEG } })] }), 7).runs);
    await settled();
    assert.equal(seen.length, 1);
    const [run] = seen[0];
    assert.deepEqual(
        { ...run, tiles: undefined },
        { label: "", status: "done", rows: 4, cols: 3, updated: 7, tiles: undefined },
    );
    assert.deepEqual(run.tiles, [
        { accepted: 12, drafted: 12, changed: [], mosaic: { url: `${PNG}12` }, picture: { rows: 4, image: { url: JPEG } } },
    ]);
});

test("while one state is decoded only the newest waits", async () => {
    const seen = [];
    const pending = [];
    const frames = new Frames(
        (shown) => seen.push(shown[0].tiles[0].accepted),
        () => new Promise((resolve) => pending.push(resolve)),
    );
    for (const accepted of [1, 2, 3, 4]) frames.request(runs(accepted, { images: [image(accepted)] }));
    await settled();
    assert.equal(pending.length, 1, "one at a time");
    pending.shift()({});
    await settled();
    pending.shift()({});
    await settled();
    assert.deepEqual(seen, [1, 4]);
    assert.equal(frames.busy, false);
});

test("what is shown already is not decoded again, what is no longer used is forgotten", async () => {
    const loads = [];
    const frames = new Frames(
        () => {},
        async (url) => loads.push(url),
    );
    const picture = { rows: 1, data: JPEG };
    for (const accepted of [3, 4, 5]) {
        frames.request(runs(accepted, { images: [image(accepted, { picture })] }));
        await settled();
    }
    assert.deepEqual(loads, [`${PNG}3`, JPEG, `${PNG}4`, `${PNG}5`]);
    assert.equal(frames.cache.size, 2);
});

test("a broken image leaves its place empty and the rest goes on", async () => {
    const seen = [];
    const frames = new Frames(
        (shown) => seen.push(shown),
        async (url) => {
            if (url === JPEG) throw new Error("broken");
            return { url };
        },
    );
    frames.request(runs(1, { images: [image(12, { picture: { rows: 4, data: JPEG } })] }));
    await settled();
    assert.equal(seen[0][0].tiles[0].picture, null);
    assert.ok(seen[0][0].tiles[0].mosaic);
});
