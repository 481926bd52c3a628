/** Events of the server as the tests need them. */

export const PNG = "data:image/png;base64,AAAA";
export const JPEG = "data:image/jpeg;base64,BBBB";

/** An `ssd.rows` event of a run of 4 × 3 cells. */
export function event(seq, more = {}) {
    return {
        version: 1,
        prompt_id: "p1",
        node: "7",
        seq,
        kind: "rows",
        status: "running",
        label: "",
        rows: 4,
        cols: 3,
        batch: 1,
        shown: 1,
        images: [image(4)],
        forwards: 5,
        plain_forwards: 12,
        fewer: 2,
        acceptance: 0.5,
        elapsed: 1,
        eta: 2,
        tokens_per_second: 4,
        ...more,
    };
}

export function image(accepted, more = {}) {
    return {
        accepted,
        rows_accepted: Math.floor(accepted / 3),
        drafted: Math.min(accepted + 3, 12),
        changed: [],
        mosaic: `${PNG}${accepted}`,
        picture: null,
        ...more,
    };
}

export const begin = (more = {}) =>
    event(0, { kind: "begin", images: [], forwards: 0, fewer: null, acceptance: null, eta: null, ...more });

export const end = (seq, more = {}) =>
    event(seq, {
        kind: "end",
        status: "done",
        images: [image(12, { mosaic: null, picture: { rows: 4, data: JPEG } })],
        forwards: 6,
        eta: null,
        ...more,
    });
