// One picture up close: its captions, where it is from, and which part of it each word is about.
import { $, el, number, outside } from "./dom.js";
import { headline } from "./grid.js";
import { get, show } from "./http.js";

const FAINT = 0.04;
const STRONGEST = 0.55;
const CREDITS = ["license", "license_url", "source"];
const KINDS = {
  attention: "Point at a word: how it divides its look among the regions of the picture.",
  fit: "Point at a word: how well each part of the picture, seen by itself, fits it. A hint, not a proof.",
};
let use, row = 0, number_of = 0, asking;

export function startDetail(given) {
  use = given;
  const dialog = $("detail");
  $("detail-close").addEventListener("click", () => dialog.close());
  $("detail-like").addEventListener("click", () => { dialog.close(); use.like(use.at(row)); });
  $("detail-before").addEventListener("click", () => turn(-1));
  $("detail-next").addEventListener("click", () => turn(1));
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => { asking?.abort(); use.turned(row); });
  dialog.addEventListener("keydown", (event) => {
    if (event.target.closest("#look-words") && event.key !== "Escape") return;
    if (event.key === "ArrowRight") turn(1);
    else if (event.key === "ArrowLeft") turn(-1);
  });
}

export function openDetail(which, many) {
  row = which;
  number_of = many;
  draw(use.at(row));
  $("detail").showModal();
  $("detail-like").focus();
}

function turn(step) {
  if (row + step < 0 || row + step >= number_of) return;
  row += step;
  draw(use.at(row));
}

function draw(item) {
  const words = headline(item);
  $("detail-score").textContent = item.score === undefined ? "" : `Result ${row + 1} · score ${number(item.score)}`;
  $("detail-caption").textContent = words;
  $("detail-captions").replaceChildren(...item.captions.filter((text) => text !== words).map((text) => el("li", {}, text)));
  const facts = Object.entries(item.metadata).filter(([name]) => !CREDITS.includes(name));
  $("detail-facts").replaceChildren(...[["id", item.id], ...facts].flatMap(([name, value]) =>
    [el("dt", {}, name), el("dd", {}, typeof value === "string" ? value : JSON.stringify(value))]));
  credit(item.metadata);
  $("detail-before").disabled = row === 0;
  $("detail-next").disabled = row === number_of - 1;
  const image = $("detail-picture");
  image.hidden = !item.picture;
  image.alt = item.captions[0] ?? item.id;
  image.removeAttribute("src");
  if (item.picture) show(image, item.id, 1280);
  look(item);
}

function credit({ license, license_url, source }) {
  const told = $("detail-credit");
  told.replaceChildren();
  if (source) told.append("Reduced copy; ", outside(source, "original"), license ? ", " : ".");
  if (license) told.append(license_url ? outside(license_url, license) : String(license), ".");
}

async function look(item) {
  asking?.abort();
  $("look").hidden = true;
  $("boxes").replaceChildren();
  const text = use.text() || item.captions[0];
  if (!use.can.look || !item.picture || !text) return;
  const mine = asking = new AbortController();
  try {
    const found = await get("/look", { id: item.id, text }, mine.signal);
    if (mine === asking && found.words.length) drawLook(found);
  } catch { /* it is an extra: without it the picture is still there */ }
}

function drawLook({ kind, words, boxes, weights, full }) {
  const drawn = boxes.map(([left, top, right, bottom]) => {
    const box = el("i");
    Object.assign(box.style, { left: `${left * 100}%`, top: `${top * 100}%`, width: `${(right - left) * 100}%`, height: `${(bottom - top) * 100}%` });
    return box;
  });
  $("boxes").replaceChildren(...drawn);
  const buttons = words.map((word, place) => el("button", { type: "button", "aria-pressed": "false" }, word));
  const shade = (place) => {
    buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === place)));
    drawn.forEach((box, region) => {
      const share = place === null ? 0 : Math.min(1, weights[place][region] / full);
      box.style.setProperty("--weight", share < FAINT ? 0 : (share * share * STRONGEST).toFixed(3));
    });
  };
  let held = null;
  buttons.forEach((button, place) => {
    button.addEventListener("mouseenter", () => shade(place));
    button.addEventListener("focus", () => shade(place));
    button.addEventListener("mouseleave", () => shade(held));
    button.addEventListener("blur", () => shade(held));
    button.addEventListener("click", () => { held = held === place ? null : place; shade(held); });
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) { event.stopPropagation(); buttons[place + step]?.focus(); }
    });
  });
  $("look-words").replaceChildren(...buttons);
  $("look-kind").textContent = KINDS[kind];
  $("look").hidden = false;
}
