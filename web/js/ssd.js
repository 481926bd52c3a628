/**
 * Registers the live widget of the sampler and of the comparison. Everything that it shows comes from the events
 * `ssd.rows` of the server; see live/ for the parts.
 */
import { api } from "../../../scripts/api.js";
import { app } from "../../../scripts/app.js";
import { isOpen, nodeOf, rootGraph } from "./live/locate.js";
import { Store } from "./live/store.js";
import { MIN_HEIGHT, View } from "./live/view.js";

const NODES = { SSDSampler: { lines: 2 }, SSDCompareDecoders: { lines: 4 } };
const CLASSIC_MARGIN = 20; // ComfyUI's classic canvas takes 10 px above and below a DOM widget

/** @type {WeakMap<object, View>} */
const views = new WeakMap();

function deliver(state) {
    const graph = rootGraph(app);
    if (!graph || !isOpen(graph, state.workflow)) return;
    const node = nodeOf(graph, state.node);
    if (node) views.get(node)?.show(state.runs);
}

const store = new Store(deliver);

/** Nodes come and go (reload, undo, another workflow tab): whatever is there gets the state that is its own. */
let delivery = null;
function deliverAll() {
    delivery ??= setTimeout(() => {
        delivery = null;
        for (const state of store.states.values()) deliver(state);
    });
}

/** The classic canvas lies under the widget: let it zoom. Nodes 2.0 does so by itself. */
function zoomCanvas(event) {
    if (!event.currentTarget.closest(".dom-widget") || !app.canvas?.processMouseWheel) return;
    event.preventDefault();
    app.canvas.processMouseWheel(event);
}

function addWidget(node, options) {
    const view = new View({ ...options, onWheel: zoomCanvas });
    views.set(node, view);
    const widget = node.addDOMWidget("ssd_live", "ssd_live", view.root, {
        serialize: false, // not into the prompt
        hideOnZoom: false,
        getMinHeight: () => MIN_HEIGHT + CLASSIC_MARGIN,
        getValue: () => "",
        setValue: () => {},
    });
    widget.serialize = false; // not into the workflow

    const { onAdded, onRemoved } = node;
    node.onAdded = function (...args) {
        onAdded?.apply(this, args);
        view.connect();
        deliverAll();
    };
    node.onRemoved = function (...args) {
        onRemoved?.apply(this, args);
        view.disconnect();
    };
    if (node.graph) node.onAdded(node.graph);
}

function listen() {
    const now = () => performance.now();
    api.addEventListener("ssd.rows", ({ detail }) => store.take(detail, now()));
    // A run says itself how it ended; these speak for one whose end was lost (a broken connection, a killed server).
    const endings = { execution_success: "lost", execution_interrupted: "stopped", execution_error: "failed" };
    for (const [name, status] of Object.entries(endings)) {
        api.addEventListener(name, ({ detail }) => store.settle((prompt) => prompt === detail?.prompt_id, status, now()));
    }
    // The server runs one prompt at a time.
    api.addEventListener("execution_start", ({ detail }) =>
        store.settle((prompt) => prompt !== detail?.prompt_id, "lost", now()),
    );
}

function addStyle() {
    const link = document.createElement("link");
    link.rel = "stylesheet";
    link.href = new URL("./live.css", import.meta.url).href;
    document.head.append(link);
}

listen(); // at once: after a reload in the middle of a run, events come before the page is set up

app.registerExtension({
    name: "spatial-speculative-decoding.live",
    setup: addStyle,
    nodeCreated(node) {
        const options = NODES[node.comfyClass];
        if (options) addWidget(node, options);
    },
});
