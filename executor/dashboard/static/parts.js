// Values as the screens show them: instants, badges, bars, links, errors, and the results of changes.

import { attribute, button, el, say, svg, text } from "./dom.js";
import { beside, clock, count, percent, since } from "./format.js";
import { queryOf } from "./api.js";
import { Problem } from "./problem.js";

const SHOWN = { beside, since };

/** Updates every element that shows an instant beside now. */
setInterval(() => {
  if (document.hidden) return;
  for (const node of document.querySelectorAll("time[data-shown]"))
    text(node, SHOWN[node.dataset.shown](node.dateTime));
}, 1000);

/** An instant beside now, like 3 m ago; the tooltip shows its date and time. */
export function instant(at) {
  return timeOf(at, "beside");
}

/** How long ago an instant was, like 3 m; the tooltip shows its date and time. */
export function elapsed(at) {
  return timeOf(at, "since");
}

function timeOf(at, shown) {
  if (!at) return none("–");
  return el("time", { datetime: at, title: clock(at), "data-shown": shown }, SHOWN[shown](at));
}

/** What stands where there is no value. */
export function none(words) {
  return el("span", { class: "none" }, words);
}

/** The entries of a list of terms: [name, value] pairs; what is false is left out. */
export function termsOf(pairs) {
  return pairs.filter(Boolean).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
}

/** A part of a screen with its heading. */
export function section(title, ...content) {
  return el("section", {}, el("h2", {}, title), content);
}

/** The first line of a screen: its heading, and what stands beside it. */
export function head(title, ...beside) {
  return el("div", { class: "head" }, el("h1", {}, title), beside);
}

/** The link to the list to which the subject of a screen belongs. */
export function trail(href, words) {
  return el("p", { class: "trail" }, el("a", { href }, words));
}

export function badge(status) {
  return el("span", { class: `badge ${status}` }, status.replace("_", " "));
}

/** The status of a listed execution, and whether it has been asked to stop. */
export function statusOf({ status, stopping }) {
  return stopping ? el("div", {}, badge(status), " ", badge("stopping")) : badge(status);
}

/** Why an execution was asked to stop, since when, and when it is ended by force. */
export function stoppingWords({ reason, since: at, kill_at: killAt, cancel_reason: given }) {
  const why = reason === "timeout" ? "its timeout is over"
    : `its cancellation was requested${given ? ` (${given})` : ""}`;
  return el("span", {}, "Stop requested ", instant(at), `: ${why}. `,
    "If it still runs, it is killed ", instant(killAt), ".");
}

/** The slots in use: of what runs, and of what holds one while it waits at a later gate. */
export function slotsInUse({ active_count: active, held_waiting: waiting }) {
  return active + waiting;
}

/** A bar of the slots in use of one queue, which has the limit of its key or of its action. */
export function slotsOf(queue, unit = "") {
  return occupancy(slotsInUse(queue), queue.max_concurrent, unit);
}

/**
 * A bar of what is held, with the numbers as text; `limit` null: there is none. `unit` names what is held.
 */
export function occupancy(held, limit, unit = "") {
  const share = limit === null ? (held ? 100 : 0) : limit ? Math.min(100, (100 * held) / limit) : 0;
  const of = unit && ` ${unit}`;
  return el("div", { class: "occupancy" },
    el("span", { class: "of" },
      limit === null ? `${count(held)}${of}, no limit` : `${count(held)} of ${count(limit)}${of}`),
    bar(share, limit === null ? " open" : share >= 100 ? " full" : ""));
}

/** The same over several queues, each of which has a limit of its own. */
export function occupancyOfAll(held, words) {
  return el("div", { class: "occupancy" }, el("span", { class: "of" }, `${count(held)} ${words}`),
    bar(held ? 100 : 0, " open"));
}

function bar(share, kind) {
  return svg("svg", { class: `bar${kind}`, viewBox: "0 0 100 8", preserveAspectRatio: "none",
    "aria-hidden": "true" },
    svg("rect", { class: "track", width: 100, height: 8 }),
    svg("rect", { class: "fill", width: share, height: 8 }));
}

/** Failures of an action: number and share, the latest as a tooltip; `failures` may be null: not read. */
export function failuresOf({ action_ref: ref, failures }) {
  if (!failures) return none("–");
  if (!failures.failed) return "0";
  const { last } = failures;
  const title = last && `Last: #${last.execution_id} ${last.status}, ${clock(last.at)}. ${errorText(last)}`;
  return el("a", { class: "failures", href: failedLink(ref), title },
    `${count(failures.failed)} (${percent(failures.share)})`);
}

/** Type and message of an error as one text. */
export function errorText({ type, message }) {
  return [type, message].filter(Boolean).join(": ");
}

/** An error in a table; the tooltip shows all of it. */
export function errorOf(error, status = "failed") {
  if (!error) return none("–");
  return el("span", { class: `error-text ${status}`, title: errorText(error) }, errorText(error));
}

/** What some executions wait for, like "39 wait: autocad", with a link to what that is. */
export function waitOf({ count: waiting, ...bound }) {
  return [waiting === 1 ? "1 waits: " : `${count(waiting)} wait: `, boundOf(bound)];
}

function boundOf({ reason, name, closed }) {
  const state = closed && ` (${closed.replaceAll("_", " ")})`;
  switch (reason) {
    case "limit": return "the limit";
    case "total": return ["the total", state];
    case "resource": return [resourceLink(name), state];
    case "rate": return ["rate of ", name.startsWith("resource ") ? gateLink(name) : "the action"];
    case "pool": return ["workers of ", poolLink(name), state];
    case "no_worker": return ["no worker in ", poolLink(name)];
    default: return reason;
  }
}

/** The name of a gate, with a link to the resource or pool that it is. */
export function gateLink(gate) {
  const [, before, kind, name] = /^(rate of |)(resource|pool) (.+)$/.exec(gate) ?? [];
  return name ? [before, `${kind} `, kind === "pool" ? poolLink(name) : resourceLink(name)] : gate;
}

/** The executions of an action that failed. */
export function failedLink(ref) {
  return `#/executions${queryOf({ action_ref: ref, status: "failed,timeout,abandoned" })}`;
}

export function executionLink(id) {
  return el("a", { href: `#/executions/${id}` }, `#${id}`);
}

/** Links to several executions, behind a text. */
export function executionLinks(ids, before) {
  return ids.map((id, index) => [index ? ", " : before, executionLink(id)]);
}

/** The address of a queue. */
export function queueLink({ action_ref: ref, concurrency_key: key }) {
  return `#/queues/${encodeURIComponent(ref)}${queryOf({ key })}`;
}

/** The action of an execution, with its key, as a link to their queue. */
export function actionOf({ action_ref: ref, concurrency_key: key = null }) {
  return [el("a", { href: queueLink({ action_ref: ref, concurrency_key: key }) }, ref), keyOf(key)];
}

/** A concurrency key, if there is one. */
export function keyOf(key) {
  return key === null ? null : el("span", { class: "key", title: "Concurrency key" }, key);
}

/** The states of worker processes of one name, each once, with how many there are. */
export function workerStates(workers) {
  const states = workers.flatMap(({ state, not_ready: trouble, acknowledged_at: known }) =>
    [known ? `${state}_acknowledged` : state, trouble && "not_ready"].filter(Boolean));
  return el("span", { title: workers.map((each) => each.not_ready).filter(Boolean).join("\n") || null },
    [...new Set(states)].map((state) => {
      const many = states.filter((each) => each === state).length;
      return [badge(state), many > 1 ? ` ${count(many)} ` : " "];
    }));
}

/** Whether a worker was lost, and no operator has acknowledged it. */
export function needsAttention({ state, acknowledged_at: known }) {
  return state === "lost" && !known;
}

/** The page of a worker; `name` is its id or its name. */
export function workerLink(name) {
  return `#/workers/${encodeURIComponent(name)}`;
}

/** The first characters of a worker id, with a link; the tooltip shows all of it. */
export function shortId(id, absent = "–") {
  return id ? el("a", { class: "id", href: workerLink(id), title: id }, id.slice(0, 8)) : none(absent);
}

export function poolLink(name) {
  return el("a", { href: `#/pools/${encodeURIComponent(name)}` }, name);
}

export function resourceLink(name) {
  return el("a", { href: `#/resources/${encodeURIComponent(name)}` }, name);
}

/** Buttons of which those are pressed whose value `isChosen`; `choices` are [name, value] pairs. */
export function tabs(label, choices, isChosen, choose) {
  return el("div", { class: "tabs", role: "group", "aria-label": label }, choices.map(([name, value]) =>
    button(name, () => choose(value), { "aria-pressed": String(isChosen(value)) })));
}

/** After a change that was confirmed and made, say so and load what shows it. */
export async function afterChange(change, message, load) {
  if (await change) {
    say(message);
    load();
  }
}

/** The line that shows errors. */
export function errorLine() {
  return el("p", { class: "wrong", role: "alert" });
}

/**
 * The line that shows the result of a change; screen readers hear it. A result is {text, isComplete}, or
 * null if nothing was changed. `changed()` reloads the list after a change, `describe()` updates the buttons.
 */
export function resultLine({ changed, describe = () => {} }) {
  const node = el("p", { class: "result", role: "status" });
  let isRunning = false;
  function update({ text: words, isComplete }) {
    attribute(node, "class", isComplete ? "result" : "result wrong");
    text(node, words);
  }
  async function report(done) {
    if (!done) return;
    update(done);
    await changed();
  }
  return {
    node,
    report,
    isRunning: () => isRunning,
    /** Make a change, one at a time, and report its result, or why it failed. */
    async run(change) {
      if (isRunning) return;
      isRunning = true;
      describe();
      try {
        await report(await change());
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        update({ text: error.message, isComplete: false });
      } finally {
        isRunning = false;
        describe();
      }
    },
  };
}
