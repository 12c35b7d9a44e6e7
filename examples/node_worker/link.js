// The broker as a worker uses it: docs/worker-protocol.md, "Addresses".

import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import amqp from 'amqplib'

/** Open both connections of a session: one consumes; the other publishes, and may be blocked by an alarm. */
export async function connect({ amqpUrl, lease }, queue, receive) {
  const url = new URL(amqpUrl)
  // A worker that is stopped or cut off loses its queue well within its lease.
  url.searchParams.set('heartbeat', Math.max(1, Math.min(10, Math.round(lease / 5))))
  let isClosing = false
  const opened = []
  let onGone
  const gone = new Promise(resolve => (onGone = resolve))
  const close = async () => {
    isClosing = true
    onGone()
    await Promise.allSettled(opened.map(each => each.close()))
  }
  const open = async () => {
    const connection = await amqp.connect(url.href, { timeout: 1000 * Math.min(10, lease / 3) })
    opened.push(connection)
    connection.on('error', () => undefined)
    connection.on('close', close)
    return connection
  }
  const watched = channel => channel.on('error', () => undefined).on('close', () => isClosing || close())
  try {
    const consuming = watched(await (await open()).createChannel())
    const publisher = await open()
    const publishing = watched(await publisher.createChannel())
    // What no queue takes comes back: the executor's queues are missing.
    const confirming = watched(await publisher.createConfirmChannel()).on('return', close)
    await publishing.checkExchange('executor')
    const classic = { 'x-queue-type': 'classic' }
    await consuming.assertQueue(queue, { exclusive: true, durable: false, arguments: classic })
    await consuming.prefetch(200)
    await consuming.consume(queue, message => {
      if (message === null) return void close()
      consuming.ack(message)
      if (message.properties.type === 'leader.messages') receive(JSON.parse(message.content))
    })
    return new Link({ consuming, publishing, confirming, queue, close, gone })
  } catch (error) {
    await close()
    throw error
  }
}

/** The connections of one session. */
class Link {
  constructor(parts) {
    Object.assign(this, parts)
  }

  /** Send what may be lost. */
  send(key, type, body) {
    try {
      this.publishing.publish('executor', key, ...message(type, body))
    } catch {
      this.close()
    }
  }

  /** Publish and wait for the broker's confirm; rejects where it does not come. */
  confirmed(key, type, body) {
    const options = { persistent: true, mandatory: true }
    return new Promise((resolve, reject) => {
      const settle = error => (error ? reject(error) : resolve())
      this.confirming.publish('executor', key, ...message(type, body, options), settle)
    })
  }

  /** Whether a cancel that is sent now would arrive: this connection is the only consumer of its queue. */
  async isReached() {
    const isLate = sleep(3000, {}, { ref: false })
    try {
      return (await Promise.race([this.consuming.checkQueue(this.queue), isLate])).consumerCount === 1
    } catch {
      return false
    }
  }
}

function message(type, body, options = {}) {
  const properties = {
    type,
    contentType: 'application/json',
    messageId: randomUUID(),
    appId: 'worker',
    timestamp: Math.floor(Date.now() / 1000),
    headers: { schema_version: 1 },
  }
  // Half of a surrogate pair is no JSON for other languages.
  const text = JSON.stringify(body, (_, value) => (typeof value === 'string' ? value.toWellFormed() : value))
  return [Buffer.from(text), { ...properties, ...options }]
}
