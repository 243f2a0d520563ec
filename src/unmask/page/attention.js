// Attention views: lines between tokens, all heads at once, one head as a matrix, and token
// importance. One set of controls for one model, or for two side by side.

import { checkbox, choice, element, newestOnly, percent, table } from "./dom.js";
import { Maps, ends } from "./maps.js";

const VIEWS = ["lines", "grid", "matrix", "importance"];
const COLOURS = ["#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f", "#1d4ed8", "#b45309", "#047857", "#b91c1c"];
const ROW = 24; // height of a token in pixels
const REMARK = "Attention is not an explanation: weights say where a head looks, not why the model answers as it does.";

/** Draw into `root`. `models` has the payloads of inspect/html.py; `ask(mute)` returns the answer with heads ablated. */
export function mountAttention(root, models, { ask = null } = {}) {
  const state = { view: "lines", layer: 0, heads: new Set([0]), hide: false, merge: false, texts: "all", token: null };
  const panels = models.map((data) => ({ data, raw: Maps.of(data) }));
  const layers = Math.min(...panels.map(({ raw }) => raw.layers));
  const heads = Math.min(...panels.map(({ raw }) => raw.heads));
  const pair = panels.every(({ raw }) => raw.segments.includes(0) && raw.segments.includes(1));
  Object.assign(state, { layers, headCount: heads }); // the layers and heads that all models have
  const controls = element("form", { class: "controls", "aria-label": "Display options", onsubmit: (event) => event.preventDefault() });
  const area = element("div", { class: "panels" });
  const set = (change) => {
    Object.assign(state, change);
    draw();
  };

  function drawControls() {
    const views = VIEWS.map((view) =>
      element("button", { type: "button", "data-key": view, "aria-pressed": String(state.view === view), onclick: () => set({ view }) }, view),
    );
    const chips = Array.from({ length: heads }, (_, head) =>
      element(
        "button",
        {
          type: "button",
          class: "chip",
          "data-key": `head-${head}`,
          "aria-pressed": String(state.heads.has(head)),
          "aria-label": `head ${head}`,
          style: `--colour: ${COLOURS[head % COLOURS.length]}`,
          onclick: () => {
            const chosen = new Set(state.heads);
            if (!chosen.delete(head)) chosen.add(head);
            set({ heads: chosen });
          },
        },
        String(head),
      ),
    );
    const all = element("button", { type: "button", "data-key": "all", onclick: () => set({ heads: new Set(state.heads.size === heads ? [0] : Array(heads).keys()) }) }, "all");
    controls.replaceChildren(
      element("div", { role: "group", "aria-label": "View" }, ...views),
      choice("layer", [...Array(layers).keys()], state.layer, (layer) => set({ layer: Number(layer) })),
      element("div", { role: "group", "aria-label": "Heads" }, "heads ", ...chips, all),
      checkbox("hide [CLS] and [SEP]", state.hide, (hide) => set({ hide, token: null })),
      checkbox("whole words", state.merge, (merge) => set({ merge, token: null })),
      ...(pair ? [choice("texts", ["all", "first to second", "second to first"], state.texts, (texts) => set({ texts, token: null }))] : []),
    );
  }

  function draw() {
    const focusedKey = document.activeElement?.dataset?.key;
    drawControls();
    const drawView = { lines, grid, matrix, importance }[state.view];
    area.replaceChildren(
      ...panels.map((panel) => {
        let maps = panel.raw;
        if (state.merge) maps = maps.merged();
        if (state.hide) maps = maps.hidden();
        return element(
          "section",
          { class: "panel", "aria-label": panel.data.model },
          element("h2", {}, panel.data.model),
          panel.data.window ? element("p", { class: "remark" }, panel.data.window) : null,
          drawView(panel, maps, state, set),
        );
      }),
    );
    if (focusedKey) [...root.querySelectorAll("[data-key]")].find((control) => control.dataset.key === focusedKey)?.focus();
  }

  root.replaceChildren(
    controls,
    area,
    element("p", { class: "remark" }, REMARK),
    ...panels.map(({ data }, n) => answerOf(data, ask && ((mute) => ask(mute, n)))),
  );
  draw();
  return { state, set };
}

function lines(panel, maps, state, set) {
  const [from, to] = ends(maps, state.texts);
  const height = Math.max(from.length, to.length) * ROW;
  const drawing = element("svg:svg", { width: 160, height, "aria-hidden": "true", viewBox: `0 0 160 ${height}`, preserveAspectRatio: "none" });
  const shown = (i) => state.token === null || state.token === i;
  const received = new Float32Array(maps.size);
  for (const head of state.heads) {
    const weights = maps.head(state.layer, head);
    from.forEach((i, row) => {
      if (!shown(i)) return;
      to.forEach((j, column) => {
        const weight = weights[i * maps.size + j];
        received[j] += weight / state.heads.size;
        if (weight < 0.02) return;
        drawing.append(
          element("svg:line", {
            x1: 0, x2: 160, y1: (row + 0.5) * ROW, y2: (column + 0.5) * ROW,
            stroke: COLOURS[head % COLOURS.length], "stroke-width": 2, "stroke-opacity": Math.sqrt(weight).toFixed(3), // as in the matrix
          }),
        );
      });
    });
  }
  const left = from.map((i) =>
    element(
      "button",
      { type: "button", class: "token", "data-key": `${panel.data.model}-from-${i}`, "aria-pressed": String(state.token === i), onclick: () => set({ token: state.token === i ? null : i }) },
      maps.tokens[i],
    ),
  );
  const right = to.map((j) => {
    const weight = state.token === null || !state.heads.size ? "" : received[j].toFixed(4);
    return element("div", { class: "token", "data-to": j }, maps.tokens[j], element("span", { class: "weight" }, weight));
  });
  return element(
    "div",
    {},
    element("p", { class: "hint" }, "Select a token on the left to see its weights, averaged over the selected heads."),
    element("div", { class: "lines" }, element("div", { class: "from" }, ...left), drawing, element("div", { class: "to" }, ...right)),
  );
}

function grid(panel, maps, state, set) {
  const ablated = panel.data.muted;
  const cells = [];
  for (let layer = 0; layer < state.layers; layer++) {
    for (let head = 0; head < state.headCount; head++) {
      const pattern = panel.data.habits?.find((entry) => entry.layer === layer && entry.head === head)?.name;
      const effect = ablated ? `ablated: ${signed(ablated[layer][head][0] - panel.data.answer.values[0])}` : null;
      const title = [pattern, effect].filter(Boolean).join("; ");
      const canvas = element("canvas", { width: maps.size, height: maps.size });
      paint(canvas, maps.head(layer, head), maps.size, maps.size);
      cells.push(
        element(
          "button",
          { type: "button", class: "cell", title, "aria-label": `layer ${layer}, head ${head}${title ? `: ${title}` : ""}`, onclick: () => set({ layer, heads: new Set([head]), view: "matrix" }) },
          canvas,
          element("small", {}, `${layer}.${head}${pattern ? ` ${pattern}` : ""}`),
        ),
      );
    }
  }
  return element("div", { class: "grid", style: `--heads: ${state.headCount}` }, ...cells);
}

function matrix(panel, maps, state) {
  const [from, to] = ends(maps, state.texts);
  const heads = [...state.heads];
  const value = (i, j) => heads.reduce((sum, head) => sum + maps.head(state.layer, head)[i * maps.size + j], 0) / (heads.length || 1);
  const values = Float32Array.from(from.flatMap((i) => to.map((j) => value(i, j))));
  const canvas = element("canvas", { width: to.length, height: from.length, tabindex: 0, role: "img", "aria-label": "Matrix of attention weights; arrow keys move between cells", style: `width: ${to.length * 18}px; height: ${from.length * 18}px` });
  paint(canvas, values, to.length, from.length);
  const output = element("output", { class: "weight", "aria-live": "polite" }, "Point at a cell or use the arrow keys to see its weight.");
  const mark = element("div", { class: "mark", hidden: true });
  let cell = [0, 0];
  const select = (row, column) => {
    if (!values.length) return;
    row = Math.min(Math.max(row, 0), from.length - 1);
    column = Math.min(Math.max(column, 0), to.length - 1);
    cell = [row, column];
    output.textContent = `${maps.tokens[from[row]]} attends to ${maps.tokens[to[column]]}: ${values[row * to.length + column].toFixed(6)}`;
    mark.hidden = false;
    mark.style.transform = `translate(${column * 18}px, ${row * 18}px)`;
  };
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    select(Math.floor(((event.clientY - box.top) / box.height) * from.length), Math.floor(((event.clientX - box.left) / box.width) * to.length));
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    select(cell[0] + step[0], cell[1] + step[1]);
  });
  return element(
    "div",
    {},
    output,
    element(
      "div",
      { class: "matrix" },
      element("div", { class: "across" }, ...to.map((j) => element("span", {}, element("i", {}, maps.tokens[j])))),
      element("div", { class: "rows" }, ...from.map((i) => element("span", {}, maps.tokens[i]))),
      element("div", { class: "field" }, canvas, mark),
    ),
  );
}

function importance(panel, maps, state) {
  // Of all tokens, even if some are merged or hidden: gradients and rollout cover the whole text.
  const raw = panel.raw;
  const measures = Object.entries(panel.data.importance);
  const maxima = measures.map(([, values]) => Math.max(...values.map(Math.abs), 1e-9));
  return table(
    ["token", ...measures.map(([name]) => name)],
    raw.tokens.map((token, i) => [
      token,
      ...measures.map(([, values], k) =>
        element(
          "span",
          { class: `bar ${values[i] < 0 ? "less" : "more"}`, style: `--share: ${Math.abs(values[i]) / maxima[k]}` },
          values[i].toFixed(4),
        ),
      ),
    ]),
  );
}

function answerOf(data, ask) {
  const { answer } = data;
  const area = element("div", {});
  const show = (ablated) =>
    area.replaceChildren(
      table(
        [answer.about, "value", ...(ablated ? ["with the heads ablated", "change"] : [])],
        answer.names.map((name, i) => [name, number(answer.values[i]), ...(ablated ? [number(ablated[i]), signed(ablated[i] - answer.values[i])] : [])]),
      ),
    );
  show(answer.without);
  const controls = data.muted || ask ? ablationControls(data, ask, show) : null;
  const title = `Prediction of ${data.model}`;
  return element("section", { class: "panel", "aria-label": title }, element("h2", {}, title), area, controls);
}

function ablationControls(data, ask, show) {
  let layer = 0, head = 0;
  const problem = element("p", { class: "wrong", role: "alert" });
  const begin = newestOnly();
  const update = async () => {
    const isNewest = begin();
    problem.textContent = "";
    try {
      const ablated = ask ? (await ask({ [layer]: [head] })).without : data.muted[layer][head];
      if (isNewest()) show(ablated);
    } catch (error) {
      if (isNewest()) problem.textContent = error.message;
    }
  };
  return element(
    "form",
    { class: "controls", "aria-label": `Ablate a head of ${data.model}`, onsubmit: (event) => event.preventDefault() },
    choice("ablate layer", [...Array(data.layers).keys()], layer, (value) => (layer = Number(value))),
    choice("head", [...Array(data.heads).keys()], head, (value) => (head = Number(value))),
    element("button", { type: "button", onclick: update }, "show the effect"),
    problem,
  );
}

function paint(canvas, values, width, height) {
  if (!width || !height) return; // every token is hidden
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    // The square root makes small weights visible. Zero is transparent, which suits both themes.
    image.data.set([37, 99, 235, Math.round(255 * Math.sqrt(Math.min(Math.max(values[i], 0), 1)))], i * 4);
  }
  context.putImageData(image, 0, 0);
}

const number = (value) => (Number.isFinite(value) ? value.toFixed(4) : "none");
const signed = (value) => `${value >= 0 ? "+" : "−"}${Math.abs(value).toFixed(4)}`;
export const shares = percent;
