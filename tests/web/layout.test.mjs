import assert from "node:assert/strict";
import { test } from "node:test";
import { arrange, rasterRects, tile } from "../../web/js/live/layout.js";

const box = (w, h) => ({ x: 0, y: 0, w, h });

test("one picture is as large as it can be, centred, with square cells", () => {
    assert.deepEqual(tile(1, 24, 24, box(300, 200), 4), [{ x: 50, y: 0, w: 200, h: 200 }]);
    assert.deepEqual(tile(1, 10, 20, box(300, 200), 4), [{ x: 0, y: 25, w: 300, h: 150 }]);
    assert.deepEqual(tile(1, 20, 10, box(300, 200), 4), [{ x: 100, y: 0, w: 100, h: 200 }]);
});

test("the arrangement follows the shape of the box", () => {
    const across = (w, h, count) => new Set(tile(count, 24, 24, box(w, h), 4).map((at) => at.x)).size;
    assert.equal(across(800, 200, 4), 4);
    assert.equal(across(400, 400, 4), 2);
    assert.equal(across(200, 800, 4), 1);
    assert.equal(across(400, 400, 2), 2);
    assert.equal(across(400, 400, 3), 2);
});

test("tiles lie inside the box, keep their shape and do not overlap", () => {
    for (const [w, h] of [[300, 200], [217, 331], [90, 40], [640, 640]]) {
        for (let count = 1; count <= 4; count += 1) {
            for (const [rows, cols] of [[24, 24], [48, 27], [16, 40]]) {
                const tiles = tile(count, rows, cols, box(w, h), 4);
                assert.equal(tiles.length, count);
                for (const at of tiles) {
                    assert.ok(at.x >= 0 && at.y >= 0 && at.x + at.w <= w && at.y + at.h <= h);
                    assert.ok(Math.abs(at.w / cols - at.h / rows) <= 1 / Math.min(rows, cols) + 1e-9);
                }
                for (const [i, a] of tiles.entries()) {
                    for (const b of tiles.slice(i + 1)) {
                        assert.ok(a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y);
                    }
                }
            }
        }
    }
});

test("no room, no tiles", () => {
    assert.deepEqual(tile(1, 24, 24, box(0, 100), 4), []);
    assert.deepEqual(tile(4, 24, 24, box(3, 3), 4), []);
    assert.deepEqual(tile(0, 24, 24, box(100, 100), 4), []);
});

test("two runs lie beside or below each other, whichever is larger", () => {
    const run = (label) => ({ label, rows: 24, cols: 24, count: 1 });
    const metrics = { gap: 4, label: 16 };
    const [left, right] = arrange([run("plain"), run("ssd")], { w: 400, h: 220 }, metrics);
    assert.ok(left.tiles[0].x + left.tiles[0].w <= right.tiles[0].x);
    assert.equal(left.tiles[0].y, right.tiles[0].y);
    const [above, below] = arrange([run("plain"), run("ssd")], { w: 200, h: 600 }, metrics);
    assert.ok(above.tiles[0].y + above.tiles[0].h + 16 <= below.tiles[0].y);
    for (const group of [left, right, above, below]) {
        assert.equal(group.labelAt.y + 16, group.tiles[0].y);
        assert.ok(group.labelAt.y >= 0);
    }
});

test("a single unlabelled run has the whole box and no label", () => {
    const [group] = arrange([{ label: "", rows: 24, cols: 24, count: 1 }], { w: 300, h: 200 }, { gap: 4, label: 16 });
    assert.equal(group.labelAt, null);
    assert.equal(group.tiles[0].h, 200);
});

test("raster ranges become rectangles that cover every cell once", () => {
    for (let cols = 1; cols <= 5; cols += 1) {
        for (let from = 0; from <= 20; from += 1) {
            for (let to = from; to <= 20; to += 1) {
                const rects = rasterRects(from, to, cols);
                assert.ok(rects.length <= 3);
                const cells = rects.flatMap((rect) =>
                    Array.from({ length: rect.rows * rect.cols }, (_, k) => {
                        const row = rect.row + Math.floor(k / rect.cols);
                        return row * cols + rect.col + (k % rect.cols);
                    }),
                );
                const expected = Array.from({ length: to - from }, (_, k) => from + k);
                assert.deepEqual(cells, expected, `${from}..${to} of ${cols}`);
            }
        }
    }
});
