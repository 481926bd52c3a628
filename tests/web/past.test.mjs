import assert from "node:assert/strict";
import { test } from "node:test";
import { runsAt } from "../../web/js/live/past.js";
import { reduce } from "../../web/js/live/store.js";
import { JPEG, begin, end, event, image } from "./events.mjs";

const state = [begin(), event(1), event(2, { images: [image(8)] }), end(3)].reduce((all, one) => reduce(all, one, 0), undefined);
const accepted = (position) => runsAt(state.runs, position)[0].images[0].accepted;

test("positions go from the first state to the last", () => {
    assert.deepEqual([0, 0.3, 0.6, 0.9, 1].map(accepted), [0, 4, 8, 12, 12]);
    assert.deepEqual([-3, 7].map(accepted), [0, 12]);
});

test("an earlier state shows the picture of the end", () => {
    assert.equal(runsAt(state.runs, 0.3)[0].images[0].picture.data, JPEG);
});

test("without a position, or while a run goes on, the present is shown", () => {
    assert.equal(runsAt(state.runs, null), state.runs);
    const running = reduce(state, begin({ prompt_id: "p2" }), 0).runs;
    assert.equal(runsAt(running, 0), running);
});
