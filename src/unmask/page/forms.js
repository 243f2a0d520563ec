// Parts that the forms of the tabs share: fields, the choice of a model, the area for the answer.

import { choice, element, newestOnly, percent, table } from "./dom.js";

/** A form that shows its answer, or an error, below it.

    `send` may show partial answers; `show` returns false if a newer request has replaced this one. */
export function askForm(panel, { fields, button, send }) {
  const output = element("div", { class: "answer" });
  const status = element("p", { class: "unseen", role: "status" });
  const begin = newestOnly();
  const setStatus = (text, className) => {
    status.textContent = text;
    status.className = className;
  };
  const form = element(
    "form",
    {
      class: "ask",
      onsubmit: async (event) => {
        event.preventDefault();
        const isNewest = begin();
        setStatus("waiting for the answer …", "hint");
        const show = (answer) => {
          if (isNewest()) output.replaceChildren(...[answer].flat());
          return isNewest();
        };
        try {
          if (!show(await send(show))) return;
          setStatus("answered", "unseen"); // for screen readers
        } catch (error) {
          if (!isNewest()) return;
          output.replaceChildren(element("p", { class: "wrong", role: "alert" }, error.message));
          setStatus("", "unseen");
        }
      },
    },
    ...fields,
    element("button", {}, button),
  );
  panel.append(form, status, output);
  return { form, output };
}

export function area(label, value, id) {
  const field = element("textarea", { id, rows: 3 });
  field.value = value;
  return { field, label: element("div", {}, element("label", { for: id }, label), field) };
}

/** The models that support a capability; a choice if there are several. */
export function whichModel(cards, capability) {
  return oneOf(cards.filter((card) => card.can.includes(capability)).map((card) => card.name));
}

/** One of these models; a choice if there are several. */
export function oneOf(names) {
  const picked = { name: names[0] };
  return { picked, label: names.length > 1 ? choice("model", names, names[0], (name) => (picked.name = name)) : null };
}

export function bars(header, rows) {
  const largest = Math.max(...rows.map(([, share]) => share), 1e-9);
  return table([header, "probability"], rows.map(([name, share]) => [name, element("span", { class: "bar more", style: `--share: ${share / largest}` }, percent(share))]));
}
