/** Finds the node of the page that an execution id of the server means. */

/** The workflow's outermost graph; older frontends only know `graph`. */
export const rootGraph = (app) => app?.rootGraph ?? app?.graph ?? null;

function nodeById(graph, id) {
    // Ids are numbers in most workflows, but may be text.
    return graph.getNodeById?.(id) ?? graph.getNodeById?.(Number(id)) ?? null;
}

/**
 * The node of an execution id: "7" is node 7, "5:12" is node 12 inside the subgraph that node 5 stands for.
 * All copies of a subgraph share their inner nodes, so "5:12" and "6:12" may be one node.
 * @returns {object|null} null where the open workflow has no such node
 */
export function nodeOf(graph, executionId) {
    const path = String(executionId).split(":");
    let inside = graph;
    for (const id of path.slice(0, -1)) {
        inside = inside ? (nodeById(inside, id)?.subgraph ?? null) : null;
    }
    return inside ? nodeById(inside, path.at(-1)) : null;
}

/** Whether a run belongs to the open workflow. Unknown on either side counts as yes. */
export function isOpen(graph, workflow) {
    return !workflow || !graph?.id || String(graph.id) === workflow;
}
