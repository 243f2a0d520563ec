// What the forms of the tabs have in common: fields, the model that is asked, the place of the answer.

import { choice, element, newestOnly, percent, table } from "./dom.js";

/** A form whose answer, or whose refusal, is shown below it.

    `send` may show an answer before it is complete; it hears if nobody waits for it any more. */
export function asking(panel, { fields, button, send }) {
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
        const show = (answer) => {
          if (isNewest()) output.replaceChildren(...[answer].flat());
          return isNewest();
        };
        try {
          if (!show(await send(show))) return;
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

export function area(label, value, id) {
  const field = element("textarea", { id, rows: 3 });
  field.value = value;
  return { field, label: element("div", {}, element("label", { for: id }, label), field) };
}

/** Those models that can; a choice if there are several. */
export function whichModel(cards, verb) {
  return oneOf(cards.filter((card) => card.can.includes(verb)).map((card) => card.name));
}

/** One of some models; a choice if there are several. */
export function oneOf(names) {
  const picked = { name: names[0] };
  return { picked, label: names.length > 1 ? choice("model", names, names[0], (name) => (picked.name = name)) : null };
}

export function bars(what, rows) {
  const most = Math.max(...rows.map(([, share]) => share), 1e-9);
  return table([what, "share"], rows.map(([name, share]) => [name, element("span", { class: "bar more", style: `--share: ${share / most}` }, percent(share))]));
}
