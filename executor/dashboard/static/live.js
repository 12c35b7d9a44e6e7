// The stream of changes, over fetch: EventSource cannot send a token. Closed while nobody looks at the page.

import { authorized, queryOf } from "./api.js";

const SILENCE_MILLISECONDS = 40000; // the service comments every 15 s
const AWAY_MILLISECONDS = 20000;
const SHORT_MILLISECONDS = 5000;
const LONGEST_WAIT_MILLISECONDS = 15000;

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

  /** Hear of these executions too, and of no others. */
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
      const why = await this.#listen().catch((error) => error);
      if (why === "watch" || this.#controller.signal.reason === "watch") continue;
      if (!this.#running) break;
      // The service ends each stream after some minutes: the next one goes on where it ended.
      if (why === "ended" && performance.now() - this.#openedAt > SHORT_MILLISECONDS) continue;
      this.#tell("state", "lost");
      await new Promise((resolve) => setTimeout(resolve, this.#wait * (0.5 + Math.random() / 2)));
      this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MILLISECONDS);
    }
    this.#tell("state", "paused");
  }

  async #listen() {
    const controller = (this.#controller = new AbortController());
    const headers = { Accept: "text/event-stream" };
    if (this.#lastId) headers["Last-Event-ID"] = this.#lastId;
    const answer = await authorized(`/api/v1/events${queryOf({ execution_id: this.#executions })}`, {
      headers, signal: controller.signal,
    });
    if (!answer.ok) throw new Error(`events: ${answer.status}`);
    this.#tell("state", "live");
    this.#wait = 1000;
    this.#openedAt = performance.now();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const silence = setTimeout(() => controller.abort("silence"), SILENCE_MILLISECONDS);
      const { done, value } = await reader.read().finally(() => clearTimeout(silence));
      if (done) return "ended";
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) this.#take(block);
    }
  }

  #take(block) {
    let name = null;
    let data = null;
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data = line.slice(6);
      else if (line.startsWith("id: ")) this.#lastId = line.slice(4);
    }
    if (name && data) this.#tell(name, JSON.parse(data));
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}
