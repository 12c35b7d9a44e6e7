// Reads JSON that a person types: the value, or the location and the reason of the first fault.

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
