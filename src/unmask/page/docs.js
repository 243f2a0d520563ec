// The routes of the server, drawn from its own OpenAPI; nothing is fetched from elsewhere.

import { ask } from "./api.js";
import { element, table } from "./dom.js";

const root = document.getElementById("docs");

function resolved(schema, all) {
  const name = schema?.$ref?.split("/").pop();
  return name ? all[name] : schema;
}

function kind(schema, all) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map((one) => kind(one, all)).join(" or ");
  if (schema.enum || schema.const) return [schema.const ?? schema.enum].flat().map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `list of ${kind(schema.items, all) || "anything"}`;
  return schema.type ?? "anything";
}

function fields(schema, all) {
  const properties = Object.entries(schema?.properties ?? {});
  if (!properties.length) return null;
  return table(
    ["field", "what", "needed", "if left out", "about"],
    properties.map(([name, own]) => [
      name,
      kind(own, all),
      schema.required?.includes(name) ? "yes" : "no",
      own.default === undefined ? "" : JSON.stringify(own.default),
      own.description ?? "",
    ]),
  );
}

try {
  const api = await ask("/openapi.json");
  const all = api.components?.schemas ?? {};
  const sections = [];
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, route] of Object.entries(methods)) {
      const body = resolved(route.requestBody?.content?.["application/json"]?.schema, all);
      sections.push(
        element(
          "section",
          { class: "panel" },
          element("h2", {}, `${method.toUpperCase()} ${path}`),
          element("p", {}, route.description ?? ""),
          body ? fields(body, all) : null,
          element("p", { class: "remark" }, `answers with ${kind(route.responses?.["200"]?.content?.["application/json"]?.schema, all) || "text"}`),
        ),
      );
    }
  }
  root.replaceChildren(...sections);
} catch (error) {
  root.replaceChildren(element("p", { class: "wrong", role: "alert" }, error.message));
}
