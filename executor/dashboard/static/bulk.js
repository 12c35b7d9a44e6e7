// Retry and cancel of several executions: the selected ones, or all that match the search.

import { button, el, say, text } from "./dom.js";
import { count, counted } from "./format.js";
import { ask } from "./api.js";
import { confirm, field, show } from "./dialog.js";
import { errorLine } from "./parts.js";
import { block } from "./permissions.js";
import { Problem } from "./problem.js";

const PREVIEW_PAGES = 20; // of 1,000 executions
const PREVIEW_MILLISECONDS = 15000;
const REFUSED_SHOWN = 3;
const NO_CONDITION = "Select executions, or give a condition";
const NO_MATCH = "No execution matches the search.";
const RUNNING = "A change is being prepared.";
const VERBS = {
  retry: {
    name: "Retry", done: "Retried",
    title: (subject) => `Retry ${subject}?`,
    words: "Each of them becomes a new execution with the same parameters, at the end of its queue, oldest "
      + "first.",
  },
  cancel: {
    name: "Cancel", done: "Cancelled, or requested to stop:", dangerous: true,
    title: (subject) => `Cancel ${subject}?`,
    words: "Waiting executions end immediately. A cancel message is sent to the workers of running ones.",
  },
};

/**
 * The column of checkboxes, and the bar with the buttons. `filter()` returns the search of the list that is
 * shown, as the API takes it; `blocked()` why nothing can be changed, or null; `changed` is called after a
 * change.
 */
export function bulkBar({ filter, blocked, changed }) {
  const selected = new Set();
  let shown = [];
  let isRunning = false;
  const wrong = errorLine();
  const result = el("p", { class: "said", role: "status" });
  const all = el("input", { type: "checkbox", id: "select-page" });
  const words = el("span", { class: "scope" });
  const buttons = Object.keys(VERBS)
    .map((verb) => button("", () => run(verb), { needs: `POST /executions/${verb}` }));

  function describe() {
    const some = selected.size > 0;
    const any = some || Object.keys(filter() ?? {}).length > 0;
    all.checked = shown.length > 0 && shown.every((id) => selected.has(id));
    all.indeterminate = some && !all.checked;
    text(words, some ? `${count(selected.size)} selected; the list is not updated meanwhile`
      : any ? "None selected: all that match the search" : NO_CONDITION);
    Object.values(VERBS).forEach(({ name }, index) => {
      text(buttons[index], some ? `${name} ${counted(selected.size, "execution")}…`
        : `${name} all matching…`);
      block(buttons[index], isRunning ? RUNNING
        : blocked() ?? (!any ? `${NO_CONDITION}.` : shown.length ? null : NO_MATCH));
    });
  }
  function choose(id, is) {
    if (is) selected.add(id);
    else selected.delete(id);
    describe();
  }
  async function run(verb) {
    const selection = selected.size ? { ids: [...selected] } : { filter: filter() };
    isRunning = true;
    describe();
    text(wrong, "");
    text(result, "Counting the matching executions…");
    try {
      const planned = await preview(verb, selection);
      text(result, "");
      const done = await change(verb, selection, planned);
      if (done) {
        selected.clear();
        for (const box of document.querySelectorAll("input.pick")) box.checked = false;
        text(result, done);
        say(done);
        changed();
      }
    } catch (error) {
      text(result, "");
      if (!(error instanceof Problem)) throw error;
      text(wrong, error.message);
    } finally {
      isRunning = false;
      describe();
    }
  }

  all.addEventListener("change", () => {
    for (const box of document.querySelectorAll("input.pick")) box.checked = all.checked;
    for (const id of shown) choose(id, all.checked);
  });
  return {
    node: el("div", { class: "bulk" },
      el("div", { class: "bulk-bar", role: "group", "aria-label": "Several executions" },
        el("label", { class: "choice", for: "select-page" }, all, "Select this page"), words, buttons),
      wrong, result),
    column: ["Select", "pick", ({ id }) => el("input", {
      type: "checkbox", class: "pick", "aria-label": `Select execution ${id}`, checked: selected.has(id),
      on: { change: ({ target }) => choose(id, target.checked) },
    })],
    describe,
    isSelecting: () => selected.size > 0,
    /** The page that is shown; executions of other pages are not selected. */
    update(items) {
      shown = items.map((each) => each.id);
      for (const id of [...selected]) if (!shown.includes(id)) selected.delete(id);
      describe();
    },
  };
}

/** What the change would do: a dry run over all its pages, within bounds. */
async function preview(verb, selection) {
  const planned = { matched: 0, byStatus: {}, leftOut: [], isPartial: false, isMore: false };
  const until = performance.now() + PREVIEW_MILLISECONDS;
  let cursor = null;
  for (let page = 0; ; page += 1) {
    const found = await ask("POST", `/executions/${verb}`,
      { body: { ...selection, dry_run: true, ...(cursor ? { cursor } : {}) } });
    planned.matched += found.matched;
    for (const [status, executions] of Object.entries(found.by_status)) {
      planned.byStatus[status] = (planned.byStatus[status] ?? 0) + executions;
    }
    planned.leftOut.push(...found.left_out);
    planned.isPartial ||= found.left_out_is_partial;
    cursor = found.next_cursor;
    if (cursor === null) return planned;
    if (page + 1 >= PREVIEW_PAGES || performance.now() > until) return { ...planned, isMore: true };
  }
}

function listed(counts) {
  return counts.map(([status, executions]) => `${count(executions)} ${status}`).join(", ");
}

function leftOutWords({ leftOut, isPartial }) {
  if (leftOut.length === 0)
    return isPartial ? "Left out: unknown; not all executions were counted." : "Nothing is left out.";
  const parts = leftOut.map(({ status, count: executions, reason }) =>
    `${count(executions)} ${status ?? "unknown"} (${reason})`);
  return `Left out: ${parts.join("; ")}.${isPartial ? " Only the newest executions were counted." : ""}`;
}

/** Show what the change will do, and make it; resolves to a sentence about the result, or null. */
async function change(verb, selection, planned) {
  const { name, words, dangerous, done, title: titleOf } = VERBS[verb];
  const atLeast = planned.isMore ? "at least " : "";
  const subject = `${atLeast}${counted(planned.matched, "execution")}`;
  if (planned.matched === 0) {
    show(`Nothing to ${verb}`, el("p", {}, `No execution can be changed by ${verb}.`),
      el("p", {}, leftOutWords(planned)));
    return null;
  }
  const reason = verb === "cancel" ? el("input", { type: "text", name: "reason", maxlength: 1000 }) : null;
  // Pressing the button again after a lost answer retries nothing twice.
  const key = `dashboard-bulk-${crypto.getRandomValues(new Uint32Array(3)).join("-")}`;
  const headers = verb === "retry" ? { "Idempotency-Key": key } : {};
  const total = { matched: 0, changed: 0, refused: [] };
  let cursor = null;
  const confirmed = await confirm({
    title: titleOf(subject), verb: `${name} ${subject}`,
    dangerous,
    words: [`${name}: ${atLeast}${listed(Object.entries(planned.byStatus))}.`, leftOutWords(planned), words],
    fields: reason ? [field("Reason", reason, "Optional; stored with the executions.")] : [],
    act: async () => {
      do {
        const body = { ...selection, ...(reason?.value ? { reason: reason.value } : {}),
          ...(cursor ? { cursor } : {}) };
        const page = await ask("POST", `/executions/${verb}`, { body, headers });
        total.matched += page.matched;
        total.changed += page.changed;
        total.refused.push(...page.items.filter((item) => item.problem));
        cursor = page.next_cursor;
        say(`${done} ${count(total.changed)}`);
      } while (cursor !== null);
    },
  });
  if (!confirmed) return null;
  const refused = total.refused.slice(0, REFUSED_SHOWN).map((item) => `#${item.id}: ${item.problem.detail}`)
    .join(" ");
  const rejected = refused ? ` Rejected: ${count(total.refused.length)}. ${refused}` : "";
  return `${done} ${count(total.changed)} of ${count(total.matched)}.${rejected}`;
}
