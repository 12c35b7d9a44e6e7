// What a worker may do now, and what it has heard: docs/worker-protocol.md, "Heartbeats and the lease".

import { uptime } from 'node:os'
import { Worker as Thread } from 'node:worker_threads'

/** Seconds by a clock that also runs while this process, or the machine, is stopped. */
export const now = uptime

// Kills the process when its event loop is blocked, or the process was stopped, beyond the end of the lease.
const SUPERVISOR = `
  const { workerData } = require('node:worker_threads'), { uptime } = require('node:os')
  setInterval(() => { if (uptime() > workerData[0]) process.kill(process.pid, 'SIGKILL') }, 100)`

/** @type {Float64Array | undefined} */
let killAt

/** The lease of one worker id. Its end is final. */
export class Lease {
  isOver = false
  #renewedAt = -Infinity
  #reachedAt = -Infinity
  #sentAt = new Map()
  #number = 0

  constructor(seconds) {
    this.seconds = seconds
    this.margin = Math.min(Math.max(1, seconds / 5), seconds / 3)
    this.proof = Math.min(3, seconds / 2)
    if (killAt === undefined) {
      killAt = new Float64Array(new SharedArrayBuffer(8)).fill(Infinity)
      new Thread(SUPERVISOR, { eval: true, workerData: killAt }).unref()
    }
    killAt[0] = Infinity
  }

  /** Return the number of a heartbeat that is sent now. */
  sending() {
    this.#sentAt.set(++this.#number, now())
    if (this.#sentAt.size > 1000) this.#sentAt.delete(this.#sentAt.keys().next().value)
    return this.#number
  }

  /** The leader answered a heartbeat: the lease counts from its sending. */
  answered(number) {
    const sentAt = this.#sentAt.get(number)
    if (sentAt === undefined) return
    for (const each of this.#sentAt.keys()) if (each <= number) this.#sentAt.delete(each)
    this.#renewedAt = Math.max(this.#renewedAt, sentAt)
    this.#supervise()
  }

  /** A probe, sent at this instant, has shown that a cancel would arrive. */
  reached(probedAt) {
    this.#reachedAt = probedAt
    this.#supervise()
  }

  /** Whether an answer is so late that the broker is probed. */
  get isLate() {
    return this.#renewedAt > -Infinity && now() > (this.#renewedAt + this.#certainUntil) / 2
  }

  /** 'certain': start and run. 'in doubt': run what runs. 'over': kill all, and begin under a new id. */
  get standing() {
    if (this.isOver) return 'over'
    if (now() < this.#certainUntil) return 'certain'
    if (this.#renewedAt === -Infinity || now() < this.#mayRunUntil) return 'in doubt'
    this.isOver = true
    return 'over'
  }

  get #certainUntil() {
    return this.#renewedAt + this.seconds - this.margin
  }

  get #mayRunUntil() {
    return Math.max(this.#certainUntil, this.#reachedAt + this.proof)
  }

  #supervise() {
    killAt[0] = this.#mayRunUntil + 0.8 * this.margin
  }
}

/** The numbers of one epoch's messages that have arrived in one session. */
export class Received {
  upto = 0
  #beyond = new Set()

  get hasGap() {
    return this.#beyond.size > 0
  }

  /** Note a number; false if it had arrived before. */
  add(number) {
    if (number <= this.upto || this.#beyond.has(number)) return false
    this.#beyond.add(number)
    while (this.#beyond.delete(this.upto + 1)) this.upto++
    return true
  }
}
