// Reads and writes JSON. A number keeps its digits, of which a number of JavaScript has about 16. For JSON
// that a person types: the value, or the location and the reason of the first fault.

/** Members of a response that hold documents of users: their numbers keep the way they are written, too. */
const DOCUMENTS = new Set(["parameters", "result", "metadata"]);

/** A number as it is written, where JavaScript would write the same number in another way. */
class WrittenNumber {
  constructor(source) {
    this.source = source;
  }

  /** Whether a number of JavaScript is another number. */
  get isRounded() {
    return digitsOf(this.source) !== digitsOf(String(Number(this.source)));
  }

  toString() {
    return this.source;
  }

  valueOf() {
    return Number(this.source);
  }

  toJSON() {
    return JSON.rawJSON(this.source);
  }
}

/** The digits and the exponent of a number, the same for each way to write it. */
function digitsOf(source) {
  const [, sign, whole, fraction = "", exponent = "0"]
    = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(source) ?? [];
  if (whole === undefined) return source;
  const digits = (whole + fraction).replace(/^0+/, "");
  const kept = digits.replace(/0+$/, "");
  return kept ? `${sign}${kept}e${Number(exponent) - fraction.length + digits.length - kept.length}` : "0";
}

/** Return the value of JSON text; throws SyntaxError. */
export function parseJson(words) {
  let isExact = true;
  const value = JSON.parse(words, (name, each, { source }) => {
    if (typeof each !== "number" || String(each) === source) return each;
    isExact = false;
    return new WrittenNumber(source);
  });
  return isExact ? value : withNumbers(value, false);
}

function withNumbers(value, isDocument) {
  if (value instanceof WrittenNumber) return isDocument || value.isRounded ? value : Number(value);
  if (value !== null && typeof value === "object") {
    for (const [name, each] of Object.entries(value)) {
      value[name] = withNumbers(each, isDocument || DOCUMENTS.has(name));
    }
  }
  return value;
}

/** Return the JSON text of what `parseJson` returned, or of other values. */
export function writeJson(value, indent) {
  return JSON.stringify(value, null, indent);
}

const LITERAL = /(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\w.+-])/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const SPACE = /[ \t\n\r]*/y;

/**
 * Return {value}, or {problem} that names line and column. Browsers differ in theirs, and some name no
 * location.
 */
export function readJson(words) {
  try {
    return { value: JSON.parse(words) };
  } catch {
    const { at, what } = firstFault(words);
    const before = words.slice(0, at).split("\n");
    return { problem: `Line ${before.length}, column ${before.at(-1).length + 1}: ${what}.` };
  }
}

function firstFault(words) {
  let at = 0;
  const fail = (what) => { throw { at, what }; };
  const skip = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.test(words);
    if (found) at = pattern.lastIndex;
    return found;
  };
  const next = () => {
    skip(SPACE);
    return words[at];
  };
  const found = () => (words[at] === undefined ? "the text ends" : `found ${JSON.stringify(words[at])}`);
  function string(what) {
    if (next() === "'") fail(`${what} is written in double quotes`);
    if (next() !== '"') fail(`expected ${what} in double quotes, ${found()}`);
    if (!skip(STRING)) fail("this text has no closing double quote, or an invalid escape");
  }
  /** Read members up to the closing bracket. */
  function members(close, read) {
    at += 1;
    if (next() === close) return void (at += 1);
    for (;;) {
      read();
      const here = next();
      if (here === close) return void (at += 1);
      if (here !== ",") fail(`expected a comma or ${close}, ${found()}`);
      const comma = at;
      at += 1;
      if (next() === close) throw { at: comma, what: `remove the comma before ${close}` };
    }
  }
  function value() {
    const here = next();
    if (here === "{") {
      members("}", () => {
        string("a name");
        if (next() !== ":") fail(`expected a colon after the name, ${found()}`);
        at += 1;
        value();
      });
    } else if (here === "[") members("]", value);
    else if (here === '"' || here === "'") string("a text");
    else if (!skip(LITERAL)) fail(`expected a value, ${found()}`);
  }
  try {
    value();
    if (next() !== undefined) fail(`expected nothing more, ${found()}`);
  } catch (fault) {
    if (fault instanceof Error) return { at, what: "not JSON" };
    return fault;
  }
  return { at, what: "not JSON" };
}
