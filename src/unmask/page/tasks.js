// A tab for each task that is served: a form made from the schema of its questions, and a picture
// of its answers by one of five views: labels, spans, text, number, ranking.

import { ask, stream } from "./api.js";
import { element, heat, percent, table } from "./dom.js";
import { area, asking, bars, oneOf } from "./forms.js";

const KINDS = ["#2563eb", "#d97706", "#059669", "#7c3aed", "#be185d", "#0891b2"];

/** One tab for each task, whichever models have it. */
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
  asking(panel, {
    fields: [label, ...fields.map((field) => field.label)],
    button: "Ask",
    send: async (show) => {
      const item = Object.fromEntries(fields.map((field) => [field.name, field.value()]).filter(([, value]) => value !== undefined));
      const body = { items: [item], model: picked.name };
      if (!task.generates) return drawView((await ask(`/ask/${task.name}`, body))[0].view);
      let last = element("p", { class: "verdict" }, "(nothing)");
      for await (const view of stream(`/ask/${task.name}`, { ...body, stream: true })) {
        last = drawView(view);
        if (!show(last)) break; // a newer question was asked: this one ends, on the server too
      }
      return last;
    },
  });
}

/** A field for a property of a question, by its type. */
function fieldOf(task, name, schema, required) {
  const id = `${task}-${name}`;
  const kinds = (schema.anyOf ?? [schema]).map((own) => own.type);
  const bounds = (schema.anyOf ?? [schema]).find((own) => own.type !== "null") ?? schema;
  const text = `${schema.title}${required ? "" : " (optional)"}`;
  const hint = schema.description ? element("span", { class: "hint", id: `${id}-hint` }, ` ${schema.description}`) : null;
  const described = { id, "aria-describedby": hint?.id };
  if (kinds.includes("boolean")) {
    const box = element("input", { type: "checkbox", ...described, checked: schema.default === true });
    return { name, value: () => box.checked, label: element("div", {}, box, " ", element("label", { for: id }, text), hint) };
  }
  if (kinds.includes("integer") || kinds.includes("number")) {
    const step = kinds.includes("integer") ? 1 : "any";
    const input = element("input", { type: "number", ...described, step, min: bounds.minimum, max: bounds.maximum, value: schema.default, required });
    return { name, value: () => (input.value === "" ? undefined : Number(input.value)), label: element("div", {}, element("label", { for: id }, text), " ", input, hint) };
  }
  const { field, label } = area(text, schema.examples?.[0] ?? schema.default ?? "", id);
  return { name, value: () => (required || field.value.trim() ? field.value : undefined), label };
}

const VIEWS = { labels, spans, text: written, number, ranking };

/** An answer as a person looks at it. */
export function drawView(view) {
  return VIEWS[view.kind](view);
}

function labels({ chosen, shares }) {
  const rows = Object.entries(shares).sort((a, b) => b[1] - a[1]);
  return [element("p", { class: "verdict" }, chosen.join(", ") || "no label"), bars("label", rows)];
}

function spans({ text, spans: found, note }) {
  const letters = [...text]; // places count characters, and JavaScript counts half of some
  const kinds = [...new Set(found.map((own) => own.label))];
  const parts = [];
  let at = 0;
  for (const own of [...found].sort((a, b) => a.start - b.start)) {
    const colour = KINDS[kinds.indexOf(own.label) % KINDS.length];
    parts.push(letters.slice(at, own.start).join(""));
    parts.push(element("mark", { class: "entity", style: `--colour: ${colour}`, title: percent(own.share) }, letters.slice(own.start, own.end).join(""), " ", element("small", {}, own.label)));
    at = own.end;
  }
  parts.push(letters.slice(at).join(""));
  const rows = found.map((own) => [letters.slice(own.start, own.end).join(""), own.label, percent(own.share)]);
  const listed = rows.length ? table(["found", "label", "probability"], rows) : element("p", { class: "verdict" }, note || "Nothing found.");
  return [element("p", { class: "passage" }, ...parts), listed];
}

function written({ text, score, alignment }) {
  const shown = [element("p", { class: "verdict" }, text || "(nothing)")];
  if (score !== null) shown.push(element("p", { class: "remark score" }, `score ${score.toFixed(3)}`));
  if (alignment) shown.push(element("p", { class: "remark" }, "What each word looked at, all heads together: not an explanation."), looks(alignment));
  return shown;
}

function looks({ source, target, weights }) {
  return element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Alignment" }, table(["said", ...source], target.map((word, i) => [word, ...weights[i].map(heat)])));
}

function number({ value }) {
  return [element("p", { class: "verdict" }, value.toFixed(3))];
}

function ranking({ items }) {
  return [table(["candidate", "score"], items.map((own) => [own.text, own.score.toFixed(3)]))];
}
