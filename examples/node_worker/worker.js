// A worker of Turnstile: docs/worker-protocol.md has the rules, worker.d.ts describes `serve`, the one call.
// This file receives, runs and reports; `lease`, `waiting` and `outbox` decide, and `link` is the broker.

import { randomBytes, randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { Lease, Received, now } from './lease.js'
import { connect } from './link.js'
import { Outbox } from './outbox.js'
import { WaitingList } from './waiting.js'

const TICK_SECONDS = 0.05
const LIVE_SECONDS = 1
const LEAVE_SECONDS = 10
const STARTED_AFTER_SECONDS = 0.05
const RETRY_SECONDS = 0.2
const LOG_CHARACTERS_MAX = 1_000_000
const RESULT_BYTES_MAX = 1024 * 1024
const NOT_STOPPED = 70

/** The action failed, and a further attempt would fail as well. */
export class PermanentError extends Error {}

/** The action failed for now; `delay` is in seconds. */
export class TemporaryError extends Error {
  constructor(message, { delay } = {}) {
    super(message)
    this.delay = delay
  }
}

/** Serve these actions until SIGTERM, and the drain after it. */
export async function serve(actions, given = {}) {
  const settings = { ...settingsOf(process.env), ...given }
  const stop = new AbortController()
  for (const signal of ['SIGTERM', 'SIGINT']) process.once(signal, () => stop.abort())
  let isLost = true
  while (isLost && !stop.signal.aborted) isLost = await new WorkerId(actions, settings, stop.signal).run()
  // A worker that an operator drained stays idle: its supervisor would start it again.
  while (!stop.signal.aborted) await sleep(1000 * TICK_SECONDS)
}

/** One worker id, with all that it holds. */
class WorkerId {
  id = randomUUID()
  #secret = randomBytes(24).toString('base64url')
  #outbox = new Outbox()
  #attempts = new Map()
  #session = 0
  #link
  #isWelcome = false
  #epoch = 0
  #received = new Received()
  #heldFor = ''
  #isTaking = true
  #heartbeatAt = 0
  #probedAt = 0
  #liveAt = 0
  #helloAt = 0
  #isPublishing = false

  constructor(actions, settings, stop) {
    this.actions = actions
    this.settings = settings
    this.stop = stop
    this.lease = new Lease(settings.lease)
    this.waiting = new WaitingList(settings.concurrency)
  }

  /** Serve until the drain is over, or the lease; return whether it was lost. */
  async run() {
    const connecting = this.#stayConnected()
    const draining = { since: Infinity, isAsked: false, isLeaving: false }
    while (this.lease.standing !== 'over') {
      this.#tick()
      if (this.stop.aborted) this.#drain()
      if (!this.#isTaking && this.#isDrained(draining)) break
      await sleep(1000 * TICK_SECONDS)
    }
    const isOver = this.lease.standing === 'over'
    this.lease.isOver = true
    for (const attempt of this.#attempts.values()) attempt.abort('the lease is over')
    const until = now() + 0.6 * this.lease.margin
    while (this.#attempts.size && now() < until) await sleep(1000 * TICK_SECONDS)
    if (this.#attempts.size) process.exit(NOT_STOPPED)
    await this.#link?.close()
    await connecting
    // A leader forgets a worker that has left, and dismisses it when its last heartbeats arrive.
    return isOver && !draining.isLeaving
  }

  /** Do what is due. */
  #tick() {
    for (const offer of this.waiting.expired(now()))
      this.#end(offer, stopped('expired', 'its time to live ran out before it started'))
    for (const attempt of this.#attempts.values()) attempt.tick()
    if (this.#link === undefined) return
    if (now() - this.#heartbeatAt > this.settings.heartbeat) this.#sendHeartbeat()
    const isProbeDue = this.lease.isLate && now() - this.#probedAt > this.lease.proof / 3
    if (isProbeDue && this.#isWelcome) this.#probe(this.#link)
    if (now() - this.#liveAt > LIVE_SECONDS) this.#publishLive()
    this.#publishReports()
  }

  // Drain.

  #drain() {
    if (!this.#isTaking) return
    this.#isTaking = false
    for (const offer of this.waiting.clear()) this.#return(offer, 'its worker drains')
    this.#sendHeartbeat()
  }

  /** Whether the drain is over: all is committed, or its bounds have passed. */
  #isDrained(draining) {
    const { settings } = this
    draining.since = Math.min(draining.since, now())
    if (this.#attempts.size) {
      const seconds = now() - draining.since
      if (seconds > settings.drain)
        for (const attempt of this.#attempts.values()) attempt.stopBy('drain', 'its worker drains')
      return seconds > settings.drain + settings.grace
    }
    if (!draining.isLeaving) {
      draining.isLeaving = true
      draining.leftAt = now()
      if (this.#epoch) this.#outbox.add({ type: 'worker.leaving' })
    }
    return this.#outbox.isEmpty || now() - draining.leftAt > LEAVE_SECONDS
  }

  // Sessions: one life of the queue after another.

  async #stayConnected() {
    while (!this.lease.isOver) {
      const session = this.#session + 1
      try {
        const link = await connect(this.settings, `worker.${this.id}.${session}`, body => this.#receive(body))
        this.#session = session
        this.#received = new Received()
        this.#isWelcome = false
        this.#link = link
        this.#heartbeatAt = 0
        if (this.lease.isOver) await link.close()
        await link.gone
      } catch (error) {
        warn(`the broker cannot be used: ${error.message}`)
      }
      this.#link = undefined
      this.#isWelcome = false
      this.#outbox.repeat()
      await sleep(1000 * RETRY_SECONDS)
    }
  }

  get #sender() {
    return { worker_id: this.id, session: this.#session, secret: this.#secret, epoch_seen: this.#epoch }
  }

  #sendHeartbeat() {
    this.#heartbeatAt = now()
    const { settings } = this
    // A new leader may have lost this session in a failover: a hello now and then finds out.
    if (!this.#isWelcome || (this.lease.isLate && now() - this.#helloAt > settings.lease / 3)) {
      this.#helloAt = now()
      this.#link?.send('executor.heartbeats', 'worker.hello', {
        ...this.#sender, name: settings.name, pools: settings.pools, concurrency: settings.concurrency,
        lease: settings.lease, actions: Object.keys(this.actions), definitions: settings.definitions,
        is_taking: this.#isTaking, about: { language: `Node ${process.version}`, host: hostname() },
      })
    }
    if (this.#isWelcome)
      this.#link?.send('executor.heartbeats', 'worker.heartbeat', {
        ...this.#sender, number: this.lease.sending(), received: this.#received.upto,
        is_taking: this.#isTaking,
      })
  }

  async #probe(link) {
    this.#probedAt = now()
    const probedAt = now()
    if (await link.isReached()) this.lease.reached(probedAt)
  }

  // What the leader says.

  #receive({ epoch, messages }) {
    if (this.lease.standing === 'over' || epoch < this.#epoch) return
    if (epoch > this.#epoch) {
      this.#epoch = epoch
      this.#received = new Received()
      this.#outbox.repeat()
    }
    let isHasty = false
    for (const { number, body } of messages) {
      // Something that starts earlier may be missing: the leader sends both again, in order.
      const isIgnored = body.type === 'execution.scheduled' && number > this.#received.upto + 1
      isHasty ||= isIgnored
      if (!isIgnored) isHasty = this.#apply(body, !this.#received.add(number)) || isHasty
    }
    if (isHasty || this.#received.hasGap) this.#sendHeartbeat()
    this.#startReady()
    this.#publishReports()
  }

  /** Apply a message; return whether the leader waits for its confirmation. */
  #apply(body, isCopy) {
    switch (body.type) {
      case 'worker.welcome':
        this.#welcome()
        return true
      case 'execution.scheduled':
        return this.#offers(body, isCopy)
      case 'execution.cancel':
        this.#cancel(body)
        return false
      case 'execution.recall':
        for (const offer of this.waiting.recall(body.queue, body.barrier)) this.#return(offer, 'recalled')
        for (const attempt of this.#attempts.values())
          if (attempt.queue === body.queue && !attempt.isStartReported) attempt.reportStart()
        return true
      case 'worker.heard':
        this.lease.answered(body.heartbeat)
        this.#outbox.committed(body.committed)
        if (body.is_draining) this.#drain()
        return false
      case 'worker.dismissed':
        this.lease.isOver = true
        for (const attempt of this.#attempts.values()) attempt.abort('its worker was dismissed')
        return false
      default:
        return false
    }
  }

  #welcome() {
    this.#isWelcome = true
    this.#outbox.repeat()
    if (this.#heldFor === `${this.#epoch} ${this.#session}`) return
    this.#heldFor = `${this.#epoch} ${this.#session}`
    const here = [...[...this.#attempts.values()].map(each => each.offer), ...this.waiting.held()]
    const grants = [...this.#outbox.held(), ...here.map(each => [each.execution_id, each.grant])]
    this.#outbox.add({ type: 'worker.held', epoch: this.#epoch, grants })
  }

  #offers({ queue, at_once, offers }, isCopy) {
    const isFewer = !isCopy && this.waiting.limit(queue, at_once)
    for (const offer of offers) {
      const { execution_id, grant } = offer
      const expiresAt = now() + (offer.expires_in ?? Infinity)
      const isKnown = Object.hasOwn(this.actions, offer.action_ref)
      if (this.#attempts.has(grant)) this.#attempts.get(grant).reportStart()
      else if (this.waiting.has(grant) || this.#outbox.answer(execution_id, grant) || isCopy) continue
      else if (!this.#isTaking) this.#refuse(queue, offer, 'its worker drains')
      else if (!isKnown) this.#refuse(queue, offer, 'its worker has no such action')
      else if (!this.waiting.put(queue, { ...offer, expiresAt })) this.#return(offer, 'recalled')
    }
    return isFewer
  }

  /** Return an offer unasked: what of its queue has not started goes back with it. */
  #refuse(queue, offer, reason) {
    for (const each of [offer, ...this.waiting.close(queue, offer.grant)]) this.#return(each, reason)
  }

  #return({ execution_id, grant }, reason) {
    this.#outbox.add({ type: 'execution.returned', execution_id, grant, reason })
  }

  #cancel(cancel) {
    const { grant, reason, status = 'cancelled' } = cancel
    const attempt = this.#attempts.get(grant)
    if (attempt !== undefined) attempt.stopBy(status, reason)
    else if (!this.#outbox.has(grant)) {
      this.waiting.remove(grant)
      this.#end(cancel, stopped(status, reason))
    }
  }

  // Attempts.

  #startReady() {
    while (this.#outbox.hasRoom && this.lease.standing === 'certain') {
      const found = this.waiting.next()
      if (found === undefined) return
      const attempt = new Attempt(this, found.name, found.offer)
      this.#attempts.set(found.offer.grant, attempt)
      attempt.run(this.actions[found.offer.action_ref]).then(body => this.#ended(attempt, body))
    }
  }

  #ended(attempt, body) {
    this.#attempts.delete(attempt.offer.grant)
    this.waiting.ended(attempt.queue)
    if (this.lease.standing === 'over') return
    if (body.type === 'execution.returned') this.#outbox.add(body)
    else this.#end(attempt.offer, body)
    this.#startReady()
    this.#publishReports()
  }

  #end({ execution_id, grant }, body) {
    this.#outbox.add({ type: 'execution.completed', execution_id, grant, ...body })
  }

  report(body) {
    this.#outbox.add(body)
  }

  // What the worker says.

  async #publishReports() {
    if (this.#isPublishing || this.#link === undefined || !this.#epoch) return
    this.#isPublishing = true
    try {
      for (let reports; (reports = this.#outbox.take()).length && this.lease.standing !== 'over'; )
        await this.#link.confirmed('executor.completions', 'worker.reports', {
          ...this.#sender, kept_from: this.#outbox.keptFrom, reports,
        })
    } catch {
      // Each may have arrived or not.
      this.#outbox.repeat()
      await sleep(1000 * RETRY_SECONDS)
    } finally {
      this.#isPublishing = false
    }
  }

  #publishLive() {
    this.#liveAt = now()
    const { epoch_seen: _, ...sender } = this.#sender
    const attempts = [...this.#attempts.values()]
    const pieces = attempts.map(each => each.takePiece()).filter(Boolean)
    const reports = attempts.map(each => each.takeProgress()).filter(Boolean)
    const send = (type, more) => this.#link.confirmed('executor.reports', type, { ...sender, ...more })
    if (pieces.length)
      send('execution.log', { pieces: pieces.map(each => each.piece) })
        .then(() => pieces.forEach(each => each.confirm()), () => undefined)
    if (reports.length) send('execution.progress', { reports }).catch(() => undefined)
  }
}

/** One attempt: runs the action, stops it, and says how it ended. */
class Attempt {
  isStartReported = false
  #stop
  #aborting = new AbortController()
  #log = []
  #published = 0
  #confirmed = 0
  #progress
  #isProgressNew = false
  #killAt = Infinity

  constructor(worker, queue, offer) {
    this.worker = worker
    this.queue = queue
    this.offer = offer
    this.began = now()
    this.startedAt = Date.now() / 1000
  }

  get #named() {
    const { execution_id, grant } = this.offer
    return { execution_id, grant }
  }

  /** Run the action; return the report of the end. It never rejects. */
  async run(action) {
    const { offer } = this
    const context = {
      executionId: offer.execution_id,
      attempt: offer.attempt,
      actionRef: offer.action_ref,
      metadata: offer.extra?.metadata ?? {},
      traceparent: offer.extra?.traceparent,
      signal: this.#aborting.signal,
      log: text => this.#write(`${text}\n`),
      progress: (done, total, message) => this.#setProgress(done, total, message),
    }
    let outcome
    try {
      outcome = completed(await action(offer.parameters, context))
    } catch (failure) {
      outcome = failed(failure)
    }
    const stop = this.#stop
    if (stop?.kind === 'drain')
      return { type: 'execution.returned', ...this.#named, had_started: true, reason: stop.reason }
    return {
      ...(stop === undefined ? outcome : stopped(stop.kind, stop.reason)),
      started_at: this.startedAt,
      completed_at: this.startedAt + now() - this.began,
      progress: this.#progress,
      log: this.#log.slice(this.#confirmed).join('') || undefined,
      log_start: this.#confirmed,
    }
  }

  /** Ask the action to stop: this is its outcome, whatever it still returns. */
  stopBy(kind, reason) {
    if (this.#stop === undefined || this.#stop.kind === 'drain') this.#stop = { kind, reason }
    this.abort(reason)
    // Without a certain lease another copy may start: what does not obey ends with this process.
    if (this.worker.lease.standing !== 'certain') this.#killAt = now() + 0.6 * this.worker.lease.margin
  }

  abort(reason) {
    if (!this.#aborting.signal.aborted) this.#aborting.abort(new Error(reason))
  }

  tick() {
    const seconds = now() - this.began
    if (seconds > STARTED_AFTER_SECONDS && !this.isStartReported) this.reportStart()
    if (seconds > (this.offer.timeout ?? Infinity) && this.#stop === undefined)
      this.stopBy('timeout', `it ran longer than its timeout of ${this.offer.timeout} s`)
    if (now() > this.#killAt) process.exit(NOT_STOPPED)
  }

  reportStart() {
    this.isStartReported = true
    this.worker.report({ type: 'execution.started', ...this.#named, at: this.startedAt })
  }

  #write(text) {
    // By character, and not by UTF-16 unit: pieces say how many characters precede them.
    if (this.#log.length < LOG_CHARACTERS_MAX) for (const each of text) this.#log.push(each)
  }

  #setProgress(done, total, message) {
    for (const each of [done, total ?? 0])
      if (!(Number.isFinite(each) && each >= 0))
        throw new TypeError(`progress: ${each} is no number from 0 on`)
    this.#progress = { at: Date.now() / 1000, done, total, message: message && String(message).slice(0, 500) }
    this.#isProgressNew = true
  }

  takePiece() {
    const start = this.#published, text = this.#log.slice(start).join('')
    this.#published = this.#log.length
    return text && {
      piece: { ...this.#named, attempt: this.offer.attempt, start, text },
      // A later piece may be confirmed though an earlier one is lost.
      confirm: () => { if (start <= this.#confirmed) this.#confirmed = start + [...text].length },
    }
  }

  takeProgress() {
    if (!this.#isProgressNew) return undefined
    this.#isProgressNew = false
    return { ...this.#named, attempt: this.offer.attempt, ...this.#progress }
  }
}

function completed(value) {
  const result = value ?? null
  const bytes = Buffer.byteLength(JSON.stringify(result) ?? 'null')
  if (bytes > RESULT_BYTES_MAX)
    throw new PermanentError(`the result has ${bytes} bytes; at most ${RESULT_BYTES_MAX} are stored`)
  return { status: 'completed', result }
}

function failed(failure) {
  const { constructor, message, delay } = Object(failure)
  return {
    status: 'failed',
    error_type: constructor?.name || 'Error',
    error_message: String(message ?? failure) || 'no message',
    is_retryable: !(failure instanceof PermanentError),
    delay: delay >= 0 && Number.isFinite(delay) ? delay : undefined,
  }
}

/** The end of an attempt that the worker or the leader stopped. */
function stopped(status, reason) {
  return { status, error_type: status[0].toUpperCase() + status.slice(1), error_message: reason }
}

const warn = text => console.error(`${new Date().toISOString()} ${text}`)

/** Read the settings of the environment. */
function settingsOf(environment) {
  const of = (name, otherwise) => environment[`TURNSTILE_${name}`] || otherwise
  return {
    amqpUrl: of('AMQP_URL', 'amqp://guest:guest@127.0.0.1:5672/'),
    name: of('WORKER_NAME', hostname()),
    pools: of('WORKER_POOLS', 'default').split(','),
    concurrency: Number(of('WORKER_CONCURRENCY', '10')),
    lease: seconds(of('LEASE_DURATION', '30s')),
    heartbeat: seconds(of('HEARTBEAT_INTERVAL', '5s')),
    grace: seconds(of('STOP_GRACE', '5s')),
    drain: seconds(of('DRAIN_TIMEOUT', '30s')),
    definitions: [],
  }
}

const UNITS = { ms: 0.001, s: 1, m: 60, h: 3600, d: 86_400 }

/** Return the seconds of a duration, like 250ms, 1h30m or 5. */
function seconds(text) {
  const parts = [...text.matchAll(/(\d+(?:\.\d+)?)(ms|s|m|h|d)/g)]
  if (!parts.length && text !== '' && Number(text) >= 0) return Number(text)
  if (parts.map(([whole]) => whole).join('') !== text)
    throw new Error(`${text}: expected a duration, like 30s`)
  return parts.reduce((sum, [, count, unit]) => sum + Number(count) * UNITS[unit], 0)
}
