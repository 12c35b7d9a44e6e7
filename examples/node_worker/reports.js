// An example: node reports.js

import { setTimeout as sleep } from 'node:timers/promises'
import { serve } from 'turnstile-worker'

const PAGES = 12

/** @type {import('turnstile-worker').Action<{ customer_id: number }>} */
async function render({ customer_id }, context) {
  for (let page = 1; page <= PAGES; page++) {
    await sleep(100, undefined, { signal: context.signal })
    context.progress(page, PAGES)
  }
  context.log(`rendered ${PAGES} pages for customer ${customer_id}`)
  return { pages: PAGES }
}

await serve({ 'reports.render': render }, { definitions: [{ ref: 'reports.render', max_concurrent: 3 }] })
