/** The widget's element: a canvas with the pictures and a line of text below. One for each node. */
import { Frames } from "./frames.js";
import { paint } from "./painter.js";
import { runsAt } from "./past.js";
import { statusLines } from "./status.js";

export const MIN_HEIGHT = 260; // CSS pixels, as in live.css
const IDLE = "The picture appears here row by row.";
const MAX_SIDE = 4096; // device pixels of the canvas

export class View {
    /** @param {{onWheel?: (event: WheelEvent) => void, lines?: number}} options lines of text to keep room for */
    constructor(options = {}) {
        this.root = document.createElement("div");
        // `widget-expands` lets the row grow with the node in Nodes 2.0.
        this.root.className = "ssd-live widget-expands";
        this.stage = this.root.appendChild(document.createElement("div"));
        this.stage.className = "ssd-live-stage";
        this.canvas = this.stage.appendChild(document.createElement("canvas"));
        this.canvas.setAttribute("role", "img");
        this.text = this.root.appendChild(document.createElement("div"));
        this.text.className = "ssd-live-text";
        this.text.style.setProperty("--ssd-lines", options.lines ?? 2);
        this.frames = new Frames((shown) => {
            this.shown = shown;
            this.invalidate();
        });
        this.runs = [];
        this.shown = [];
        this.position = null; // of the pointer while it looks back, 0 .. 1
        this.request = null;
        this.observer = null;
        this.paints = 0;
        this.stage.addEventListener("pointermove", (event) => this.#lookBack(event));
        this.stage.addEventListener("pointerleave", () => this.#lookBack(null));
        this.root.addEventListener("wheel", (event) => options.onWheel?.(event), { passive: false });
        this.#write();
    }

    /** The node is in a graph: watch the size. */
    connect() {
        if (this.observer) return;
        this.observer = new ResizeObserver(() => this.invalidate());
        this.observer.observe(this.stage);
        this.invalidate();
    }

    /** The node is gone: nothing of the view stays behind. It can be connected again. */
    disconnect() {
        this.observer?.disconnect();
        this.observer = null;
        if (this.request !== null) cancelAnimationFrame(this.request);
        this.request = null;
    }

    /** @param {import("./store.js").Run[]} runs */
    show(runs) {
        this.runs = runs;
        this.frames.request(runsAt(this.runs, this.position));
    }

    #lookBack(event) {
        const box = event ? this.stage.getBoundingClientRect() : null;
        const position = box && box.width > 0 ? (event.clientX - box.left) / box.width : null;
        const before = this.position;
        this.position = position;
        const over = this.runs.length > 0 && this.runs.every((run) => run.status !== "running");
        if (over && position !== before) this.frames.request(runsAt(this.runs, position));
        else this.invalidate(); // the zoom may have changed since the last painting
    }

    /** Asks for a painting at the page's next frame; any number of calls before that are one. */
    invalidate() {
        if (this.request !== null || !this.observer) return;
        this.request = requestAnimationFrame(() => {
            this.request = null;
            if (this.#paint()) this.invalidate();
        });
    }

    #write() {
        const lines = this.runs.length ? statusLines(runsAt(this.runs, this.position)) : [IDLE];
        const text = lines.join("\n");
        if (this.text.textContent === text) return;
        this.text.textContent = text;
        this.canvas.setAttribute("aria-label", text);
    }

    /** Fits the canvas to the device's pixels, with the zoom of the graph counted in. Returns pixels per CSS pixel. */
    #fit() {
        const width = this.stage.clientWidth;
        const height = this.stage.clientHeight;
        if (width < 1 || height < 1) return 0; // collapsed, or in another workflow
        const zoom = this.stage.getBoundingClientRect().width / width;
        // Steps: a zoom in motion must not make a new canvas at every frame. Never below 1, to stay sharp when it ends.
        const scale = window.devicePixelRatio * Math.max(Math.ceil(zoom * 2) / 2, 1);
        const unit = Math.min(scale, MAX_SIDE / Math.max(width, height));
        const [w, h] = [Math.round(width * unit), Math.round(height * unit)];
        if (this.canvas.width !== w || this.canvas.height !== h) {
            this.canvas.width = w;
            this.canvas.height = h;
        }
        return unit;
    }

    #paint() {
        this.#write();
        const unit = this.#fit();
        if (unit === 0) return false;
        const style = getComputedStyle(this.root);
        const theme = {
            empty: style.getPropertyValue("--ssd-empty").trim(),
            mark: style.getPropertyValue("--ssd-mark").trim(),
            edge: style.getPropertyValue("--ssd-edge").trim(),
            text: style.color,
            font: style.fontFamily,
        };
        const size = { w: this.canvas.width, h: this.canvas.height };
        this.paints += 1;
        return paint(this.canvas.getContext("2d"), this.shown, size, theme, unit, performance.now());
    }
}
