// The action that `turnstile worker-check -- node check.js` runs.

import { appendFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { PermanentError, TemporaryError, serve } from 'turnstile-worker'

/** @type {import('turnstile-worker').Action<any>} */
async function run({ trace, name, seconds, result, text, progress, fails, delay }, { signal, ...context }) {
  if (text != null) context.log(text)
  if (progress != null) context.progress(progress[0], progress[1])
  const mark = (/** @type {string} */ kind) => appendFile(trace, `${kind} ${name} ${Date.now() / 1000}\n`)
  const until = performance.now() + 1000 * seconds
  await mark('begin')
  for (let left; (left = until - performance.now()) > 0; ) {
    await sleep(Math.min(50, left), undefined, { signal })
    await mark('runs')
  }
  if (fails === 'for now') throw new TemporaryError('as asked', { delay })
  if (fails === 'for good') throw new PermanentError('as asked')
  return result
}

await serve({ 'check.run': run })
