/**
 * Paints runs on a 2D context. Pure: the same runs, size and time give the same picture, so it can be repeated at will
 * (after a resize, a change of renderer, or while marks fade).
 *
 * @typedef {object} Tile what is painted of one picture: its cells with the images decoded
 * @property {number} accepted
 * @property {number} drafted
 * @property {number[]} changed
 * @property {CanvasImageSource|null} mosaic cols × rows pixels
 * @property {{rows: number, image: CanvasImageSource & {width: number, height: number}}|null} picture
 *
 * @typedef {{label: string, status: string, rows: number, cols: number, tiles: Tile[], updated: number}} Shown
 * @typedef {{empty: string, mark: string, edge: string, text: string, font: string}} Theme
 */
import { arrange, rasterRects } from "./layout.js";

export const FADE_MS = 400;
const DRAFT_ALPHA = 0.4; // how strongly a drafted cell shows on the dark ground

/** Borders of cell rows or columns in whole pixels, so that neighbours meet without a seam. */
const border = (index, count, length) => Math.round((index * length) / count);

function cellRect(cells, at, rows, cols) {
    const x = at.x + border(cells.col, cols, at.w);
    const y = at.y + border(cells.row, rows, at.h);
    const right = at.x + border(cells.col + cells.cols, cols, at.w);
    const bottom = at.y + border(cells.row + cells.rows, rows, at.h);
    return { x, y, w: right - x, h: bottom - y };
}

function paintCells(ctx, mosaic, from, to, at, run) {
    for (const cells of rasterRects(from, to, run.cols)) {
        const box = cellRect(cells, at, run.rows, run.cols);
        ctx.drawImage(mosaic, cells.col, cells.row, cells.cols, cells.rows, box.x, box.y, box.w, box.h);
    }
}

function paintPicture(ctx, tile, at, run) {
    const final = Math.floor(tile.accepted / run.cols);
    const rows = Math.min(tile.picture.rows, final, run.rows);
    if (rows < 1) return;
    const { image } = tile.picture;
    ctx.imageSmoothingEnabled = true;
    ctx.imageSmoothingQuality = "high";
    const height = (image.height * rows) / tile.picture.rows;
    ctx.drawImage(image, 0, 0, image.width, height, at.x, at.y, at.w, border(rows, run.rows, at.h));
}

/** The border between what is final and what is not: a step where the row is half done. */
function paintEdge(ctx, tile, at, run, theme, unit) {
    const total = run.rows * run.cols;
    if (tile.accepted <= 0 || tile.accepted >= total) return;
    const row = Math.floor(tile.accepted / run.cols);
    const x = at.x + border(tile.accepted % run.cols, run.cols, at.w);
    const upper = at.y + border(row, run.rows, at.h);
    const lower = at.y + border(row + 1, run.rows, at.h);
    ctx.fillStyle = theme.edge;
    const half = Math.floor(unit / 2);
    if (x > at.x) {
        ctx.fillRect(at.x, lower - half, x - at.x, unit);
        ctx.fillRect(x - half, upper, unit, lower - upper);
    }
    ctx.fillRect(x, upper - half, at.x + at.w - x, unit);
}

function paintMarks(ctx, tile, at, run, strength, theme, unit) {
    ctx.fillStyle = theme.mark;
    ctx.strokeStyle = theme.mark;
    ctx.lineWidth = unit;
    for (const cell of tile.changed) {
        const one = { row: Math.floor(cell / run.cols), col: cell % run.cols, rows: 1, cols: 1 };
        const box = cellRect(one, at, run.rows, run.cols);
        ctx.globalAlpha = strength * 0.3;
        ctx.fillRect(box.x, box.y, box.w, box.h);
        ctx.globalAlpha = strength;
        ctx.strokeRect(box.x + unit / 2, box.y + unit / 2, Math.max(box.w - unit, 1), Math.max(box.h - unit, 1));
    }
    ctx.globalAlpha = 1;
}

function paintTile(ctx, tile, at, run, strength, theme, unit) {
    ctx.fillStyle = theme.empty;
    ctx.fillRect(at.x, at.y, at.w, at.h);
    if (tile.mosaic) {
        ctx.imageSmoothingEnabled = false;
        ctx.globalAlpha = DRAFT_ALPHA;
        paintCells(ctx, tile.mosaic, tile.accepted, tile.drafted, at, run);
        ctx.globalAlpha = 1;
        paintCells(ctx, tile.mosaic, 0, tile.accepted, at, run);
    }
    if (tile.picture) paintPicture(ctx, tile, at, run);
    if (run.status === "done") return;
    paintEdge(ctx, tile, at, run, theme, unit);
    if (strength > 0) paintMarks(ctx, tile, at, run, strength, theme, unit);
}

/**
 * Paints all runs of a node.
 * @param {CanvasRenderingContext2D} ctx untransformed, its canvas in device pixels
 * @param {Shown[]} runs
 * @param {{w: number, h: number}} size device pixels
 * @param {Theme} theme
 * @param {number} unit device pixels of one CSS pixel, at least 1
 * @param {number} now ms
 * @returns {boolean} whether marks are still fading: paint again
 */
export function paint(ctx, runs, size, theme, unit, now) {
    ctx.clearRect(0, 0, size.w, size.h);
    const line = Math.max(Math.round(unit), 1);
    const metrics = { gap: 4 * line, label: Math.round(16 * unit) };
    const wanted = runs.map((run) => ({ ...run, count: run.tiles.length }));
    // A comparison is two runs, one after the other: the second one's place is kept from the start.
    if (wanted.length === 1 && wanted[0].label) wanted.push(wanted[0]);
    const groups = arrange(wanted, size, metrics);
    let fading = false;
    runs.forEach((run, k) => {
        const group = groups[k];
        const age = now - run.updated;
        const strength = run.status === "running" ? Math.max(1 - age / FADE_MS, 0) : 0;
        fading ||= strength > 0 && run.tiles.some((tile) => tile.changed.length > 0);
        if (group.labelAt) {
            ctx.fillStyle = theme.text;
            ctx.font = `${Math.round(11 * unit)}px ${theme.font}`;
            ctx.textBaseline = "middle";
            ctx.fillText(group.label, group.labelAt.x, group.labelAt.y + group.labelAt.h / 2);
        }
        run.tiles.forEach((tile, i) => {
            if (group.tiles[i]) paintTile(ctx, tile, group.tiles[i], run, strength, theme, line);
        });
    });
    return fading;
}
