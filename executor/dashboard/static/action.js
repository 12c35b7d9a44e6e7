// What the screen of an action shows beyond its queues: failures by error, its gates with their use, its
// history and definition, and the workers that serve it.

import { el, render } from "./dom.js";
import { count, counted, duration } from "./format.js";
import { ask } from "./api.js";
import { writeJson } from "./json_text.js";
import { actionPath } from "./changes.js";
import { loader } from "./list.js";
import { badge, errorLine, errorText, executionLink, failedLink, gateLink, instant, none, occupancy, poolLink,
  section, termsOf, workerLink } from "./parts.js";
import { pastCharts } from "./past.js";
import { table } from "./table.js";

const WORKERS = 50;

/** Fields that have words of their own here, or stand elsewhere; the others are shown by their names. */
const SHOWN = new Set(["id", "ref", "runner", "entrypoint", "max_concurrent", "concurrency_key",
  "submitter_keys", "max_concurrent_total", "order", "timeout", "ttl", "on_worker_lost", "max_reclaims",
  "pool", "paused", "created_at", "updated_at"]);

const FAILURES = [
  ["Error", "row", (each) => el("span", { class: "error-text" }, el("strong", {}, `${count(each.count)} × `),
    errorText(each) || "no error text")],
  ["Status", "", (each) => badge(each.status)],
  ["Last", "", (each) => el("div", {}, executionLink(each.last_id), " ", instant(each.last_at))],
];
const GATES = [
  ["Gate", "row", (each) => gateLink(each.gate)],
  ["Each needs", "number", (each) => count(each.units)],
  ["In use", "", (each) => occupancy(each.held, each.capacity)],
];
const SERVING = [
  ["Worker", "row", (each) => el("a", { href: workerLink(each.id) }, each.name)],
  ["State", "", (each) => el("div", {}, badge(each.state), each.not_ready && [" ", badge("not_ready")])],
  ["Running, all actions", "", (each) => occupancy(each.running, each.concurrency)],
  ["Last heartbeat", "", (each) => instant(each.renewed_at)],
];

/** Return the parts that stand before and behind the lists, `update(stats)` and `load()`. */
export function actionParts(ref, signal) {
  const wrong = errorLine();
  const examined = el("p", { class: "said" });
  const failures = table("Failures by error", FAILURES,
    { keyOf: ({ status, type, message }) => JSON.stringify([status, type, message]) });
  const failed = el("section", { hidden: true }, el("h2", {}, "Recent failures"), examined, failures.node);
  const gates = table("Gates and what is in use", GATES, { keyOf: (each) => each.gate });
  const past = pastCharts();
  const facts = el("dl", { class: "metrics" });
  const schemas = el("div");
  const workers = table("Workers that serve the action", SERVING, { empty: "No live worker serves it." });
  const reading = loader(async (mine) =>
    past.draw(await ask("GET", "/history", { query: { action_ref: ref, window: "1h" }, signal: mine })),
  { every: 30000, signal, wrong });
  const loading = loader(async (mine) => {
    const [action, grouped, serving] = await Promise.all([
      ask("GET", actionPath(ref), { signal: mine }),
      ask("GET", `${actionPath(ref)}/failures`, { signal: mine }),
      ask("GET", "/workers", { query: { action_ref: ref, limit: WORKERS }, signal: mine })
        .catch((error) => (error.status === 403 ? null : Promise.reject(error))),
    ]);
    failed.hidden = grouped.failed === 0;
    render(examined,
      `${count(grouped.failed)} of the ${counted(grouped.examined, "newest execution")} failed. `,
      el("a", { href: failedLink(ref) }, "Show them"));
    failures.update(grouped.items);
    render(facts, termsOf(factsOf(action)));
    render(schemas, schemaOf(action));
    workersPart.hidden = serving === null;
    workers.update(serving?.items ?? []);
  }, { every: 5000, signal, wrong });
  const workersPart = section("Workers", workers.node);
  return {
    first: [wrong, failed],
    last: [section("Gates", gates.node), section("Last hour", past.node),
      section("Definition", el("div", { class: "panel" }, facts, schemas)), workersPart],
    update: ({ gates: inUse }) => gates.update(inUse),
    load() {
      loading.soon();
      reading.soon();
    },
  };
}

function factsOf(it) {
  const time = (seconds) => (seconds === null ? none("none") : duration(seconds));
  const { max_attempts: attempts, delay, factor, max_delay: most } = it.retry;
  return [
    ["Runner", it.entrypoint === null ? it.runner : `${it.runner}: ${[it.entrypoint].flat().join(" ")}`],
    ["Limit", it.max_concurrent === null ? none("none") : count(it.max_concurrent)],
    it.concurrency_key !== null && ["Key", el("code", {}, it.concurrency_key)],
    it.submitter_keys && ["Keys", "chosen by the submitter"],
    it.max_concurrent_total !== null && ["Total", `${count(it.max_concurrent_total)}, order: ${it.order}`],
    ["Uses", it.uses.length ? it.uses.map(({ resource, units }, index) => [index ? ", " : "",
      gateLink(`resource ${resource}`), units > 1 && ` × ${count(units)}`]) : none("nothing")],
    ["Rate", it.rate ? `${count(it.rate.starts)} per ${duration(it.rate.per)}` : none("none")],
    ["Timeout", time(it.timeout)],
    ["Longest wait", time(it.ttl)],
    ["Retry", attempts === 1 ? none("none")
      : `${counted(attempts, "attempt")}, ${duration(delay)} × ${factor} up to ${duration(most)}`],
    ["Worker lost", `${it.on_worker_lost}, at most ${counted(it.max_reclaims, "reclaim")}`],
    ["Pool", poolLink(it.pool)],
    ["Changed", instant(it.updated_at)],
    ...Object.entries(it).filter(([name, value]) => !SHOWN.has(name) && value !== null
      && typeof value !== "object").map(([name, value]) => [name.replaceAll("_", " "), String(value)]),
  ];
}

function schemaOf({ parameters_schema: own, code_schemas: derived }) {
  const schema = own ?? derived[0]?.parameters_schema;
  if (!schema) return none("No schema of the parameters.");
  return el("details", {}, el("summary", {}, own ? "Schema of the parameters"
    : "Schema of the parameters, from the code"),
  el("pre", { tabindex: 0, "aria-label": "Schema of the parameters" }, writeJson(schema)));
}
