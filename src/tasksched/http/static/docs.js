// Renders openapi.json: an index of operations, and one section each. No library, no inline code.
"use strict";

const element = (tag, text, attributes = {}) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};

const nameOf = (ref) => ref.split("/").pop();

// A schema as a short text: names of shapes, never their members.
const typeOf = (schema) => {
  if (!schema || Object.keys(schema).length === 0) return "any";
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" | ");
  if (schema.type === "array") return `[${typeOf(schema.items)}]`;
  if (schema.type === "object" && schema.additionalProperties) {
    return `{string: ${typeOf(schema.additionalProperties)}}`;
  }
  return schema.type || "any";
};

const rows = (pairs) => {
  const table = element("table");
  for (const [name, text] of pairs) {
    const row = table.appendChild(element("tr"));
    row.appendChild(element("td")).appendChild(element("code", name));
    row.appendChild(element("td", text));
  }
  return table;
};

const shape = (schema, schemas, seen = []) => {
  const box = element("div");
  const refs = schema.$ref ? [schema.$ref] : (schema.anyOf || []).map((one) => one.$ref).filter(Boolean);
  if (schema.items && schema.items.$ref) refs.push(schema.items.$ref);
  for (const ref of refs) {
    const name = nameOf(ref);
    if (seen.includes(name)) continue;
    const found = schemas[name];
    const details = box.appendChild(element("details"));
    details.appendChild(element("summary", name));
    if (found.description) details.appendChild(element("p", found.description));
    const required = found.required || [];
    const members = Object.entries(found.properties || {});
    details.appendChild(rows(members.map(([member, one]) => [
      member + (required.includes(member) ? " *" : ""),
      [typeOf(one), one.description].filter(Boolean).join(" — "),
    ])));
    for (const [, one] of members) details.appendChild(shape(one, schemas, [...seen, name]));
  }
  return box;
};

const heading = (box, text) => box.appendChild(element("h3", text));

const operation = (path, verb, found, schemas) => {
  const box = element("section", undefined, { id: found.operationId + "-" + path.replace(/\W+/g, "-") });
  const title = box.appendChild(element("h2"));
  title.appendChild(element("span", verb.toUpperCase() + " ", { class: "verb" }));
  title.appendChild(element("code", path));
  box.appendChild(element("p", found.summary + "."));
  if (found.description) box.appendChild(element("p", found.description));
  if (found.parameters) {
    heading(box, "Parameters");
    box.appendChild(rows(found.parameters.map((one) => [
      one.name, `${one.in}: ${typeOf(one.schema)} — ${one.description || "the id"}`,
    ])));
  }
  if (found.requestBody) {
    heading(box, "Body");
    for (const [media, one] of Object.entries(found.requestBody.content)) {
      box.appendChild(element("p")).appendChild(element("code", `${media}: ${typeOf(one.schema)}`));
      box.appendChild(shape(one.schema, schemas));
    }
  }
  heading(box, "Answers");
  for (const [status, one] of Object.entries(found.responses)) {
    const text = one.$ref ? nameOf(one.$ref) : one.description;
    box.appendChild(element("p")).appendChild(element("code", `${status} ${text}`));
    for (const body of Object.values(one.content || {})) box.appendChild(shape(body.schema, schemas));
  }
  return box;
};

const show = (description) => {
  document.getElementById("version").textContent = description.info.version;
  const index = document.getElementById("index");
  const operations = document.getElementById("operations");
  for (const [path, verbs] of Object.entries(description.paths)) {
    for (const [verb, found] of Object.entries(verbs)) {
      const box = operations.appendChild(operation(path, verb, found, description.components.schemas));
      const link = index.appendChild(element("a", undefined, { href: "#" + box.id }));
      link.appendChild(element("span", verb.toUpperCase() + " ", { class: "verb" }));
      link.appendChild(document.createTextNode(path));
    }
  }
  const problem = operations.appendChild(element("section"));
  problem.appendChild(element("h2", "Problem"));
  problem.appendChild(element("p", "Every answer that is no success: application/problem+json."));
  problem.appendChild(shape({ $ref: "#/components/schemas/ProblemView" }, description.components.schemas));
};

fetch("openapi.json").then((answer) => answer.json()).then(show).catch((error) => {
  document.getElementById("operations").appendChild(element("p", `openapi.json cannot be shown: ${error}`));
});
