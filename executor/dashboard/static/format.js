// Formats numbers, durations and instants.

const COUNT = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const SPANS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

/** How far the executor's clock is ahead of this machine's, in milliseconds. */
let ahead = 0;

/**
 * The header names a second, and the executor renews it once a second: on a busy machine it may be this old.
 */
const DATE_AGE_MAX = 3000;

/**
 * Set the executor's time from the Date header of the response to a request that was sent at `sentAt`. The
 * header is not of the future, and at most DATE_AGE_MAX older than the request. The clocks are taken as
 * different only as far as this proves it, however long the response took.
 */
export function setClock(date, sentAt) {
  const theirs = Date.parse(date ?? "");
  if (Number.isNaN(theirs)) return;
  ahead = Math.min(Math.max(ahead, theirs - Date.now()), theirs + DATE_AGE_MAX - sentAt);
}

export function now() {
  return Date.now() + ahead;
}

export function count(value) {
  if (value === null || value === undefined) return "–";
  // Of a text all digits are formatted.
  return COUNT.format(typeof value === "object" ? String(value) : value);
}

export function short(value) {
  return value < 10000 ? COUNT.format(value) : SHORT.format(value);
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  return value < 0.1 ? "< 0.1" : value < 10 ? value.toFixed(1) : COUNT.format(Math.round(value));
}

/** A rate with its unit. */
export function perSecond(value) {
  return value === null || value === undefined ? "–" : `${rate(value)} /s`;
}

/** A share as a percentage; a small one does not become 0 %, nor an incomplete one 100 %. */
export function percent(share) {
  if (share > 0 && share < 0.01) return "<1 %";
  return `${Math.min(Math.round(100 * share), share === 1 ? 100 : 99)} %`;
}

/** The two largest units of a number of seconds: 1 h 20 m. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 10) return `${Number.isInteger(seconds) ? seconds : seconds.toFixed(1)} s`;
  let rest = Math.round(seconds);
  const parts = [];
  for (const [unit, size] of SPANS) {
    if (rest >= size) parts.push(`${Math.floor(rest / size)} ${unit}`);
    rest %= size;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

/** Seconds between two instants of the API. */
export function between(from, to) {
  return from && to ? (Date.parse(to) - Date.parse(from)) / 1000 : null;
}

export function since(instant) {
  if (!instant) return "–";
  const seconds = Math.max(0, Math.floor((now() - Date.parse(instant)) / 1000));
  return seconds < 10 ? `${seconds} s` : duration(seconds);
}

/** An instant beside now: 3 m ago, in 2 h. */
export function beside(instant) {
  const seconds = (Date.parse(instant) - now()) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds < 0 ? `${since(instant)} ago` : `in ${duration(Math.max(1, Math.round(seconds)))}`;
}

export function clock(instant) {
  return instant ? CLOCK.format(new Date(instant)) : "–";
}

/**
 * An instant of the address as the local time of an input; the address holds UTC, so that it can be shared.
 */
export function localTime(instant) {
  const at = new Date(instant);
  if (Number.isNaN(at.getTime())) return "";
  return new Date(at.getTime() - 60000 * at.getTimezoneOffset()).toISOString().slice(0, 19);
}

/** Plural by count: 1 execution, 2 executions. */
export function counted(value, word) {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}
