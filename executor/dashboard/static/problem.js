/** An error response of the API, or a fault of what was typed; its message is shown. */
export class Problem extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

/** Whether an error comes from an aborted request. */
export function isAbort(error) {
  return error.name === "AbortError";
}
