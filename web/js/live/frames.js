/**
 * Turns runs (data URLs) into what the painter takes (decoded images). Only the newest state waits: while one is being
 * decoded, those that come in between are dropped.
 */

/** Decodes an embedded picture. */
export async function decode(url) {
    const image = new Image();
    image.src = url;
    await image.decode();
    return image;
}

export class Frames {
    /**
     * @param {(shown: import("./painter.js").Shown[]) => void} onReady
     * @param {(url: string) => Promise<CanvasImageSource>} load
     */
    constructor(onReady, load = decode) {
        this.onReady = onReady;
        this.load = load;
        this.waiting = null;
        this.busy = false;
        /** @type {Map<string, Promise<CanvasImageSource|null>>} the images of the state shown last */
        this.cache = new Map();
    }

    /** Asks for runs to be decoded and shown. */
    request(runs) {
        this.waiting = runs;
        if (!this.busy) this.#work();
    }

    async #work() {
        this.busy = true;
        while (this.waiting) {
            const runs = this.waiting;
            this.waiting = null;
            const used = new Map();
            const shown = await Promise.all(runs.map((run) => this.#shown(run, used)));
            this.cache = used;
            this.onReady(shown);
        }
        this.busy = false;
    }

    /** The image of a data URL, decoded once as long as it stays in use; null where it is broken. */
    #image(url, used) {
        const image = used.get(url) ?? this.cache.get(url) ?? this.load(url).catch(() => null);
        used.set(url, image);
        return image;
    }

    async #shown(run, used) {
        const tiles = await Promise.all(
            run.images.map(async (cells) => {
                const mosaic = cells.mosaic ? await this.#image(cells.mosaic, used) : null;
                const image = cells.picture ? await this.#image(cells.picture.data, used) : null;
                const picture = image ? { rows: cells.picture.rows, image } : null;
                return { accepted: cells.accepted, drafted: cells.drafted, changed: cells.changed, mosaic, picture };
            }),
        );
        const { label, status, rows, cols, updated } = run;
        return { label, status, rows, cols, updated, tiles };
    }
}
