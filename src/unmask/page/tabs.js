// One function for each tab: a form, a question to the server, and its answer as a picture.

import { ask } from "./api.js";
import { mountAttention } from "./attention.js";
import { chartsOf } from "./curves.js";
import { choice, element, newestOnly, percent, table } from "./dom.js";

const EVERY = 2000; // milliseconds between two looks at a run
const KINDS = ["#2563eb", "#d97706", "#059669", "#7c3aed", "#be185d", "#0891b2"];

/** A form whose answer, or whose refusal, is shown below it. */
function asking(panel, { fields, button, send }) {
  const output = element("div", { class: "answer" });
  const status = element("p", { class: "unseen", role: "status" });
  const begin = newestOnly();
  const say = (text, kind) => {
    status.textContent = text;
    status.className = kind;
  };
  const form = element(
    "form",
    {
      class: "ask",
      onsubmit: async (event) => {
        event.preventDefault();
        const isNewest = begin();
        say("asking …", "hint");
        try {
          const answer = await send();
          if (!isNewest()) return;
          output.replaceChildren(...[answer].flat());
          say("answered", "unseen"); // who sees the answer need not be told
        } catch (error) {
          if (!isNewest()) return;
          output.replaceChildren(element("p", { class: "wrong", role: "alert" }, error.message));
          say("", "unseen");
        }
      },
    },
    ...fields,
    element("button", {}, button),
  );
  panel.append(form, status, output);
  return { form, output };
}

function area(label, value, id) {
  const field = element("textarea", { id, rows: 3 });
  field.value = value;
  return { field, label: element("div", {}, element("label", { for: id }, label), field) };
}

/** Those models that can; a choice if there are several. */
function whichModel(cards, verb) {
  const names = cards.filter((card) => card.can.includes(verb)).map((card) => card.name);
  const picked = { name: names[0] };
  return { picked, label: names.length > 1 ? choice("model", names, names[0], (name) => (picked.name = name)) : null };
}

function bars(what, rows) {
  const most = Math.max(...rows.map(([, share]) => share), 1e-9);
  return table([what, "share"], rows.map(([name, share]) => [name, element("span", { class: "bar more", style: `--share: ${share / most}` }, percent(share))]));
}

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

function classify(panel, { cards }) {
  const { picked, label } = whichModel(cards, "classify");
  const text = area("Text", "A warm, funny and moving film.", "classify-text");
  const second = area("Second text, for pairs", "", "classify-second");
  asking(panel, {
    fields: [label, text.label, second.label],
    button: "Classify",
    send: async () => {
      const item = second.field.value.trim() ? [text.field.value, second.field.value] : text.field.value;
      const [found] = await ask("/classify", { texts: [item], model: picked.name });
      return [element("p", { class: "verdict" }, found.labels.join(", ") || "no label"), bars("label", Object.entries(found.probabilities).sort((a, b) => b[1] - a[1]))];
    },
  });
}

function score(panel, { cards }) {
  const { picked, label } = whichModel(cards, "score");
  const text = area("Text", "A man plays a guitar.", "score-text");
  const second = area("Second text", "Somebody makes music.", "score-second");
  asking(panel, {
    fields: [label, text.label, second.label],
    button: "Score",
    send: async () => {
      const item = second.field.value.trim() ? [text.field.value, second.field.value] : text.field.value;
      const [found] = await ask("/score", { texts: [item], model: picked.name });
      return element("p", { class: "verdict" }, found.toFixed(3));
    },
  });
}

function answer(panel, { cards }) {
  const { picked, label } = whichModel(cards, "answer");
  const question = area("Question", "Who wrote the book?", "answer-question");
  const context = area("Passage", "The book was written by Ada in the spring of 1843.", "answer-context");
  asking(panel, {
    fields: [label, question.label, context.label],
    button: "Find the answer",
    send: async () => {
      const passage = context.field.value;
      const found = await ask("/answer", { question: question.field.value, context: passage, model: picked.name });
      const letters = [...passage];
      const shown = found.text
        ? [letters.slice(0, found.start).join(""), element("mark", {}, letters.slice(found.start, found.end).join("")), letters.slice(found.end).join("")]
        : [passage];
      return [
        element("p", { class: "verdict" }, found.text ? `${found.text} (${percent(found.probability)})` : "The passage does not answer it."),
        element("p", { class: "passage" }, ...shown),
        table(["what else it may be", "probability"], found.candidates.map((own) => [own.text || "(no answer)", percent(own.probability)])),
      ];
    },
  });
}

function entities(panel, { cards }) {
  const { picked, label } = whichModel(cards, "entities");
  const text = area("Text", "Ada Lovelace met Charles Babbage in London.", "entities-text");
  asking(panel, {
    fields: [label, text.label],
    button: "Find names",
    send: async () => {
      const letters = [...text.field.value]; // as sent: it may be edited before the answer comes
      const [found] = await ask("/entities", { texts: [letters.join("")], model: picked.name });
      const kinds = [...new Set(found.entities.map((own) => own.label))];
      const parts = [];
      let at = 0;
      for (const own of found.entities) {
        parts.push(letters.slice(at, own.start).join(""));
        parts.push(element("mark", { class: "entity", style: `--colour: ${KINDS[kinds.indexOf(own.label) % KINDS.length]}` }, letters.slice(own.start, own.end).join(""), " ", element("small", {}, own.label)));
        at = own.end;
      }
      parts.push(letters.slice(at).join(""));
      return [element("p", { class: "passage" }, ...parts), found.entities.length ? null : element("p", {}, "No name found.")].filter(Boolean);
    },
  });
}

function translate(panel, { cards }) {
  const { picked, label } = whichModel(cards, "translate");
  const text = area("Text", "Ein Hund rennt über eine Wiese.", "translate-text");
  const beams = element("input", { type: "number", min: 1, max: 8, value: 4, id: "translate-beams" });
  asking(panel, {
    fields: [label, text.label, element("div", {}, element("label", { for: "translate-beams" }, "beams"), " ", beams)],
    button: "Translate",
    send: async () => {
      const [found] = await ask("/translate", { texts: [text.field.value], beams: Number(beams.value), alignment: true, model: picked.name });
      const shown = [element("p", { class: "verdict" }, found.text || "(nothing)")];
      if (!found.alignment) return shown;
      const { source, target, weights } = found.alignment;
      const heat = (share) => element("span", { class: "heat", style: `--share: ${share}` }, share.toFixed(2));
      const rows = target.map((word, i) => [word, ...weights[i].map(heat)]);
      return [...shown, element("p", { class: "remark" }, "What each word looked at, all heads together: not an explanation."), table(["said", ...source], rows)];
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
          ...texts.map((_, j) => {
            const near = cosine(vectors[i], vectors[j]);
            return element("span", { class: "heat", style: `--share: ${Math.max(near, 0)}` }, near.toFixed(2));
          }),
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

export const TABS = [
  { id: "fill", name: "Fill", shown: can("fill"), draw: fill },
  { id: "next", name: "Next sentence", shown: can("next"), draw: next },
  { id: "classify", name: "Classify", shown: can("classify"), draw: classify },
  { id: "score", name: "Score", shown: can("score"), draw: score },
  { id: "answer", name: "Answer", shown: can("answer"), draw: answer },
  { id: "entities", name: "Names", shown: can("entities"), draw: entities },
  { id: "translate", name: "Translate", shown: can("translate"), draw: translate },
  { id: "similarity", name: "Similarity", shown: can("embed"), draw: similarity },
  { id: "attention", name: "Attention", shown: can("attention"), draw: attention },
  { id: "runs", name: "Training", shown: ({ runs: names }) => names.length > 0, draw: runs },
  { id: "model", name: "Models", shown: () => true, draw: model },
];
