// Elements in one call. Text is only ever set as text: nothing that a user or a model wrote can
// become markup.

export function element(name, attributes = {}, ...children) {
  const node = name.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4))
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") node.style.cssText = value; // the server's policy forbids the attribute
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

let choiceCount = 0; // choices so far, for unique ids

/** A labelled choice; `pick` is called with the chosen name. */
export function choice(label, names, chosen, pick) {
  const id = `choice-${++choiceCount}`;
  const select = element(
    "select",
    { id, "data-key": label, onchange: () => pick(select.value) },
    ...names.map((name) => element("option", { value: name, selected: String(name) === String(chosen) }, String(name))),
  );
  return element("span", {}, element("label", { for: id }, label), " ", select);
}

export function checkbox(label, checked, pick) {
  const box = element("input", { type: "checkbox", "data-key": label, checked, onchange: () => pick(box.checked) });
  return element("label", {}, box, " ", label);
}

export function table(headers, rows) {
  return element(
    "table",
    {},
    element("thead", {}, element("tr", {}, ...headers.map((header) => element("th", { scope: "col" }, header)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, cell))))),
  );
}

/** A table cell for a number from 0 to 1, coloured by its value. */
export function heat(share) {
  return element("span", { class: "heat", style: `--share: ${Math.max(share, 0)}` }, share.toFixed(2));
}

/** Number overlapping requests: `const isNewest = begin()`, then draw only if `isNewest()`. */
export function newestOnly() {
  let newest = 0;
  return () => {
    const number = ++newest;
    return () => number === newest;
  };
}

export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
