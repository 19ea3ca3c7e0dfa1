// Which part of the picture each word of the question is about.
import { $, el } from "./dom.js";
import { get } from "./http.js";

const FAINT = 0.04;
const STRONGEST = 0.55;
const DIMMEST = 0.82;
const PLAIN = new Set("a an and are as at by for from in into is it its of on or that the there this to with".split(" "));
const KINDS = {
  attention: "Choose a word to see how its attention is spread over the picture.",
  fit: "Choose a word to see how well each part of the picture matches it by itself. A hint, not a proof.",
};
let asking;

export function stopLooking() {
  asking?.abort();
  $("look").hidden = true;
  $("boxes").replaceChildren();
}

export async function look(item, text) {
  stopLooking();
  if (!item.picture || !text) return;
  const mine = asking = new AbortController();
  try {
    const found = await get("/look", { id: item.id, text }, mine.signal);
    if (mine === asking && found.words.length) drawLook(found);
  } catch { /* optional: the picture is shown without it */ }
}

// Parts side by side are lit by how well they match and the rest is dimmed; overlapping boxes are shaded.
function drawLook({ kind, words, boxes, weights, full }) {
  const area = boxes.reduce((sum, [left, top, right, bottom]) => sum + (right - left) * (bottom - top), 0);
  const lit = kind === "fit" && area < 1.01;
  $("boxes").classList.toggle("light", lit);
  const drawn = boxes.map(([left, top, right, bottom]) => {
    const box = el("i");
    Object.assign(box.style, { left: `${left * 100}%`, top: `${top * 100}%`, width: `${(right - left) * 100}%`, height: `${(bottom - top) * 100}%` });
    return box;
  });
  $("boxes").replaceChildren(...drawn);
  const shade = (place) => {
    buttons.forEach((button, other) => button.setAttribute?.("aria-pressed", String(other === place)));
    drawn.forEach((box, region) => {
      const share = place === null ? Number(lit) : Math.min(1, weights[place][region] / full);
      const strength = lit ? (1 - share) * DIMMEST : share < FAINT ? 0 : share * share * STRONGEST;
      box.style.setProperty("--weight", strength.toFixed(3));
    });
  };
  let held = null;
  const buttons = words.map((word, place) => {
    if (kind === "fit" && PLAIN.has(word)) return el("span", {}, word);
    return el("button", {
      type: "button", "aria-pressed": "false",
      onmouseenter: () => shade(place), onfocus: () => shade(place), onmouseleave: () => shade(held), onblur: () => shade(held),
      onclick: () => { held = held === place ? null : place; shade(held); },
      onkeydown: (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        event.stopPropagation();
        const others = [...$("look-words").querySelectorAll("button")];
        others[others.indexOf(event.target) + step]?.focus();
      },
    }, word);
  });
  $("look-words").replaceChildren(...buttons);
  $("look-kind").textContent = KINDS[kind];
  $("look").hidden = false;
}
