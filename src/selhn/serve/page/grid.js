// The results as cards: one stop of the Tab key, arrows within.
import { $, el, number, svg } from "./dom.js";
import { show } from "./http.js";

let act;

export function startGrid(actions) {
  act = actions;
  $("grid").addEventListener("keydown", (event) => {
    const cards = [...$("grid").querySelectorAll(".open")];
    const here = cards.indexOf(event.target);
    if (here < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const columns = getComputedStyle($("grid")).gridTemplateColumns.split(" ").length;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    if (event.key in steps) {
      event.preventDefault();
      const there = here + steps[event.key];
      if (there < 0 && event.key === "ArrowUp") $("text").focus();
      else focusCard(Math.min(Math.max(there, 0), cards.length - 1));
    } else if (event.key === "Home" || event.key === "End") {
      event.preventDefault();
      focusCard(event.key === "Home" ? 0 : cards.length - 1);
    }
  });
}

export function focusCard(row) {
  const cards = [...$("grid").querySelectorAll(".open")];
  if (!cards[row]) return;
  for (const card of cards) card.tabIndex = -1;
  cards[row].tabIndex = 0;
  cards[row].focus();
}

export const headline = (item) => item.text ?? item.captions[0] ?? item.metadata.file ?? item.id.split(/[\\/]/).at(-1);

export function addCards(items, best, first) {
  $("grid").append(...items.map((item, row) => card(item, best, first + row)));
}

function card(item, best, row) {
  const words = headline(item);
  const frame = el("span", { class: item.picture ? "frame" : "frame none" });
  if (item.picture) {
    const image = el("img", { alt: "", loading: "lazy", decoding: "async", onerror: () => { frame.className = "frame none"; frame.replaceChildren("no picture"); } });
    show(image, item.id, 320);
    frame.append(image);
  } else {
    frame.append(item.captions[1] ?? words);
  }
  const caption = el("span", { class: "line" }, el("span", { class: "caption" }, words));
  const open = el("button", { type: "button", class: "open", tabindex: row ? -1 : 0, onclick: () => act.open(row) }, frame, caption);
  if (item.score !== undefined) {
    caption.append(el("span", { class: "score", title: "score" }, number(item.score)));
    const share = el("i");
    share.style.width = `${Math.max(0, Math.min(1, item.score / best)) * 100}%`;
    open.append(el("span", { class: "fit", "aria-hidden": "true" }, share));
  }
  if (item.metadata.license) open.append(el("span", { class: "license" }, String(item.metadata.license)));
  const like = el("button", { type: "button", class: "like", "aria-label": `More like: ${words}`, onclick: () => act.like(item) },
    el("span", {}, "More like this"), alike());
  return el("li", { class: "card" }, open, like);
}

// Two frames, one behind the other.
function alike() {
  const drawing = svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" });
  drawing.append(svg("rect", { x: 8, y: 8, width: 12, height: 12, rx: 2 }), svg("path", { d: "M16 4.5H6A1.5 1.5 0 0 0 4.5 6v10" }));
  return drawing;
}

export const skeletons = (many) => Array.from({ length: many }, () =>
  el("li", { class: "card skeleton", "aria-hidden": "true" }, el("span", { class: "frame" }), el("span", { class: "bone" })));
