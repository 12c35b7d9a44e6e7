// Asks the API. Where it wants a token, the page asks for one, once, and keeps it for this tab.

import { askForToken } from "./token.js";
import { setClock } from "./format.js";

const KEY = "turnstile.token";
const TIMEOUT_MILLISECONDS = 35000;
let asking = null;

/** Why something was not done, as the API says it. */
export class Problem extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

/** Ask with the token, if there is one; where it is refused, ask the person for it and ask again. */
export async function authorized(path, options = {}) {
  for (;;) {
    const shown = sessionStorage.getItem(KEY);
    const headers = { Accept: "application/json", ...options.headers };
    if (shown) headers.Authorization = `Bearer ${shown}`;
    const answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
    setClock(answer.headers.get("date"));
    if (answer.status !== 401) return answer;
    await answer.body?.cancel();
    // Another request may have got the token meanwhile.
    if (sessionStorage.getItem(KEY) === shown) await token(shown !== null);
  }
}

async function token(wasRefused) {
  asking ??= askForToken(wasRefused).then((given) => sessionStorage.setItem(KEY, given));
  try {
    await asking;
  } finally {
    asking = null;
  }
}

/** Return the value that a route answers with; throws Problem. `query` leaves out what is empty. */
export async function ask(method, path, { query = {}, body, headers = {}, signal } = {}) {
  return (await exchange(method, path, { query, body, headers, signal })).value;
}

/** Return the value and the ETag that a route answers with; throws Problem. */
export async function exchange(method, path, { query = {}, body, headers = {}, signal } = {}) {
  const signals = [AbortSignal.timeout(TIMEOUT_MILLISECONDS), ...(signal ? [signal] : [])];
  let answer;
  try {
    answer = await authorized(`/api/v1${path}${queryOf(query)}`, {
      method,
      headers: body === undefined ? headers : { "Content-Type": "application/json", ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.any(signals),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "unreachable", "The service does not answer. Is it running?");
  }
  const value = await answer.json().catch((error) => {
    if (signal?.aborted) throw error;
    return null;
  });
  if (answer.ok && value !== null) return { value, etag: answer.headers.get("etag") };
  throw new Problem(answer.status, value?.code, value?.detail ?? `The service broke off its answer (${answer.status}).`);
}

/** Return a query string, or nothing. */
export function queryOf(query) {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") parts.append(name, each);
    }
  }
  const said = parts.toString();
  return said ? `?${said}` : "";
}

/** Whether an error only says that nobody wants the answer any more. */
export function isAbort(error) {
  return error.name === "AbortError";
}
