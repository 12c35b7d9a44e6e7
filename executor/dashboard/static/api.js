// The client of the API. If the API requires a token, the page prompts for it and keeps it for this tab.

import { askForToken } from "./token.js";
import { setClock } from "./format.js";
import { parseJson, writeJson } from "./json_text.js";
import { Problem } from "./problem.js";

const KEY = "turnstile.token";
const TIMEOUT_MILLISECONDS = 35000;
/** The address of the dashboard: a proxy may serve it under a path, like https://host/turnstile/. */
const BASE = new URL("..", import.meta.url);
let prompt = null;

/** Return the whole address of a path of the executor, like /api/v1/queues. */
export function addressOf(path) {
  return BASE.href + path.slice(1);
}

/** Send a request with the stored token; on 401, prompt for a token and send it again. */
export async function authorized(path, options = {}) {
  for (;;) {
    const shown = sessionStorage.getItem(KEY);
    const headers = { Accept: "application/json", "Turnstile-Client": "dashboard", ...options.headers };
    if (shown) headers.Authorization = `Bearer ${shown}`;
    const sentAt = Date.now();
    const settings = { ...options, headers, cache: "no-store", credentials: "omit" };
    const response = await fetch(addressOf(path), settings);
    setClock(response.headers.get("date"), sentAt);
    if (response.status !== 401) return response;
    await response.body?.cancel();
    // Another request may have stored a new token meanwhile.
    if (sessionStorage.getItem(KEY) === shown) await token(shown !== null);
  }
}

async function token(wasRefused) {
  prompt ??= askForToken(wasRefused).then((given) => {
    sessionStorage.setItem(KEY, given);
    dispatchEvent(new Event("token"));
  });
  try {
    await prompt;
  } finally {
    prompt = null;
  }
}

/** Forget the token, and reload the page. */
export function signOut() {
  sessionStorage.removeItem(KEY);
  location.reload();
}

/**
 * Return the body of a response; throws Problem. Empty values of `query` are left out. `text` is a body that
 * is JSON already, and is sent as it is.
 */
export async function ask(method, path, { query = {}, body, text, headers = {}, signal } = {}) {
  return (await exchange(method, path, { query, body, text, headers, signal })).value;
}

/** Return the body and the ETag of a response; throws Problem. */
export async function exchange(method, path, { query = {}, body, text, headers = {}, signal } = {}) {
  const content = text ?? (body === undefined ? undefined : writeJson(body));
  const signals = [AbortSignal.timeout(TIMEOUT_MILLISECONDS), ...(signal ? [signal] : [])];
  let response;
  try {
    response = await authorized(`/api/v1${path}${queryOf(query)}`, {
      method,
      headers: content === undefined ? headers : { "Content-Type": "application/json", ...headers },
      body: content,
      signal: AbortSignal.any(signals),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "unreachable", "The executor does not respond. Check that it is running.");
  }
  const value = await response.text().then(parseJson).catch((error) => {
    if (signal?.aborted) throw error;
    return null;
  });
  if (response.ok && value !== null) return { value, etag: response.headers.get("etag") };
  throw new Problem(response.status, value?.code,
    value?.detail ?? `Invalid response from the executor (status ${response.status}).`);
}

/** Return a query string, or nothing. */
export function queryOf(query) {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") parts.append(name, each);
    }
  }
  const encoded = parts.toString();
  return encoded ? `?${encoded}` : "";
}
