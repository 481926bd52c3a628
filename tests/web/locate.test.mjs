import assert from "node:assert/strict";
import { test } from "node:test";
import { isOpen, nodeOf, rootGraph } from "../../web/js/live/locate.js";

/** A graph as ComfyUI has it: nodes found by their very id. */
const graph = (nodes, id = "w") => ({ id, getNodeById: (wanted) => nodes.find((node) => node.id === wanted) ?? null });

const sampler = { id: 12 };
const inner = graph([sampler, { id: 3, subgraph: graph([{ id: 4, deep: true }]) }]);
const root = graph([{ id: 7 }, { id: "name" }, { id: 5, subgraph: inner }, { id: 6, subgraph: inner }]);

test("nodes of the outermost graph, with ids that are numbers or text", () => {
    assert.equal(nodeOf(root, "7").id, 7);
    assert.equal(nodeOf(root, 7).id, 7);
    assert.equal(nodeOf(root, "name").id, "name");
});

test("nodes inside subgraphs; copies of a subgraph share them", () => {
    assert.equal(nodeOf(root, "5:12"), sampler);
    assert.equal(nodeOf(root, "6:12"), sampler);
    assert.equal(nodeOf(root, "5:3:4").deep, true);
});

test("what the open workflow does not have is null", () => {
    for (const id of ["8", "5:99", "7:12", "99:12", "5:3:4:1", ""]) assert.equal(nodeOf(root, id), null, id);
    assert.equal(nodeOf(null, "7"), null);
});

test("old and new frontends name the outermost graph differently", () => {
    assert.equal(rootGraph({ rootGraph: root, graph: inner }), root);
    assert.equal(rootGraph({ graph: root }), root);
    assert.equal(rootGraph({}), null);
});

test("a run belongs to the open workflow unless both know better", () => {
    assert.equal(isOpen(root, "w"), true);
    assert.equal(isOpen(root, "other"), false);
    assert.equal(isOpen(root, null), true);
    assert.equal(isOpen({}, "w"), true);
});
