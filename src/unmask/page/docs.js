// The server's API routes, drawn from its own OpenAPI schema; nothing is fetched from other hosts.

import { ask } from "./api.js";
import { element, table } from "./dom.js";

const root = document.getElementById("docs");

function resolve(schema, schemas) {
  const name = schema?.$ref?.split("/").pop();
  return name ? schemas[name] : schema;
}

function typeName(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeName).join(" or ");
  if (schema.enum || schema.const) return [schema.const ?? schema.enum].flat().map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `list of ${typeName(schema.items) || "anything"}`;
  return schema.type ?? "anything";
}

function fields(schema) {
  const properties = Object.entries(schema?.properties ?? {});
  if (!properties.length) return null;
  return table(
    ["field", "type", "required", "default", "description"],
    properties.map(([name, property]) => [
      name,
      typeName(property),
      schema.required?.includes(name) ? "yes" : "no",
      property.default === undefined ? "" : JSON.stringify(property.default),
      property.description ?? "",
    ]),
  );
}

try {
  const api = await ask("/openapi.json");
  const schemas = api.components?.schemas ?? {};
  const sections = [];
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, route] of Object.entries(methods)) {
      const body = resolve(route.requestBody?.content?.["application/json"]?.schema, schemas);
      sections.push(
        element(
          "section",
          { class: "panel" },
          element("h2", {}, `${method.toUpperCase()} ${path}`),
          element("p", {}, route.description ?? ""),
          body ? fields(body) : null,
          element("p", { class: "remark" }, `returns ${typeName(route.responses?.["200"]?.content?.["application/json"]?.schema) || "text"}`),
        ),
      );
    }
  }
  root.replaceChildren(...sections);
} catch (error) {
  root.replaceChildren(element("p", { class: "wrong", role: "alert" }, error.message));
}
