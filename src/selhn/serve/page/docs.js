// The page about the API, made from its own description.
import { $, el } from "./dom.js";

const described = await (await fetch("/api/v1/openapi.json")).json();
const resolve = (schema) => schema?.$ref ? described.components.schemas[schema.$ref.split("/").at(-1)] : schema ?? {};

function kind(schema) {
  if (schema?.$ref) return schema.$ref.split("/").at(-1);
  if (schema?.anyOf) return schema.anyOf.map(kind).filter((one) => one !== "null").join(" or ");
  if (schema?.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" or ");
  if (schema?.type === "array") return `list of ${kind(schema.items)}`;
  return schema?.type ?? "anything";
}

// The fields of an object, or of the objects in a list.
function inside(schema) {
  const inner = resolve(schema?.type === "array" ? schema.items : schema?.additionalProperties ?? schema);
  return inner?.properties ? `of ${Object.keys(inner.properties).join(", ")}` : "";
}

function table(rows) {
  return el("table", {}, el("tbody", {}, ...rows.map(([name, type, words]) =>
    el("tr", {}, el("td", {}, el("code", {}, name)), el("td", {}, type), el("td", {}, words ?? "")))));
}

function example(method, path, { parameters = [], requestBody }) {
  const needed = parameters.filter((one) => one.required || (path.endsWith("/search") && method === "get" && one.name === "text"));
  const words = needed.map((one) => `${one.name}=${one.name === "text" ? "two+dogs" : one.name.toUpperCase()}`).join("&");
  const parts = ["curl"];
  if (method !== "get") parts.push(`-X ${method.toUpperCase()}`);
  const kinds = Object.keys(requestBody?.content ?? {});
  if (kinds.includes("image/*")) parts.push("-H 'Content-Type: image/jpeg' --data-binary @photo.jpg");
  else if (kinds.length) parts.push("-H 'Content-Type: application/json' -d '{\"captions\": [\"two dogs\"]}'");
  parts.push(`'${location.origin}${path}${words ? `?${words}` : ""}'`);
  return parts.join(" ");
}

function route(path, method, operation) {
  const made = el("article", {}, el("h3", {}, el("b", {}, method.toUpperCase()), path), el("p", {}, (operation.description ?? "").replaceAll("`", "")));
  const parameters = operation.parameters ?? [];
  if (parameters.length) made.append(table(parameters.map((one) => {
    const given = one.schema?.default;
    const type = kind(one.schema) + (one.required ? "" : given === undefined || given === null ? ", optional" : `, default ${given}`);
    return [one.name, type, one.description ?? one.schema?.description];
  })));
  const answer = resolve(operation.responses?.["200"]?.content?.["application/json"]?.schema ?? operation.responses?.["201"]?.content?.["application/json"]?.schema);
  const shape = resolve(answer.type === "array" ? answer.items : answer);
  if (shape.properties) made.append(el("p", { class: "fine" }, `Answers ${answer.type === "array" ? "a list of" : "with"}:`),
    table(Object.entries(shape.properties).map(([name, schema]) => [name, kind(schema), schema.description ?? inside(schema)])));
  made.append(el("pre", {}, example(method, path, operation)));
  return made;
}

$("about").textContent = described.info.description;
const sections = new Map();
for (const [path, methods] of Object.entries(described.paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    const name = operation.tags?.[0] ?? "other";
    sections.set(name, [...sections.get(name) ?? [], route(path, method, operation)]);
  }
}
$("routes").replaceChildren(...[...sections].flatMap(([name, articles]) => [el("h2", {}, name[0].toUpperCase() + name.slice(1)), ...articles]));
