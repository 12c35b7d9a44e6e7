// What was offered and has not started, by queue: docs/worker-protocol.md, "Offers, cancels, recalls".

/** Compare grants, "epoch.counter", as two numbers. */
export function compareGrants(one, other) {
  const [epoch, counter] = one.split('.').map(Number)
  const [otherEpoch, otherCounter] = other.split('.').map(Number)
  return epoch - otherEpoch || counter - otherCounter
}

const later = (one, other) => (compareGrants(one, other) < 0 ? other : one)
const IDLE_QUEUES_MAX = 10_000

/** The offers of one worker that have not started, and how many of each queue run. */
export class WaitingList {
  #queues = new Map()
  #waiting = new Set()
  #running = 0

  constructor(concurrency) {
    this.concurrency = concurrency
  }

  has(grant) {
    return this.#waiting.has(grant)
  }

  held() {
    return [...this.#queues.values()].flatMap(queue => queue.line)
  }

  /** Set how many of a queue may run at once, null: any number; return whether that is fewer. */
  limit(name, atOnce) {
    const queue = this.#queue(name)
    const before = queue.atOnce
    queue.atOnce = atOnce ?? Infinity
    return queue.atOnce < before
  }

  /** Add an offer at its place; false if it is to be returned. */
  put(name, offer) {
    const queue = this.#queue(name)
    if (compareGrants(offer.grant, queue.barrier) <= 0 || isClosed(queue)) {
      queue.returned = later(queue.returned, offer.grant)
      return false
    }
    const before = each => (rank(each) - rank(offer) || each.execution_id - offer.execution_id) < 0
    let place = queue.line.length
    while (place > 0 && !before(queue.line[place - 1])) place--
    queue.line.splice(place, 0, offer)
    this.#waiting.add(offer.grant)
    return true
  }

  /** Remove and return what waits up to the barrier; nothing up to it starts any more. */
  recall(name, barrier) {
    const queue = this.#queue(name)
    queue.barrier = later(queue.barrier, barrier)
    return this.#take(queue, each => compareGrants(each.grant, queue.barrier) <= 0)
  }

  /** Remove and return what waits, and take nothing until a recall covers what was returned unasked. */
  close(name, returned) {
    const queue = this.#queue(name)
    queue.returned = later(queue.returned, returned)
    return this.#take(queue, () => true)
  }

  /** Close all queues; remove and return everything. */
  clear() {
    return [...this.#queues].flatMap(([name, { line }]) =>
      line.length ? this.close(name, line.map(each => each.grant).reduce(later)) : [])
  }

  /** Remove an offer that has not started. */
  remove(grant) {
    for (const queue of this.#queues.values()) this.#take(queue, each => each.grant === grant)
  }

  /** Remove and return the offers that wait for longer than their time to live. */
  expired(now) {
    return [...this.#queues.values()].flatMap(queue => this.#take(queue, each => each.expiresAt <= now))
  }

  /** Remove the offer that starts next and count it as running; `ended` ends that. Queues take turns. */
  next() {
    if (this.#running >= this.concurrency) return undefined
    for (const [name, queue] of this.#queues) {
      if (!queue.line.length || queue.running >= queue.atOnce) continue
      const offer = queue.line.shift()
      this.#waiting.delete(offer.grant)
      queue.running++
      this.#running++
      this.#queues.delete(name)
      this.#queues.set(name, queue)
      return { name, offer }
    }
  }

  ended(name) {
    this.#queue(name).running--
    this.#running--
  }

  #take(queue, isTaken) {
    const taken = queue.line.filter(isTaken)
    if (taken.length) queue.line = queue.line.filter(each => !isTaken(each))
    for (const each of taken) this.#waiting.delete(each.grant)
    return taken
  }

  #queue(name) {
    let queue = this.#queues.get(name)
    if (queue === undefined) {
      queue = { atOnce: Infinity, barrier: '0.0', returned: '0.0', running: 0, line: [] }
      this.#queues.set(name, queue)
      if (this.#queues.size > IDLE_QUEUES_MAX) this.#forgetOne(name)
    }
    return queue
  }

  #forgetOne(newest) {
    for (const [name, { line, running, ...marks }] of this.#queues)
      if (name !== newest && !line.length && !running && !isClosed(marks)) return this.#queues.delete(name)
  }
}

const rank = offer => offer.priority ?? 3
const isClosed = queue => compareGrants(queue.returned, queue.barrier) > 0
