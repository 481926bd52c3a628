import assert from "node:assert/strict";
import { test } from "node:test";
import { Store, isReadable, reduce, settle } from "../../web/js/live/store.js";
import { JPEG, PNG, begin, end, event, image } from "./events.mjs";

const after = (...events) => events.reduce((state, one, k) => reduce(state, one, 1000 + k), undefined);

test("a run from begin to end", () => {
    const state = after(begin(), event(1), event(2, { images: [image(6)] }), end(3));
    assert.equal(state.node, "7");
    assert.equal(state.runs.length, 1);
    const [run] = state.runs;
    assert.equal(run.status, "done");
    assert.equal(run.images[0].accepted, 12);
    assert.deepEqual(run.images[0].picture, { rows: 4, data: JPEG });
    assert.equal(run.eta, null);
    assert.equal(run.fewer, 2);
    assert.equal(run.images[0].mosaic, `${PNG}6`, "the last one that was sent");
    assert.equal(run.updated, 1003);
    assert.deepEqual(run.past.map((then) => then.images[0].accepted), [0, 4, 6]);
});

test("the picture stays until another is sent", () => {
    const picture = { rows: 1, data: JPEG };
    const state = after(begin(), event(1, { images: [image(4, { picture })] }), event(2, { images: [image(7)] }));
    assert.deepEqual(state.runs[0].images[0].picture, picture);
    assert.equal(state.runs[0].images[0].mosaic, `${PNG}7`);
    const next = reduce(state, event(4, { images: [image(9, { picture: { rows: 3, data: `${JPEG}3` } })] }), 0);
    assert.equal(next.runs[0].images[0].picture.rows, 3);
});

test("a state can begin in the middle of a run, and gaps do no harm", () => {
    const state = after(event(17, { images: [image(5)] }), event(40, { images: [image(9)] }));
    assert.equal(state.runs[0].images[0].accepted, 9);
});

test("an event without pictures leaves them as they are; a begin says how many come", () => {
    const started = after(begin({ batch: 6, shown: 4 }));
    assert.deepEqual(started.runs[0].images.map((cells) => [cells.accepted, cells.mosaic]), Array(4).fill([0, null]));
    const stopped = after(begin(), event(1), end(2, { status: "stopped", images: [] }));
    assert.equal(stopped.runs[0].images[0].accepted, 4);
    assert.equal(after(event(1, { images: Array(9).fill(image(4)) })).runs[0].images.length, 4);
});

test("late and repeated events are left out", () => {
    const state = after(begin(), event(5, { images: [image(9)] }));
    assert.equal(reduce(state, event(4), 0), state);
    assert.equal(reduce(state, event(5), 0), state);
    const done = reduce(state, end(6), 0);
    assert.equal(reduce(done, event(5), 0), done, "rows after the end");
    assert.equal(reduce(done, end(6), 0), done, "the same end again");
});

test("an end counts even where its number does not rise", () => {
    const state = after(event(30), end(3));
    assert.equal(state.runs[0].status, "done");
});

test("a new prompt starts afresh, also when its begin was lost", () => {
    const first = after(begin(), event(1), end(2));
    const second = reduce(first, event(1, { prompt_id: "p2", images: [image(2)] }), 0);
    assert.equal(second.prompt, "p2");
    assert.equal(second.runs.length, 1);
    assert.equal(second.runs[0].status, "running");
    assert.equal(second.runs[0].images[0].picture, null, "the old picture is gone");
    assert.deepEqual(second.runs[0].past, []);
});

test("a begin restarts a run of the same prompt", () => {
    const ended = after(begin(), event(1), end(2));
    assert.equal(reduce(ended, begin(), 0).runs[0].status, "running");
    const broken = after(begin(), event(9));
    assert.equal(reduce(reduce(broken, begin(), 0), event(1), 0).runs[0].seq, 1, "the end before it was lost");
});

test("a comparison has two runs under one node", () => {
    const plain = { label: "plain" };
    const ssd = { label: "ssd" };
    const state = after(begin(plain), event(1, plain), end(2, plain), begin(ssd), event(1, ssd));
    assert.deepEqual(state.runs.map((run) => [run.label, run.status]), [["plain", "done"], ["ssd", "running"]]);
    const again = reduce(after(begin(plain), end(1, plain), begin(ssd), end(1, ssd)), begin(plain), 0);
    assert.deepEqual(again.runs.map((run) => run.label), ["plain"], "once more in the same prompt");
});

test("a change of the grid inside a run drops what no longer fits", () => {
    const picture = { rows: 1, data: JPEG };
    const state = after(event(1, { images: [image(4, { picture })] }), event(2, { rows: 2, cols: 6 }));
    assert.equal(state.runs[0].images[0].picture, null);
    assert.equal(state.runs[0].rows, 2);
});

test("numbers are held within the grid", () => {
    const odd = { accepted: 99, drafted: -4, changed: [0, 11, 12, -1, 1.5, "2"], mosaic: 5, picture: { rows: 2 } };
    const [cells, missing] = after(event(1, { images: [odd, null] })).runs[0].images;
    assert.equal(missing.accepted, 0);
    assert.equal(cells.accepted, 12);
    assert.equal(cells.drafted, 12);
    assert.deepEqual(cells.changed, [0, 11]);
    assert.equal(cells.mosaic, null);
    assert.equal(cells.picture, null);
});

test("only embedded pictures are taken", () => {
    for (const url of ["http://example.org/x.png", "data:text/html;base64,AAAA", "data:image/svg+xml;base64,AAAA"]) {
        const [cells] = after(event(1, { images: [image(3, { mosaic: url, picture: { rows: 1, data: url } })] })).runs[0].images;
        assert.equal(cells.mosaic, null, url);
        assert.equal(cells.picture, null, url);
    }
});

test("what is not an event of this version is not readable", () => {
    assert.ok(isReadable(event(1)));
    for (const wrong of [
        null,
        "text",
        {},
        event(1, { version: 2 }),
        event(1, { kind: "other" }),
        event(1, { status: "odd" }),
        event("1"),
        event(1, { rows: 0 }),
        event(1, { cols: 2.5 }),
        event(1, { node: null }),
        event(1, { images: null }),
    ]) {
        assert.equal(isReadable(wrong), false, JSON.stringify(wrong));
    }
});

test("the past is thinned, its first state kept", () => {
    let state = after(begin());
    for (let seq = 1; seq <= 500; seq += 1) state = reduce(state, event(seq, { elapsed: seq }), seq);
    const { past } = state.runs[0];
    assert.ok(past.length <= 64, `${past.length}`);
    assert.equal(past[0].seq, 0);
    assert.ok(past.at(-1).seq > 400);
    assert.ok(past.every((then) => then.past.length === 0 && then.images[0].picture === null));
});

test("settling ends what still runs and nothing else", () => {
    const running = after(begin(), event(1));
    const stopped = settle(running, "stopped", 5);
    assert.equal(stopped.runs[0].status, "stopped");
    assert.equal(stopped.runs[0].eta, null);
    assert.equal(settle(stopped, "failed", 6), stopped);
});

test("the store keeps nodes and workflows apart and tells of changes only", () => {
    const told = [];
    const store = new Store((state) => told.push(`${state.workflow}/${state.node}`));
    assert.ok(store.take(begin({ workflow: "a" }), 0));
    assert.ok(store.take(begin({ workflow: "b" }), 0));
    assert.ok(store.take(begin({ node: "5:12", workflow: "b" }), 0));
    assert.ok(store.take(begin({ node: 7 }), 0));
    assert.equal(store.take(event(0), 0), false, "stale");
    assert.equal(store.take({ version: 1 }, 0), false, "unreadable");
    assert.deepEqual(told, ["a/7", "b/7", "b/5:12", "null/7"]);
    assert.equal(store.states.size, 4);
});

test("the store forgets the oldest nodes", () => {
    const store = new Store(() => {}, { limit: 3 });
    for (const node of ["1", "2", "3"]) store.take(begin({ node }), 0);
    store.take(event(1, { node: "1" }), 0);
    store.take(begin({ node: "4" }), 0);
    assert.deepEqual([...store.states.values()].map((state) => state.node), ["3", "1", "4"]);
});

test("the store settles by prompt", () => {
    const store = new Store(() => {});
    store.take(begin({ node: "1" }), 0);
    store.take(begin({ node: "2", prompt_id: "p2" }), 0);
    store.settle((prompt) => prompt === "p1", "failed", 9);
    assert.deepEqual([...store.states.values()].map((s) => s.runs[0].status).sort(), ["failed", "running"]);
});
