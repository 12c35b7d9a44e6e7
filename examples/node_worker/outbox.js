// Keeps every report until the leader has committed it: docs/worker-protocol.md, "Reports".

import { now } from './lease.js'

const OVER_MAX = 20_000
const TOGETHER_MAX = 200
const TOGETHER_CHARACTERS_MAX = 65_536
const REPEAT_SECONDS = 2
const REPEAT_SECONDS_MAX = 60

/** The reports of one worker id that are not committed, and which of them are published next. */
export class Outbox {
  #kept = new Map()
  #about = new Map()
  #over = new Map()
  #number = 0
  #next = 1
  #unmovedSince = Infinity
  #repeatSeconds = REPEAT_SECONDS

  get isEmpty() {
    return this.#kept.size === 0
  }

  get hasRoom() {
    return this.#kept.size < 10_000
  }

  get keptFrom() {
    return this.isEmpty ? this.#number + 1 : this.#kept.keys().next().value
  }

  /** Whether something was reported about a grant, as far as that is remembered. */
  has(grant) {
    return this.#about.has(grant) || this.#over.has(grant)
  }

  /** Execution ids and grants of all ends and returns that are kept. */
  held() {
    return [...this.#kept.values()].filter(isEnd).map(each => [each.execution_id, each.grant])
  }

  /** Keep a report under the next number. */
  add(body) {
    this.#kept.set(++this.#number, body)
    if (body.grant !== undefined) this.#about.set(body.grant, this.#number)
    if (isEnd(body)) {
      this.#over.set(body.grant, body.had_started ?? body.started_at !== undefined)
      if (this.#over.size > OVER_MAX) this.#over.delete(this.#over.keys().next().value)
    }
    if (this.#unmovedSince === Infinity) this.#unmovedSince = now()
  }

  /** Report once more what was reported of a grant; false if nothing was. */
  answer(execution_id, grant) {
    const number = this.#about.get(grant)
    if (number !== undefined) this.#next = Math.min(this.#next, number)
    else if (this.#over.has(grant)) {
      const had_started = this.#over.get(grant)
      const reason = 'it had ended, and the report is not kept any more'
      this.add({ type: 'execution.returned', execution_id, grant, had_started, reason })
    } else return false
    return true
  }

  /** Forget the reports up to a number; if the first one stays for long, publish all once more. */
  committed(upto) {
    let hasMoved = false
    for (const [number, body] of this.#kept) {
      if (number > upto) break
      this.#kept.delete(number)
      if (this.#about.get(body.grant) === number) this.#about.delete(body.grant)
      hasMoved = true
    }
    if (hasMoved) {
      this.#unmovedSince = this.isEmpty ? Infinity : now()
      this.#repeatSeconds = REPEAT_SECONDS
    } else if (now() - this.#unmovedSince > this.#repeatSeconds) {
      this.#unmovedSince = now()
      this.#repeatSeconds = Math.min(2 * this.#repeatSeconds, REPEAT_SECONDS_MAX)
      this.repeat()
    }
  }

  /** Publish everything that is not committed once more. */
  repeat() {
    this.#next = this.keptFrom
  }

  /** Return what is published next, in order. */
  take() {
    const reports = []
    this.#next = Math.max(this.#next, this.keptFrom)
    let characters = 0
    while (reports.length < TOGETHER_MAX && characters < TOGETHER_CHARACTERS_MAX) {
      const body = this.#kept.get(this.#next)
      if (body === undefined) break
      reports.push({ number: this.#next++, body })
      characters += JSON.stringify(body).length
    }
    return reports
  }
}

const isEnd = body => body.type === 'execution.completed' || body.type === 'execution.returned'
