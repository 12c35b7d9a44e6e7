// The page of the HTTP API: shows the OpenAPI document of this executor, with the sign-in of the dashboard.

import { el, say, text } from "./dom.js";
import { counted } from "./format.js";
import { addressOf, ask, authorized } from "./api.js";
import { showHeader } from "./identity.js";
import { parseJson, writeJson } from "./json_text.js";
import { errorLine, none } from "./parts.js";
import { Problem } from "./problem.js";
import { exampleOf, parametersSchemaOf, propertiesOf, resolved, typeParts, typeText } from "./schema_text.js";
import { table } from "./table.js";

const ACTIONS_MAX = 200;
const SHOWN = ["details.action", "details.operation", "details.schema"]
  .map((kind) => `${kind}:not([hidden])`).join(", ") + ", p.empty";
const METHODS = ["get", "post", "put", "patch", "delete"];
const main = showHeader();

async function open() {
  const wrong = errorLine();
  main.replaceChildren(el("div", { class: "head" }, el("h1", {}, "HTTP API")), wrong);
  try {
    const response = await authorized("/openapi.json");
    if (!response.ok) throw new Error(`status ${response.status}`);
    const [described, actions] = await Promise.all([response.text().then(parseJson), readActions()]);
    main.append(...pageOf(described, actions));
  } catch (error) {
    text(wrong, `Cannot read /openapi.json: ${error.message}. Reload the page to try again.`);
    return;
  }
  show();
}

function pageOf(described, { items, isMore }) {
  const operations = Object.entries(described.paths).flatMap(([path, methods]) =>
    METHODS.filter((method) => methods[method]).map((method) => operationOf(method, path, methods[method])));
  const tags = [...new Set(operations.map((each) => each.tag))];
  const sections = tags.map((tag) => el("section", {}, el("h2", {}, headingOf(tag)),
    operations.filter((each) => each.tag === tag).map((each) => each.node)));
  const schemas = Object.entries(described.components?.schemas ?? {})
    .sort(([one], [other]) => (one < other ? -1 : 1))
    .map(([name, schema]) => schemaOf(name, schema));
  sections.push(el("section", {}, el("h2", {}, "Schemas"), schemas.map((each) => each.node)));
  const actions = items.map(({ ref }) => actionOf(ref));
  sections.unshift(el("section", {}, el("h2", {}, "Actions"),
    el("p", {}, "What each action takes as ", el("code", {}, "parameters"), " in ",
      el("code", {}, "POST /api/v1/executions"), ".",
      isMore ? ` The first ${ACTIONS_MAX} are listed; the command executor actions show has each.` : ""),
    actions.length ? actions.map((each) => each.node)
      : el("p", { class: "empty" }, "No action is defined.")));
  const all = [...actions, ...operations, ...schemas];
  const input = el("input", { type: "search", id: "search", autocomplete: "off", spellcheck: "false" });
  const words = el("p", { class: "said", role: "status" });
  const search = () => {
    const wanted = input.value.trim().toLowerCase();
    for (const each of all) each.node.hidden = !each.words.includes(wanted);
    for (const section of sections) section.hidden = !section.querySelector(SHOWN);
    const shown = (entries) => entries.filter((each) => !each.node.hidden).length;
    text(words, `${counted(shown(operations), "operation")}, ${counted(shown(schemas), "schema")}`);
  };
  input.addEventListener("input", search);
  search();
  main.querySelector(".head").append(el("div", { class: "field search" },
    el("label", { for: "search" }, "Search by path, summary, action or schema"), input));
  return [
    el("p", {}, described.info.summary, " Version ", described.info.version, ". The document itself: ",
      el("a", { href: "openapi.json" }, "/openapi.json"), ", which needs a token where the API does."),
    el("p", {}, "Errors are ", schemaLink("Problem"), " documents (RFC 9457): ", el("code", {}, "code"),
      " is for programs, ",
      el("code", {}, "detail"), " names the field and the remedy. With tokens, send ",
      el("code", {}, "Authorization: Bearer TOKEN"), "."),
    words, ...sections,
  ];
}

function headingOf(tag) {
  const words = tag.replaceAll("-", " ");
  return words[0].toUpperCase() + words.slice(1);
}

/** The actions by name; none where the token may not list them. */
async function readActions() {
  try {
    const page = await ask("GET", "/actions", { query: { limit: ACTIONS_MAX } });
    return { items: page.items, isMore: page.next_cursor !== null };
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return { items: [], isMore: false };
  }
}

/** One action; its schema is read when it is opened. */
function actionOf(ref) {
  const inside = el("div");
  const node = el("details", { class: "action", id: `action-${ref}` },
    el("summary", {}, el("span", { class: "path" }, ref)), inside);
  once(node, async () => {
    try {
      inside.append(...parametersOfAction(await ask("GET", `/actions/${encodeURIComponent(ref)}`)));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      inside.append(el("p", { class: "wrong", role: "alert" }, error.message));
    }
  });
  return { node, words: ref.toLowerCase() };
}

function parametersOfAction(action) {
  const { ref } = action;
  const schema = parametersSchemaOf(action);
  const body = { action_ref: ref, parameters: schema ? exampleOf(schema, schema) : {} };
  const example = [el("h3", {}, "Example"), el("pre", { tabindex: 0, "aria-label": `Example of ${ref}` },
    curl("post", "/api/v1/executions", "application/json", body))];
  if (schema === null)
    return [el("p", {},
      "Its parameters have no schema here: every JSON object is accepted, and the worker checks it."),
      ...example];
  const properties = propertiesOf(schema);
  if (properties.length === 0) return [el("p", {}, typeText(schema, schema)), ...example];
  const shown = table(`Parameters of ${ref}`, [
    ["Parameter", "row", ([name]) => [el("code", {}, name),
      (schema.required ?? []).includes(name) ? [" ", el("span", { class: "needed" }, "required")] : null]],
    ["Type", "", ([, each]) => typeText(each, schema)],
    ["Meaning", "", ([, each]) => [...inline(resolved(each, schema).description ?? ""), ...defaultOf(each)]],
  ], { keyOf: ([name]) => name });
  shown.update(properties);
  return [shown.node, ...example];
}

/** One operation; its details are built when they are opened. */
function operationOf(method, path, operation) {
  const id = operation.operationId ?? `${method} ${path}`;
  const inside = el("div");
  const node = el("details", { class: "operation", id },
    el("summary", {}, el("span", { class: `method ${method}` }, method.toUpperCase()),
      el("span", { class: "path" }, path),
      el("span", { class: "summary" }, operation.summary)), inside);
  once(node, () => inside.append(
    ...prose(operation.description), ...parametersOf(operation.parameters ?? []),
    ...bodyOf(operation.requestBody),
    el("h3", {}, "Example"), el("pre", { tabindex: 0, "aria-label": "Example" },
      curlOf(method, path, operation)),
    ...responsesOf(operation.responses)));
  return { node, tag: operation.tags?.[0] ?? "other",
    words: `${method} ${path} ${operation.summary}`.toLowerCase() };
}

function schemaOf(name, schema) {
  const inside = el("div");
  const node = el("details", { class: "schema", id: `schema-${name}` },
    el("summary", {}, el("span", { class: "path" }, name)), inside);
  once(node, () => inside.append(...prose(schema.description),
    ...(schema.properties ? fieldsOf(schema, `Fields of ${name}`) : [el("p", {}, typeOf(schema))])));
  return { node, words: name.toLowerCase() };
}

function once(node, build) {
  node.addEventListener("toggle", () => node.open && build(), { once: true });
}

function parametersOf(parameters) {
  if (parameters.length === 0) return [];
  const shown = table("Parameters", [
    ["Parameter", "row", (each) => [el("code", {}, each.name),
      each.required ? [" ", el("span", { class: "needed" }, "required")] : null]],
    ["In", "", (each) => each.in],
    ["Type", "", (each) => typeOf(each.schema)],
    ["Meaning", "", (each) => inline(each.description ?? each.schema?.description ?? "")],
  ], { keyOf: (each) => `${each.in} ${each.name}` });
  shown.update(parameters);
  return [el("h3", {}, "Parameters"), shown.node];
}

function bodyOf(body) {
  const content = body && Object.values(body.content)[0];
  if (!content) return [];
  return [el("h3", {}, "Request body"), el("p", {}, typeOf(content.schema)),
    ...inlineFieldsOf(content.schema),
    ...Object.values(content.examples ?? {}).map((each) => el("details", { class: "example" },
      el("summary", {}, each.summary), el("pre", { tabindex: 0, "aria-label": each.summary },
        writeJson(each.value, 2))))];
}

/** The fields of a body whose schema has no name; of a list, those of its items. */
function inlineFieldsOf(schema) {
  const object = [schema, ...(schema.oneOf ?? schema.anyOf ?? []),
    schema.items ?? {}].find((each) => each.properties);
  return object ? fieldsOf(object, "Fields of the body") : [];
}

function responsesOf(responses) {
  const shown = table("Responses", [
    ["Status", "row", ([status]) => status],
    ["Meaning", "", ([, each]) => inline(each.description ?? "")],
    ["Body", "", ([, each]) => bodyTypeOf(each)],
  ], { keyOf: ([status]) => status });
  shown.update(Object.entries(responses));
  return [el("h3", {}, "Responses"), shown.node];
}

function bodyTypeOf({ content = {} }) {
  const [media, first] = Object.entries(content)[0] ?? [];
  if (!media) return none("–");
  return first.schema && Object.keys(first.schema).length ? typeOf(first.schema) : media;
}

function fieldsOf({ properties, required = [] }, caption) {
  // Answers have all their fields.
  const isMixed = required.length < Object.keys(properties).length;
  const shown = table(caption, [
    ["Field", "row", ([name]) => [el("code", {}, name),
      isMixed && required.includes(name) ? [" ", el("span", { class: "needed" }, "required")] : null]],
    ["Type", "", ([, each]) => typeOf(each)],
    ["Meaning", "", ([, each]) => [...inline(each.description ?? ""), ...defaultOf(each)]],
  ], { keyOf: ([name]) => name });
  shown.update(Object.entries(properties));
  return [shown.node];
}

function defaultOf(schema) {
  if (schema.default === undefined || schema.default === null) return [];
  return [" Default: ", el("code", {}, writeJson(schema.default)), "."];
}

/** The type of a schema as nodes; schemas with a name are links. */
function typeOf(schema) {
  return el("span", {}, typeParts(schema ?? {}, { link: schemaLink }));
}

function schemaLink(name) {
  return el("a", { href: `#schema-${name}` }, name);
}

function curlOf(method, path, operation) {
  const content = operation.requestBody && Object.entries(operation.requestBody.content)[0];
  if (!content) return curl(method, path);
  return curl(method, path, content[0], Object.values(content[1].examples ?? {})[0]?.value
    ?? content[1].example ?? {});
}

function curl(method, path, media, body) {
  const lines = [`curl -X ${method.toUpperCase()} '${addressOf(path)}'`,
    "  -H \"Authorization: Bearer $TURNSTILE_API_TOKEN\""];
  if (media) lines.push(`  -H 'Content-Type: ${media}'`,
    `  -d '${writeJson(body).replaceAll("'", "'\\''")}'`);
  return lines.join(" \\\n");
}

/** Paragraphs of a text; text between backticks is code. */
function prose(words) {
  return (words ?? "").split(/\n\s*\n/).filter((each) => each.trim())
    .map((each) => el("p", {}, inline(each)));
}

function inline(words) {
  return words.split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part));
}

/** Open what the address names. */
function show() {
  const node = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!node?.matches("details")) return;
  // The search may have hidden both.
  node.hidden = node.closest("section").hidden = false;
  node.open = true;
  node.scrollIntoView();
  node.querySelector("summary").focus({ preventScroll: true });
  say(node.querySelector(".path").textContent);
}

addEventListener("hashchange", show);
open();
