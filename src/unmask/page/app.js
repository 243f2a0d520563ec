// The page: one tab for each capability of the served models.

import { Refusal, ask, keepToken } from "./api.js";
import { element } from "./dom.js";
import { tabsOf } from "./tabs.js";

const root = document.getElementById("app");

async function start() {
  try {
    const [cards, runs] = await Promise.all([ask("/cards"), ask("/runs")]);
    show(cards, runs);
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) askForToken();
    else root.replaceChildren(element("p", { class: "wrong", role: "alert" }, error.message));
  }
}

let rejected = false; // a token was entered before, and refused

function askForToken() {
  const field = element("input", { id: "token", type: "password", autocomplete: "off", required: true });
  const form = element(
    "form",
    { class: "controls", onsubmit: (event) => { event.preventDefault(); rejected = true; keepToken(field.value); start(); } },
    element("label", { for: "token" }, "This server needs a token"),
    field,
    element("button", {}, "Continue"),
    rejected ? element("p", { class: "wrong", role: "alert" }, "This token is wrong. Enter another one.") : null,
  );
  root.replaceChildren(form);
  field.focus();
}

function show(cards, runs) {
  const tabs = tabsOf({ cards, runs });
  const list = element("div", { role: "tablist", class: "tabs", "aria-label": "Capabilities" });
  const panels = element("div", {});
  const buttons = tabs.map((tab, n) => {
    const panel = element("section", { role: "tabpanel", id: `panel-${tab.id}`, "aria-labelledby": `tab-${tab.id}`, hidden: true });
    const button = element("button", { role: "tab", id: `tab-${tab.id}`, "aria-controls": panel.id, "aria-selected": "false", tabindex: -1, onclick: () => choose(n) }, tab.name);
    panels.append(panel);
    list.append(button);
    return { tab, button, panel, drawn: false };
  });

  function choose(n, focus = false) {
    buttons.forEach(({ button, panel }, i) => {
      button.setAttribute("aria-selected", String(i === n));
      button.tabIndex = i === n ? 0 : -1;
      panel.hidden = i !== n;
    });
    const chosen = buttons[n];
    if (!chosen.drawn) {
      chosen.drawn = true;
      chosen.tab.draw(chosen.panel, { cards, runs });
    }
    if (focus) chosen.button.focus();
    history.replaceState(null, "", `#${chosen.tab.id}`);
  }

  list.addEventListener("keydown", (event) => {
    const current = buttons.findIndex(({ button }) => button === document.activeElement);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (current >= 0 && step) choose((current + step + buttons.length) % buttons.length, true);
  });
  root.replaceChildren(list, panels);
  choose(Math.max(0, tabs.findIndex((tab) => `#${tab.id}` === location.hash)));
}

start();
