// Says what a JSON Schema of an action's parameters expects, and makes an example of it. References into
// $defs are followed.

import { writeJson } from "./json_text.js";

const LEVELS_MAX = 6;
const EXAMPLES = {
  "date-time": "2030-01-31T09:00:00Z", date: "2030-01-31", time: "09:00:00", duration: "PT1H30M",
  uuid: "0f8fad5b-d9cb-469f-a165-70867728950e",
};

/** Return the schema of an action's parameters that a submitter has to fit, or null: everything fits. */
export function parametersSchemaOf({ parameters_schema: given, parameters_checked_by: by,
  code_schemas: derived }) {
  return given ?? (by === "code" ? derived[0]?.parameters_schema : null) ?? null;
}

/** The properties as [name, schema] pairs: the required ones in their order, then the others. */
export function propertiesOf({ properties = {}, required = [] }) {
  const isRequired = (name) => required.includes(name);
  return [...required.filter((name) => Object.hasOwn(properties, name)),
    ...Object.keys(properties).filter((name) => !isRequired(name))]
    .map((name) => [name, properties[name]]);
}

/**
 * Return the schema that a reference names, merged with the keywords beside it; `isNullable` if it also
 * allows null.
 */
export function resolved(schema, whole, level = 0) {
  if (schema === null || typeof schema !== "object" || level > LEVELS_MAX) return {};
  const { $ref, allOf, ...beside } = schema;
  const target = $ref?.split("/").slice(1).reduce((node, name) => node?.[name], whole)
    ?? (allOf?.length === 1 ? allOf[0] : null);
  if (target) return { ...resolved(target, whole, level + 1), ...beside };
  const branches = schema.anyOf ?? schema.oneOf;
  const others = branches?.filter((each) => each?.type !== "null");
  if (others?.length === 1 && others.length < branches.length) {
    const { anyOf: _, oneOf: __, ...comments } = schema;
    return { ...resolved(others[0], whole, level + 1), ...comments, isNullable: true };
  }
  if (Array.isArray(schema.type) && schema.type.length === 2 && schema.type.includes("null")) {
    return { ...schema, type: schema.type.find((each) => each !== "null"), isNullable: true };
  }
  return schema;
}

/** The bounds of a number, a text or a list, like "1 to 5"; empty without any. */
function boundsOf({ minimum, maximum, exclusiveMinimum: above, exclusiveMaximum: below, minLength,
  maxLength, minItems, maxItems }) {
  const [low, high] = [minimum ?? minLength ?? minItems, maximum ?? maxLength ?? maxItems];
  const unit = (minLength ?? maxLength) !== undefined ? " characters"
    : (minItems ?? maxItems) !== undefined ? " items" : "";
  const strict = [above !== undefined && `more than ${above}`, below !== undefined && `less than ${below}`]
    .filter(Boolean);
  if (low === undefined && high === undefined) return strict.join(", ");
  const words = low === undefined ? `up to ${high}${unit}` : high === undefined ? `from ${low}${unit}`
    : `${low} to ${high}${unit}`;
  return [words, ...strict].join(", ");
}

/** The type in the words of JSON Schema: "integer 1 to 5", "string (date-time)", "list of string". */
export function typeText(schema, whole) {
  return typeParts(schema, { whole }).join("");
}

/**
 * The same as a list of nodes and texts. With `link(name)` schemas that have a name are links, otherwise
 * references are followed in `whole`.
 */
export function typeParts(given, { whole, link }, level = 0) {
  if (link && given.$ref) return [link(given.$ref.split("/").at(-1))];
  const schema = link ? given : resolved(given, whole);
  const within = (each) => typeParts(each, { whole, link }, level + 1);
  const joined = (several, word) =>
    several.flatMap((each, index) => [index ? ` ${word} ` : "", ...within(each)]);
  const or = schema.isNullable ? " or null" : "";
  const end = (...words) => words.filter(Boolean).map((each) => ` ${each}`).join("") + or;
  if (schema.const !== undefined) return [writeJson(schema.const) + or];
  if (schema.enum) return [schema.enum.map((each) => writeJson(each)).join(", ") + or];
  if (level < LEVELS_MAX) {
    if (schema.anyOf ?? schema.oneOf) return joined(schema.anyOf ?? schema.oneOf, "or");
    if (schema.allOf) return joined(schema.allOf, "and");
    if (schema.type === "array")
      return ["list of ", ...within(schema.items ?? {}), end(boundsOf(schema))];
    const values = schema.type === "object" && schema.additionalProperties;
    if (values && Object.keys(values).length) return ["object of ", ...within(values), or];
  }
  return [[schema.type ?? "any JSON"].flat().join(" or "), end(schema.format && `(${schema.format})`,
    boundsOf(schema), !link && schema.pattern && `matching ${schema.pattern}`)];
}

/** A value that fits the schema as far as its keywords say. */
export function exampleOf(given, whole, level = 0) {
  const schema = resolved(given, whole);
  for (const value of [schema.const, schema.examples?.[0], schema.default, schema.enum?.[0]])
    if (value !== undefined) return value;
  const branch = (schema.anyOf ?? schema.oneOf)?.[0];
  if (level > LEVELS_MAX) return null;
  if (branch) return exampleOf(branch, whole, level + 1);
  switch ([schema.type].flat()[0]) {
    case "string": return (EXAMPLES[schema.format] ?? "text").padEnd(schema.minLength ?? 0, "x")
      .slice(0, schema.maxLength);
    case "integer": return schema.minimum ?? (schema.exclusiveMinimum === undefined
      ? Math.min(1, schema.maximum ?? 1) : schema.exclusiveMinimum + 1);
    case "number": return schema.minimum ?? (schema.exclusiveMinimum === undefined
      ? Math.min(1.5, schema.maximum ?? 1.5) : schema.exclusiveMinimum + 1);
    case "boolean": return true;
    case "array": return Array.from({ length: schema.items ? Math.max(1, schema.minItems ?? 1) : 0 },
      () => exampleOf(schema.items, whole, level + 1));
    case "null": return null;
    case "object": case undefined:
      return Object.fromEntries(propertiesOf(schema)
        .map(([name, each]) => [name, exampleOf(each, whole, level + 1)]));
    default: return null;
  }
}
