// A tab for each served task: a form made from the schema of its questions, and one of five views of
// its answers: labels, spans, text, number, ranking.

import { ask, stream } from "./api.js";
import { element, heat, percent, table } from "./dom.js";
import { area, askForm, bars, oneOf } from "./forms.js";

const COLOURS = ["#2563eb", "#d97706", "#059669", "#7c3aed", "#be185d", "#0891b2"];

/** One tab for each task, with all models that support it. */
export function taskTabs({ cards }) {
  const tasks = new Map();
  for (const { name, task } of cards) {
    if (!task) continue;
    if (!tasks.has(task.name)) tasks.set(task.name, { task, models: [] });
    tasks.get(task.name).models.push(name);
  }
  return [...tasks.values()].map(({ task, models }) => ({
    id: task.name,
    name: task.title,
    draw: (panel) => drawTask(panel, task, models),
  }));
}

function drawTask(panel, task, models) {
  const { picked, label } = oneOf(models);
  const required = task.ask.required ?? [];
  const fields = Object.entries(task.ask.properties).map(([name, schema]) => fieldOf(task.name, name, schema, required.includes(name)));
  askForm(panel, {
    fields: [label, ...fields.map((field) => field.label)],
    button: "Ask",
    send: async (show) => {
      const item = Object.fromEntries(fields.map((field) => [field.name, field.value()]).filter(([, value]) => value !== undefined));
      const body = { items: [item], model: picked.name };
      if (!task.generates) return drawView((await ask(`/ask/${task.name}`, body))[0].view);
      let last = element("p", { class: "verdict" }, "(nothing)");
      for await (const view of stream(`/ask/${task.name}`, { ...body, stream: true })) {
        last = drawView(view);
        if (!show(last)) break; // a newer question replaces this one: cancel it, on the server too
      }
      return last;
    },
  });
}

/** A form field for a property of a question, chosen by its type. */
function fieldOf(task, name, schema, required) {
  const id = `${task}-${name}`;
  const types = (schema.anyOf ?? [schema]).map((option) => option.type);
  const bounds = (schema.anyOf ?? [schema]).find((option) => option.type !== "null") ?? schema;
  const text = `${schema.title}${required ? "" : " (optional)"}`;
  const hint = schema.description ? element("span", { class: "hint", id: `${id}-hint` }, ` ${schema.description}`) : null;
  const attributes = { id, "aria-describedby": hint?.id };
  if (types.includes("boolean")) {
    const box = element("input", { type: "checkbox", ...attributes, checked: schema.default === true });
    return { name, value: () => box.checked, label: element("div", {}, box, " ", element("label", { for: id }, text), hint) };
  }
  if (types.includes("integer") || types.includes("number")) {
    const step = types.includes("integer") ? 1 : "any";
    const input = element("input", { type: "number", ...attributes, step, min: bounds.minimum, max: bounds.maximum, value: schema.default, required });
    return { name, value: () => (input.value === "" ? undefined : Number(input.value)), label: element("div", {}, element("label", { for: id }, text), " ", input, hint) };
  }
  const { field, label } = area(text, schema.examples?.[0] ?? schema.default ?? "", id);
  return { name, value: () => (required || field.value.trim() ? field.value : undefined), label };
}

const VIEWS = { labels, spans, text: generated, number, ranking };

/** Draw an answer by the kind of its view. */
export function drawView(view) {
  return VIEWS[view.kind](view);
}

function labels({ chosen, shares }) {
  const rows = Object.entries(shares).sort((a, b) => b[1] - a[1]);
  return [element("p", { class: "verdict" }, chosen.join(", ") || "no label"), bars("label", rows)];
}

function spans({ text, spans: entities, note }) {
  const characters = [...text]; // offsets count code points; JavaScript counts UTF-16 units
  const labels = [...new Set(entities.map((entity) => entity.label))];
  const parts = [];
  let end = 0;
  for (const entity of [...entities].sort((a, b) => a.start - b.start)) {
    const colour = COLOURS[labels.indexOf(entity.label) % COLOURS.length];
    parts.push(characters.slice(end, entity.start).join(""));
    parts.push(element("mark", { class: "entity", style: `--colour: ${colour}`, title: percent(entity.share) }, characters.slice(entity.start, entity.end).join(""), " ", element("small", {}, entity.label)));
    end = entity.end;
  }
  parts.push(characters.slice(end).join(""));
  const rows = entities.map(({ start, end: stop, label, share }) => [characters.slice(start, stop).join(""), label, percent(share)]);
  const list = rows.length ? table(["text", "label", "probability"], rows) : element("p", { class: "verdict" }, note || "Nothing found.");
  return [element("p", { class: "passage" }, ...parts), list];
}

function generated({ text, score, alignment }) {
  const shown = [element("p", { class: "verdict" }, text || "(nothing)")];
  if (score !== null) shown.push(element("p", { class: "remark score" }, `score ${score.toFixed(3)}`));
  if (alignment) shown.push(element("p", { class: "remark" }, "Attention of each target word to the source words, averaged over all heads. It is not an explanation."), alignmentTable(alignment));
  return shown;
}

function alignmentTable({ source, target, weights }) {
  return element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Alignment" }, table(["target", ...source], target.map((word, i) => [word, ...weights[i].map(heat)])));
}

function number({ value }) {
  return [element("p", { class: "verdict" }, value.toFixed(3))];
}

function ranking({ items }) {
  return [table(["candidate", "score"], items.map((item) => [item.text, item.score.toFixed(3)]))];
}
