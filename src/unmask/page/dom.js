// Elements in one call. Text is only ever set as text: nothing that a user or a model wrote can
// become markup.

export function element(name, attributes = {}, ...children) {
  const made = name.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4))
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") made.style.cssText = value; // as an attribute the server's policy bars it
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

let made = 0; // choices so far: each has an id of its own

/** A labelled choice; `pick` is called with the chosen name. */
export function choice(label, names, chosen, pick) {
  const id = `choice-${++made}`;
  const select = element(
    "select",
    { id, "data-key": label, onchange: () => pick(select.value) },
    ...names.map((name) => element("option", { value: name, selected: String(name) === String(chosen) }, String(name))),
  );
  return element("span", {}, element("label", { for: id }, label), " ", select);
}

export function tick(label, ticked, pick) {
  const box = element("input", { type: "checkbox", "data-key": label, checked: ticked, onchange: () => pick(box.checked) });
  return element("label", {}, box, " ", label);
}

export function table(heads, rows) {
  return element(
    "table",
    {},
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, cell))))),
  );
}

/** A number as a cell whose colour says how much it is of 1. */
export function heat(share) {
  return element("span", { class: "heat", style: `--share: ${Math.max(share, 0)}` }, share.toFixed(2));
}

/** Number overlapping requests: `const isNewest = begin()`, then draw only if `isNewest()`. */
export function newestOnly() {
  let begun = 0;
  return () => {
    const own = ++begun;
    return () => own === begun;
  };
}

export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
