/**
 * What the server said about each node's run: one state per node, built from `ssd.rows` events.
 *
 * Knows nothing of the page. Every `rows` event is complete in itself but for `picture` (sent only when it changed),
 * so a state can begin in the middle of a run (page reloaded) and survives lost events.
 *
 * @typedef {object} Cells One picture of a run. Cell i (raster order) is final if i < accepted, drafted if i < drafted.
 * @property {number} accepted
 * @property {number} drafted
 * @property {number} rowsAccepted whole rows that are final
 * @property {number[]} changed cells that the last verification replaced
 * @property {string|null} mosaic data URL, one pixel per cell
 * @property {{rows: number, data: string}|null} picture true pixels of the rows 0 .. rows - 1
 *
 * @typedef {object} Run
 * @property {string} label "" for the sampler, "plain" or "ssd" for the comparison
 * @property {number} seq of the last event taken
 * @property {"running"|"done"|"stopped"|"failed"|"lost"} status lost: over, but the end never arrived
 * @property {number} rows
 * @property {number} cols
 * @property {number} batch pictures drawn
 * @property {Cells[]} images the first pictures of the batch
 * @property {number} forwards
 * @property {number|null} fewer how many times fewer forwards than plain decoding, counted on what is final by now
 * @property {number|null} acceptance
 * @property {number|null} tokensPerSecond codes of all pictures
 * @property {number} elapsed seconds
 * @property {number|null} eta seconds
 * @property {number} updated time of the last event, ms
 * @property {Run[]} past earlier states of this run, oldest first, without pictures, for looking back
 *
 * @typedef {object} NodeState
 * @property {string} node execution id, like "7" or "5:12"
 * @property {string|null} workflow id of the workflow the run belongs to, if the server knew it
 * @property {string} prompt
 * @property {Run[]} runs in the order in which they began
 * @property {number} updated time of the last event, ms
 */

const KINDS = ["begin", "rows", "end"];
const STATUSES = ["running", "done", "stopped", "failed"];
const PAST_LIMIT = 64;
const MOST_SHOWN = 4; // as in ssd_core/preview.py

/** A finite number, or the fallback. */
const number = (value, fallback) => (Number.isFinite(value) ? value : fallback);

/** Only embedded pictures: an event must never make the page fetch something. */
const embedded = (url) => (typeof url === "string" && /^data:image\/(png|jpeg|webp);base64,/.test(url) ? url : null);

/** Whether an event has the shape that this code reads. Anything else is left alone. */
export function isReadable(event) {
    return (
        event !== null &&
        typeof event === "object" &&
        event.version === 1 &&
        KINDS.includes(event.kind) &&
        STATUSES.includes(event.status) &&
        event.node !== undefined &&
        event.node !== null &&
        Number.isInteger(event.seq) &&
        Number.isInteger(event.rows) &&
        event.rows > 0 &&
        Number.isInteger(event.cols) &&
        event.cols > 0 &&
        Array.isArray(event.images)
    );
}

const BLANK = { accepted: 0, drafted: 0, rowsAccepted: 0, changed: [], mosaic: null, picture: null };

/** The cells of one picture; `before` lends what the event does not send. */
function cellsOf(image, before, total) {
    if (image === null || typeof image !== "object") return before ?? BLANK;
    const within = (count) => Math.min(Math.max(Math.trunc(number(count, 0)), 0), total);
    const accepted = within(image.accepted);
    const data = embedded(image.picture?.data);
    return {
        accepted,
        drafted: Math.max(within(image.drafted), accepted),
        rowsAccepted: Math.trunc(number(image.rows_accepted, 0)),
        changed: (Array.isArray(image.changed) ? image.changed : []).filter(
            (cell) => Number.isInteger(cell) && cell >= 0 && cell < total,
        ),
        mosaic: embedded(image.mosaic) ?? before?.mosaic ?? null,
        picture: data ? { rows: Math.trunc(number(image.picture.rows, 0)), data } : (before?.picture ?? null),
    };
}

/** The run after an event; `before` is the same run so far, or undefined where this event is the first of it. */
function runOf(event, before, now) {
    const total = event.rows * event.cols;
    // A begin has no pictures yet, only their number.
    const shown = Math.min(Math.max(Math.trunc(number(event.shown, 1)), 1), MOST_SHOWN);
    const count = Math.min(event.images.length, MOST_SHOWN) || before?.images.length || shown;
    const images = Array.from({ length: count }, (_, k) => cellsOf(event.images[k], before?.images[k], total));
    return {
        label: typeof event.label === "string" ? event.label : "",
        seq: event.seq,
        status: event.status,
        rows: event.rows,
        cols: event.cols,
        batch: Math.max(number(event.batch, 1), images.length),
        images,
        forwards: number(event.forwards, 0),
        fewer: number(event.fewer, null),
        acceptance: number(event.acceptance, null),
        tokensPerSecond: number(event.tokens_per_second, null),
        elapsed: number(event.elapsed, 0),
        eta: number(event.eta, null),
        updated: now,
        past: before ? remember(before) : [],
    };
}

/**
 * The run's past with its present added, thinned to every second state when it grows too long. Pictures are left out:
 * final rows never change, so a later picture shows an earlier state too, cut off where that state ended.
 */
function remember(run) {
    const images = run.images.map((image) => ({ ...image, picture: null }));
    const longer = [...run.past, { ...run, images, past: [] }];
    return longer.length > PAST_LIMIT ? longer.filter((_, k) => k % 2 === 0) : longer;
}

/** The order of the wire is kept, but a late or repeated event must not turn the clock back. */
function isStale(event, run) {
    if (event.kind === "begin") return false; // always a fresh start, also where the end before it was lost
    if (event.kind === "end") return run.status !== "running" && event.seq <= run.seq;
    return event.seq <= run.seq;
}

/**
 * The state of a node after an event.
 * @param {NodeState|undefined} state
 * @param {object} event readable (see isReadable)
 * @param {number} now ms
 * @returns {NodeState|undefined} the same object where the event changes nothing
 */
export function reduce(state, event, now) {
    const prompt = String(event.prompt_id ?? "");
    const label = typeof event.label === "string" ? event.label : "";
    const same = state !== undefined && state.prompt === prompt;
    let runs = same ? state.runs : [];
    let before = runs.find((run) => run.label === label);
    if (before && isStale(event, before)) return state;
    if (event.kind === "begin" && before) {
        // The node runs once more in the same prompt (a list of inputs): what came before is over.
        runs = [];
        before = undefined;
    }
    const resized = before && (before.rows !== event.rows || before.cols !== event.cols);
    const run = runOf(event, resized ? undefined : before, now);
    const known = runs.some((other) => other.label === label);
    return {
        node: String(event.node),
        workflow: typeof event.workflow === "string" ? event.workflow : null,
        prompt,
        runs: known ? runs.map((other) => (other.label === label ? run : other)) : [...runs, run],
        updated: now,
    };
}

/** Ends what still runs: the server told of the prompt's end by other means (error, stop, another prompt began). */
export function settle(state, status, now) {
    if (!state.runs.some((run) => run.status === "running")) return state;
    const end = (run) => (run.status === "running" ? { ...run, status, eta: null, updated: now } : run);
    return { ...state, runs: state.runs.map(end), updated: now };
}

/** The states of all nodes, the newest of them kept. */
export class Store {
    /** @param {(state: NodeState) => void} onChange @param {{limit?: number}} options */
    constructor(onChange, { limit = 32 } = {}) {
        this.onChange = onChange;
        this.limit = limit;
        /** @type {Map<string, NodeState>} in the order of the last change */
        this.states = new Map();
    }

    #keep(key, state) {
        this.states.delete(key);
        this.states.set(key, state);
        while (this.states.size > this.limit) this.states.delete(this.states.keys().next().value);
        this.onChange(state);
    }

    /** Takes the detail of an `ssd.rows` event. Returns whether it changed anything. */
    take(event, now) {
        if (!isReadable(event)) return false;
        const key = `${typeof event.workflow === "string" ? event.workflow : ""}/${event.node}`;
        const before = this.states.get(key);
        const after = reduce(before, event, now);
        if (after === before) return false;
        this.#keep(key, after);
        return true;
    }

    /** Gives a status to what still seems to run, in those nodes whose prompt `concerns` picks. */
    settle(concerns, status, now) {
        for (const [key, state] of [...this.states]) {
            if (!concerns(state.prompt)) continue;
            const after = settle(state, status, now);
            if (after !== state) this.#keep(key, after);
        }
    }
}
