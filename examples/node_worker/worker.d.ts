/** What an action sees of the attempt that runs it. */
export interface Context {
  readonly executionId: number
  /** 1 for the first attempt. */
  readonly attempt: number
  readonly actionRef: string
  /** What the submitter attached to the execution. */
  readonly metadata: Readonly<Record<string, string>>
  /** W3C trace context of the submitter. */
  readonly traceparent?: string
  /** Aborted when the attempt must stop: cancelled, out of time, or its worker drains or is lost. */
  readonly signal: AbortSignal
  /** Add a line to the log of the attempt. */
  log(text: string): void
  /** Report how far the attempt has come, in units of your own. */
  progress(done: number, total?: number, message?: string): void
}

/**
 * An action. What it resolves to is the result, as JSON; what it throws is the failure. It must end soon after
 * `context.signal` was aborted, and must not block the event loop: the worker runs in the same thread.
 */
export type Action<Parameters = any, Result = unknown> = (
  parameters: Parameters,
  context: Context,
) => Promise<Result> | Result

/** Settings; each has an environment variable TURNSTILE_*, which it overrides. */
export interface Settings {
  /** TURNSTILE_AMQP_URL */
  amqpUrl?: string
  /** TURNSTILE_WORKER_NAME; default: the host's name. */
  name?: string
  /** TURNSTILE_WORKER_POOLS; default: default. */
  pools?: string[]
  /** TURNSTILE_WORKER_CONCURRENCY; default: 10. */
  concurrency?: number
  /** Seconds. TURNSTILE_LEASE_DURATION; default: 30. */
  lease?: number
  /** Seconds. TURNSTILE_HEARTBEAT_INTERVAL; default: 5. */
  heartbeat?: number
  /** Seconds between asking and giving up, at the end of a drain. TURNSTILE_STOP_GRACE; default: 5. */
  grace?: number
  /** Seconds that a drain waits for what runs. TURNSTILE_DRAIN_TIMEOUT; default: 30. */
  drain?: number
  /** Definitions of actions that the installation gets if it lacks them. */
  definitions?: ReadonlyArray<{ ref: string } & Record<string, unknown>>
}

/** Serve these actions, by their refs. Resolves after SIGTERM or SIGINT, when the worker has drained. */
export function serve(actions: Record<string, Action>, settings?: Settings): Promise<void>

/** The action failed, and a further attempt would fail as well. */
export class PermanentError extends Error {}

/** The action failed for now; `delay` is in seconds, and by default that of the action's retry policy. */
export class TemporaryError extends Error {
  constructor(message?: string, options?: { delay?: number })
  readonly delay?: number
}
