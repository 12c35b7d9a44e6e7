// Says that a running execution has been asked to stop.

import { el } from "./dom.js";
import { instant } from "./parts.js";

/** Return nodes: why, since when, and when it is ended by force. */
export function stoppingWords({ reason, since, kill_at: killAt, cancel_reason: given }) {
  const why = reason === "timeout" ? "its timeout is over"
    : `its cancellation was requested${given ? ` (${given})` : ""}`;
  return el("span", {}, "Stop requested ", instant(since), `: ${why}. `,
    "If it still runs, it is killed ", instant(killAt), ".");
}
