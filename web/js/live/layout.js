/**
 * Where pictures go inside the widget. All lengths are in the unit of the box (the painter uses device pixels).
 *
 * @typedef {{x: number, y: number, w: number, h: number}} Rect
 * @typedef {{label: string, labelAt: Rect|null, tiles: Rect[]}} Group
 */

/**
 * Tiles `count` pictures of cols × rows square cells into a box, as large as they can be, centred.
 * @returns {Rect[]} whole numbers, in reading order
 */
export function tile(count, rows, cols, box, gap) {
    if (count < 1 || box.w < 1 || box.h < 1) return [];
    let best = null;
    for (let across = 1; across <= count; across += 1) {
        const down = Math.ceil(count / across);
        const w = (box.w - gap * (across - 1)) / across;
        const h = (box.h - gap * (down - 1)) / down;
        const cell = Math.min(w / cols, h / rows);
        if (cell > 0 && (best === null || cell >= best.cell)) best = { across, down, cell };
    }
    if (best === null) return [];
    const w = Math.max(Math.floor(best.cell * cols), 1);
    const h = Math.max(Math.floor(best.cell * rows), 1);
    const left = box.x + Math.floor((box.w - (w * best.across + gap * (best.across - 1))) / 2);
    const top = box.y + Math.floor((box.h - (h * best.down + gap * (best.down - 1))) / 2);
    return Array.from({ length: count }, (_, k) => ({
        x: left + (k % best.across) * (w + gap),
        y: top + Math.floor(k / best.across) * (h + gap),
        w,
        h,
    }));
}

/** Splits a box into `count` parts beside each other or below each other. */
function split(box, count, gap, beside) {
    const length = beside ? box.w : box.h;
    const part = (length - gap * (count - 1)) / count;
    return Array.from({ length: count }, (_, k) => {
        const at = Math.floor(k * (part + gap));
        return beside
            ? { x: box.x + at, y: box.y, w: Math.floor(part), h: box.h }
            : { x: box.x, y: box.y + at, w: box.w, h: Math.floor(part) };
    });
}

/**
 * Lays out the runs of a node: one group of tiles each, with a strip for its label above.
 * Two runs lie beside or below each other, whichever leaves the pictures larger.
 * @param {{label: string, rows: number, cols: number, count: number}[]} runs
 * @param {{w: number, h: number}} size of the whole
 * @param {{gap: number, label: number}} metrics gap between pictures, height of a label strip
 * @returns {Group[]}
 */
export function arrange(runs, size, metrics) {
    const whole = { x: 0, y: 0, w: size.w, h: size.h };
    const place = (beside) =>
        split(whole, runs.length, metrics.gap * 2, beside).map((box, k) => {
            const run = runs[k];
            const strip = run.label ? metrics.label : 0;
            const body = { x: box.x, y: box.y + strip, w: box.w, h: box.h - strip };
            const tiles = tile(run.count, run.rows, run.cols, body, metrics.gap);
            const first = tiles[0];
            const labelAt = strip && first ? { x: first.x, y: first.y - strip, w: box.w, h: strip } : null;
            return { label: run.label, labelAt, tiles };
        });
    if (runs.length < 2) return place(true);
    const area = (groups) => groups.reduce((sum, group) => sum + (group.tiles[0]?.w ?? 0), 0);
    const [beside, below] = [place(true), place(false)];
    return area(beside) >= area(below) ? beside : below;
}

/**
 * The cells from..to (raster order, to excluded) as rectangles of whole cells: the rest of a row, whole rows, the
 * start of a row.
 * @returns {{row: number, col: number, rows: number, cols: number}[]}
 */
export function rasterRects(from, to, cols) {
    const rects = [];
    let at = from;
    if (at < to && at % cols !== 0) {
        const end = Math.min(to, at + cols - (at % cols));
        rects.push({ row: Math.floor(at / cols), col: at % cols, rows: 1, cols: end - at });
        at = end;
    }
    const whole = Math.floor((to - at) / cols);
    if (whole > 0) {
        rects.push({ row: at / cols, col: 0, rows: whole, cols });
        at += whole * cols;
    }
    if (at < to) rects.push({ row: Math.floor(at / cols), col: 0, rows: 1, cols: to - at });
    return rects;
}
