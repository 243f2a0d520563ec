// One function for each tab: a form, a request to the server, and a view of its response.

import { ask } from "./api.js";
import { mountAttention } from "./attention.js";
import { chartsOf } from "./curves.js";
import { choice, element, heat, percent, table } from "./dom.js";
import { area, askForm, bars, whichModel } from "./forms.js";
import { taskTabs } from "./tasks.js";

const REFRESH = 2000; // milliseconds between two requests for a run's metrics

function fill(panel, { cards }) {
  const { picked, label } = whichModel(cards, "fill");
  const text = area("Text", "The quick brown fox jumps over the lazy dog.", "fill-text");
  const words = element("div", { class: "words", role: "group", "aria-labelledby": "fill-hint" });
  const hint = element("p", { class: "hint", id: "fill-hint" }, "Click a word to mask it.");
  const { form } = askForm(panel, {
    fields: [label, text.label, element("div", {}, hint, words)],
    button: "Predict masked tokens",
    send: async () => {
      const masks = await ask("/fill", { text: text.field.value, model: picked.name, top: 8 });
      return masks.flatMap((predictions, n) => [element("h2", {}, `[MASK] ${n + 1}`), bars("token", predictions.map(({ token, probability }) => [token, probability]))]);
    },
  });
  const draw = () =>
    words.replaceChildren(
      ...text.field.value.split(/(\s+|(?=[.,;:!?])|(?<=\[MASK\]))/).filter((word) => word && word.trim()).map((word, n) =>
        element("button", { type: "button", class: "word", "data-word": n, disabled: word === "[MASK]", onclick: () => mask(n) }, word),
      ),
    );
  const mask = (chosen) => {
    let n = -1;
    const parts = text.field.value.split(/(\s+|(?=[.,;:!?])|(?<=\[MASK\]))/).filter((word) => word !== undefined && word !== "");
    text.field.value = parts.map((word) => (word.trim() && ++n === chosen ? "[MASK]" : word)).join("");
    draw();
    words.children[chosen + 1]?.focus();
    form.requestSubmit();
  };
  text.field.addEventListener("input", draw);
  draw();
}

function next(panel, { cards }) {
  const { picked, label } = whichModel(cards, "next");
  const first = area("First sentence", "She opened the door.", "next-first");
  const second = area("Second sentence", "Nobody was there.", "next-second");
  askForm(panel, {
    fields: [label, first.label, second.label],
    button: "Does it follow?",
    send: async () => {
      const prediction = await ask("/next", { first: first.field.value, second: second.field.value, model: picked.name });
      return element("p", { class: "verdict" }, `${prediction.follows ? "It follows" : "It does not follow"}: probability ${percent(prediction.probability)}`);
    },
  });
}

function similarity(panel, { cards }) {
  const { picked, label } = whichModel(cards, "embed");
  const text = area("Sentences, one per line", "A man plays a guitar.\nSomebody makes music.\nThe cat sleeps.", "similarity-text");
  askForm(panel, {
    fields: [label, text.label],
    button: "Compare",
    send: async () => {
      const texts = text.field.value.split("\n").map((line) => line.trim()).filter(Boolean);
      const vectors = await ask("/embed", { inputs: texts, model: picked.name, truncate: true });
      const cosine = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
      return table(
        ["sentence", ...texts.map((_, n) => String(n + 1))],
        texts.map((sentence, i) => [
          `${i + 1}. ${sentence}`,
          ...texts.map((_, j) => heat(cosine(vectors[i], vectors[j]))),
        ]),
      );
    },
  });
}

function attention(panel, { cards }) {
  const { picked, label } = whichModel(cards, "attention");
  const others = ["none", ...cards.map((card) => card.name)];
  let other = "none", start = 0;
  const text = area("Text", "The animal did not cross the street because it was too tired.", "attention-text");
  const second = area("Second text, for pairs", "", "attention-second");
  const from = element("input", { type: "number", min: 0, value: 0, id: "attention-start", onchange: () => (start = Number(from.value)) });
  askForm(panel, {
    fields: [
      label,
      cards.length > 1 ? choice("compare with", others, other, (name) => (other = name)) : null,
      text.label,
      second.label,
      element("div", {}, element("label", { for: "attention-start" }, "first token to show, for long texts"), " ", from),
    ],
    button: "Show attention",
    send: async () => {
      const question = { text: text.field.value, second: second.field.value.trim() || null, start, truncate: true };
      const body = (model, mute = {}) => ({ ...question, model, mute }); // what was submitted, not what is typed since
      const names = [picked.name, ...(other === "none" ? [] : [other])];
      const payloads = await Promise.all(names.map((name) => ask("/attention", body(name))));
      const place = element("div", { class: "look" });
      mountAttention(place, payloads, { ask: async (mute, n = 0) => (await ask("/attention", body(names[n], mute))).answer });
      return place;
    },
  });
}

function runs(panel, { runs: names }) {
  let name = names[0];
  const place = element("div", { class: "charts", "aria-live": "off" });
  const draw = async () => {
    const requested = name;
    try {
      const entries = await ask(`/runs/${encodeURIComponent(requested)}`);
      if (requested === name) place.replaceChildren(...chartsOf(entries)); // another run may be selected by now
    } catch (error) {
      if (requested === name) place.replaceChildren(element("p", { class: "wrong", role: "alert" }, error.message));
    }
  };
  panel.append(choice("run", names, name, (chosen) => { name = chosen; draw(); }), place);
  draw();
  setInterval(() => { if (!panel.hidden && !document.hidden) draw(); }, REFRESH);
}

function model(panel, { cards }) {
  for (const card of cards) {
    panel.append(
      element(
        "section",
        { class: "panel" },
        element("h2", {}, card.name),
        element("p", {}, `capabilities: ${card.can.join(", ")}`),
        element("details", {}, element("summary", {}, "settings"), table(["setting", "value"], Object.entries(card.config).map(([name, value]) => [name, JSON.stringify(value)]))),
        card.card ? element("pre", { tabindex: 0 }, card.card) : element("p", { class: "remark" }, "This model has no model card."),
      ),
    );
  }
}

const supports = (capability) => ({ cards }) => cards.some((card) => card.can.includes(capability));

const TABS = [
  { id: "fill", name: "Fill", shown: supports("fill"), draw: fill },
  { id: "next", name: "Next sentence", shown: supports("next"), draw: next },
  { id: "similarity", name: "Similarity", shown: supports("embed"), draw: similarity },
  { id: "attention", name: "Attention", shown: supports("attention"), draw: attention },
  { id: "runs", name: "Training", shown: ({ runs: names }) => names.length > 0, draw: runs },
  { id: "model", name: "Models", shown: () => true, draw: model },
];

/** The tabs for the served models; those of tasks come before the more general ones. */
export function tabsOf(served) {
  const shown = TABS.filter((tab) => tab.shown(served));
  const first = shown.findIndex((tab) => tab.id === "similarity");
  return [...shown.slice(0, first), ...taskTabs(served), ...shown.slice(first)];
}
