// One function for each tab: a form, a question to the server, and its answer as a picture.

import { ask } from "./api.js";
import { mountAttention } from "./attention.js";
import { chartsOf } from "./curves.js";
import { choice, element, heat, percent, table } from "./dom.js";
import { area, asking, bars, whichModel } from "./forms.js";
import { taskTabs } from "./tasks.js";

const EVERY = 2000; // milliseconds between two looks at a run

function fill(panel, { cards }) {
  const { picked, label } = whichModel(cards, "fill");
  const text = area("Text", "The quick brown fox jumps over the lazy dog.", "fill-text");
  const words = element("div", { class: "words", role: "group", "aria-labelledby": "fill-hint" });
  const hint = element("p", { class: "hint", id: "fill-hint" }, "Click a word to hide it.");
  const { form } = asking(panel, {
    fields: [label, text.label, element("div", {}, hint, words)],
    button: "Guess what is hidden",
    send: async () => {
      const guesses = await ask("/fill", { text: text.field.value, model: picked.name, top: 8 });
      return guesses.flatMap((own, n) => [element("h2", {}, `[MASK] ${n + 1}`), bars("token", own.map((guess) => [guess.token, guess.probability]))]);
    },
  });
  const draw = () =>
    words.replaceChildren(
      ...text.field.value.split(/(\s+|(?=[.,;:!?])|(?<=\[MASK\]))/).filter((word) => word && word.trim()).map((word, n) =>
        element("button", { type: "button", class: "word", "data-word": n, disabled: word === "[MASK]", onclick: () => hide(n) }, word),
      ),
    );
  const hide = (chosen) => {
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
  const first = area("A sentence", "She opened the door.", "next-first");
  const second = area("Perhaps the one after it", "Nobody was there.", "next-second");
  asking(panel, {
    fields: [label, first.label, second.label],
    button: "Does it follow?",
    send: async () => {
      const said = await ask("/next", { first: first.field.value, second: second.field.value, model: picked.name });
      return element("p", { class: "verdict" }, `${said.follows ? "It follows" : "It does not follow"}: ${percent(said.probability)}`);
    },
  });
}

function similarity(panel, { cards }) {
  const { picked, label } = whichModel(cards, "embed");
  const text = area("Sentences, one a line", "A man plays a guitar.\nSomebody makes music.\nThe cat sleeps.", "similarity-text");
  asking(panel, {
    fields: [label, text.label],
    button: "Compare",
    send: async () => {
      const texts = text.field.value.split("\n").map((line) => line.trim()).filter(Boolean);
      const vectors = await ask("/embed", { inputs: texts, model: picked.name, truncate: true });
      const cosine = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
      return table(
        ["sentence", ...texts.map((_, n) => String(n + 1))],
        texts.map((own, i) => [
          `${i + 1}. ${own}`,
          ...texts.map((_, j) => heat(cosine(vectors[i], vectors[j]))),
        ]),
      );
    },
  });
}

function attention(panel, { cards }) {
  const { picked, label } = whichModel(cards, "attention");
  const others = ["none", ...cards.map((card) => card.name)];
  let beside = "none", start = 0;
  const text = area("Text", "The animal did not cross the street because it was too tired.", "attention-text");
  const second = area("Second text, for pairs", "", "attention-second");
  const from = element("input", { type: "number", min: 0, value: 0, id: "attention-start", onchange: () => (start = Number(from.value)) });
  asking(panel, {
    fields: [
      label,
      cards.length > 1 ? choice("beside", others, beside, (name) => (beside = name)) : null,
      text.label,
      second.label,
      element("div", {}, element("label", { for: "attention-start" }, "first token shown, of long texts"), " ", from),
    ],
    button: "Look",
    send: async () => {
      const asked = { text: text.field.value, second: second.field.value.trim() || null, start, truncate: true };
      const body = (model, mute = {}) => ({ ...asked, model, mute }); // of what was looked at, whatever is typed since
      const names = [picked.name, ...(beside === "none" ? [] : [beside])];
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
    const own = name;
    try {
      const entries = await ask(`/runs/${encodeURIComponent(own)}`);
      if (own === name) place.replaceChildren(...chartsOf(entries)); // another may be chosen by now
    } catch (error) {
      if (own === name) place.replaceChildren(element("p", { class: "wrong", role: "alert" }, error.message));
    }
  };
  panel.append(choice("run", names, name, (chosen) => { name = chosen; draw(); }), place);
  draw();
  setInterval(() => { if (!panel.hidden && !document.hidden) draw(); }, EVERY);
}

function model(panel, { cards }) {
  for (const card of cards) {
    panel.append(
      element(
        "section",
        { class: "panel" },
        element("h2", {}, card.name),
        element("p", {}, `can: ${card.can.join(", ")}`),
        element("details", {}, element("summary", {}, "settings"), table(["setting", "value"], Object.entries(card.config).map(([name, value]) => [name, JSON.stringify(value)]))),
        card.card ? element("pre", { tabindex: 0 }, card.card) : element("p", { class: "remark" }, "It has no card."),
      ),
    );
  }
}

const can = (verb) => ({ cards }) => cards.some((card) => card.can.includes(verb));

const TABS = [
  { id: "fill", name: "Fill", shown: can("fill"), draw: fill },
  { id: "next", name: "Next sentence", shown: can("next"), draw: next },
  { id: "similarity", name: "Similarity", shown: can("embed"), draw: similarity },
  { id: "attention", name: "Attention", shown: can("attention"), draw: attention },
  { id: "runs", name: "Training", shown: ({ runs: names }) => names.length > 0, draw: runs },
  { id: "model", name: "Models", shown: () => true, draw: model },
];

/** The tabs for what is served here; those of tasks stand before the more general ones. */
export function tabsOf(served) {
  const shown = TABS.filter((tab) => tab.shown(served));
  const first = shown.findIndex((tab) => tab.id === "similarity");
  return [...shown.slice(0, first), ...taskTabs(served), ...shown.slice(first)];
}
