// The curves of a training run, redrawn while it is running.

import { element } from "./dom.js";

const SMOOTH = 20; // points of the running mean of the metrics of training steps
const WIDTH = 560, HEIGHT = 240, LEFT = 56, BOTTOM = 28;

/** Lines over steps: [{name, points: [[x, y], ...]}]. */
export function chart(title, lines) {
  const points = lines.flatMap((line) => line.points);
  if (!points.length) return element("p", { class: "remark" }, `${title}: no data yet.`);
  const [x0, x1] = range(points.map(([x]) => x));
  const [y0, y1] = range(points.map(([, y]) => y));
  const across = (x) => LEFT + ((x - x0) / (x1 - x0 || 1)) * (WIDTH - LEFT - 8);
  const up = (y) => HEIGHT - BOTTOM - ((y - y0) / (y1 - y0 || 1)) * (HEIGHT - BOTTOM - 8);
  const colours = ["#2563eb", "#d97706", "#059669", "#dc2626"];
  const marks = [0, 1, 2, 3].flatMap((n) => {
    const y = y0 + ((y1 - y0) * n) / 3;
    return [
      element("svg:line", { x1: LEFT, x2: WIDTH - 8, y1: up(y), y2: up(y), stroke: "currentColor", "stroke-opacity": 0.15 }),
      element("svg:text", { x: LEFT - 6, y: up(y) + 4, "text-anchor": "end", "font-size": 12, fill: "currentColor" }, short(y)),
    ];
  });
  const steps = [x0, x1].map((x, n) =>
    element("svg:text", { x: across(x), y: HEIGHT - 8, "text-anchor": n ? "end" : "start", "font-size": 12, fill: "currentColor" }, `step ${short(x)}`),
  );
  const drawn = lines.map((line, n) =>
    element("svg:polyline", {
      points: line.points.map(([x, y]) => `${across(x).toFixed(1)},${up(y).toFixed(1)}`).join(" "),
      fill: "none", stroke: colours[n % colours.length], "stroke-width": 2,
    }),
  );
  const legend = lines.flatMap((line, n) =>
    line.points.length ? [element("span", { class: "legend", style: `--colour: ${colours[n % colours.length]}` }, `${line.name}: ${short(line.points.at(-1)[1])}`)] : [],
  );
  return element(
    "figure",
    {},
    element("figcaption", {}, title, " ", ...legend),
    element("svg:svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}, ${legend.map((label) => label.textContent).join(", ")}` }, ...marks, ...steps, ...drawn),
  );
}

/** The charts of a run's entries. */
export function chartsOf(entries) {
  const series = (kind, name) => entries.filter((entry) => entry.kind === kind && Number.isFinite(entry[name])).map((entry) => [entry.step, entry[name]]);
  const trained = (name) => smooth(series("train", name));
  const terms = Object.keys(entries.findLast((entry) => entry.targets)?.targets ?? {});
  const main = terms[0] ?? "loss";
  const lossKey = (kind) => (series(kind, main).length ? main : "loss");
  const charts = [chart("Loss", [{ name: "training", points: trained(lossKey("train")) }, { name: "held out", points: series("eval", lossKey("eval")) }])];
  const scores = [...new Set(entries.filter((entry) => entry.kind === "eval").flatMap((entry) => Object.keys(entry)))].filter((name) => /accuracy|f1|exact|spearman|matthews/.test(name) && !name.startsWith("unigram"));
  for (const name of scores) charts.push(chart(name.replaceAll("_", " "), [{ name: "held out", points: series("eval", name) }]));
  charts.push(chart("Tokens per second", [{ name: "training", points: trained("tokens_per_second") }]));
  return charts;
}

/** The running mean over `SMOOTH` points, because single steps are noisy. */
function smooth(points) {
  return points.map(([x], i) => {
    const recent = points.slice(Math.max(0, i - SMOOTH + 1), i + 1);
    return [x, recent.reduce((sum, [, y]) => sum + y, 0) / recent.length];
  });
}

/** The smallest and the largest value; a flat line is drawn in the middle. */
function range(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return low < high ? [low, high] : [low - 0.5, high + 0.5];
}

function short(value) {
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(3)).toString();
}
