// The event stream, over fetch because EventSource cannot send a token. It is closed while the page is
// hidden.

import { authorized, queryOf } from "./api.js";
import { parseJson } from "./json_text.js";

const SILENCE_MILLISECONDS = 40000; // the executor sends a comment every 15 s
const AWAY_MILLISECONDS = 20000;
const SHORT_MILLISECONDS = 5000;
const LONGEST_WAIT_MILLISECONDS = 15000;
const POLL_MILLISECONDS = 5000;

export class Live extends EventTarget {
  #executions = [];
  #controller = null;
  #lastId = null;
  #wait = 1000;
  #openedAt = 0;
  #running = false;

  /** Start, and stop while the page is hidden. */
  start() {
    let away = null;
    document.addEventListener("visibilitychange", () => {
      clearTimeout(away);
      if (document.hidden) away = setTimeout(() => this.#stop(), AWAY_MILLISECONDS);
      else this.#run();
    });
    addEventListener("pagehide", () => this.#stop());
    addEventListener("pageshow", () => this.#run());
    this.#run();
  }

  /** Receive events of exactly these executions. */
  watch(ids) {
    if (String(ids) === String(this.#executions)) return;
    this.#executions = ids;
    this.#controller?.abort("watch");
  }

  /** Call `listener(body)` for each event of a name, until the signal. */
  on(name, listener, signal) {
    this.addEventListener(name, (event) => listener(event.detail), { signal });
  }

  #stop() {
    this.#running = false;
    this.#controller?.abort("stop");
  }

  async #run() {
    if (this.#running) return;
    this.#running = true;
    while (this.#running) {
      const reason = await this.#listen().catch((error) => error);
      if (reason === "watch" || this.#controller.signal.reason === "watch") continue;
      if (!this.#running) break;
      if (reason === "refused") {
        // The token may not read events, which are about all actions. The screens load again, as after an
        // outage.
        this.#emit("state", "refused");
        this.#emit("opening", {});
        await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
        continue;
      }
      // The executor ends each stream after some minutes; the next one resumes by Last-Event-ID.
      if (reason === "ended" && performance.now() - this.#openedAt > SHORT_MILLISECONDS) continue;
      this.#emit("state", "lost");
      await new Promise((resolve) => setTimeout(resolve, this.#wait * (0.5 + Math.random() / 2)));
      this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MILLISECONDS);
    }
    this.#emit("state", "paused");
  }

  async #listen() {
    const controller = (this.#controller = new AbortController());
    const headers = { Accept: "text/event-stream" };
    if (this.#lastId) headers["Last-Event-ID"] = this.#lastId;
    const response = await authorized(`/api/v1/events${queryOf({ execution_id: this.#executions })}`, {
      headers, signal: controller.signal,
    });
    if (response.status === 403) return "refused";
    if (!response.ok) throw new Error(`events: ${response.status}`);
    this.#emit("state", "live");
    this.#wait = 1000;
    this.#openedAt = performance.now();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const silence = setTimeout(() => controller.abort("silence"), SILENCE_MILLISECONDS);
      const { done, value } = await reader.read().finally(() => clearTimeout(silence));
      if (done) return "ended";
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) this.#parse(block);
    }
  }

  #parse(block) {
    let name = null;
    let data = null;
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data = line.slice(6);
      else if (line.startsWith("id: ")) this.#lastId = line.slice(4);
    }
    if (name && data) this.#emit(name, parseJson(data));
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}
