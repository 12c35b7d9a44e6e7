// The screen of schedules: when actions run by themselves, and what became of the last occurrences.

import { button, el } from "./dom.js";
import { count, duration } from "./format.js";
import { auditLogOf } from "./audit_log.js";
import { changeSchedulePause, runSchedule } from "./changes.js";
import { list, polled } from "./list.js";
import { afterChange, badge, executionLink, head, instant, none, queueLink } from "./parts.js";
import { table } from "./table.js";

const EVERY = 5000;
const EMPTY = "No schedules. Create one: executor schedules put NAME --action REF --cron '0 6 * * *'";

export function show(main, address, context) {
  const shown = table("Schedules by name", columnsOf(() => schedules.now()),
    { empty: EMPTY, keyOf: (each) => each.name });
  const schedules = list(address, context, { path: "schedules", table: shown, every: EVERY });
  polled(schedules, EVERY, context.signal, schedules.pages.isFirst);
  main.append(
    head("Schedules"), schedules.wrong, ...schedules.nodes,
    auditLogOf({ subject_kind: "schedule" }, context.signal));
  schedules.now();
}

function columnsOf(reload) {
  const buttonsOf = (schedule) => [
    button(schedule.paused ? "Resume" : "Pause",
      () => afterChange(changeSchedulePause(schedule), "Changed", reload),
      { needs: "POST /schedules/{name}/pause",
        "aria-label": `${schedule.paused ? "Resume" : "Pause"} ${schedule.name}` }),
    button("Run now", () => afterChange(runSchedule(schedule), "Submitted", reload),
      { needs: "POST /schedules/{name}/run", "aria-label": `Run ${schedule.name} now` }),
  ];
  return [
    ["Schedule", "row", ({ name }) => el("span", { class: "pair" }, name)],
    ["Action", "", (each) => el("a", { href: queueLink(each) }, each.action_ref)],
    ["Times", "", timesOf],
    ["Next", "", ({ next_at: at }) => (at ? instant(at) : none("never"))],
    ["Last execution", "", ({ last_execution_id: id }) => (id ? executionLink(id) : none("–"))],
    ["Admitted", "number", ({ admitted }) => count(admitted)],
    ["Skipped", "number", ({ skipped }) => count(skipped)],
    ["State", "", stateOf],
    ["Actions", "does", buttonsOf],
  ];
}

function timesOf({ cron, every, timezone }) {
  return cron === null ? `every ${duration(every)}` : [cron, el("span", { class: "key" }, timezone)];
}

function stateOf({ paused, problem }) {
  return [...(paused ? [badge("paused")] : []), problem ?? (paused ? "" : none("open"))];
}
