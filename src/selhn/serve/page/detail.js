// One picture up close: its captions, where it is from, and which part of it each word is about.
import { $, el, number, outside } from "./dom.js";
import { headline } from "./grid.js";
import { get, show } from "./http.js";

const FAINT = 0.04;
const STRONGEST = 0.55;
const DIMMEST = 0.82;
const PLAIN = new Set("a an and are as at by for from in into is it its of on or that the there this to with".split(" "));
const CREDITS = ["license", "license_url", "source"];
const KINDS = {
  attention: "Point at a word: how it divides its look among the regions of the picture.",
  fit: "Point at a word: how well each part of the picture, seen by itself, fits it. A hint, not a proof.",
};
let use, row = 0, many = 0, asking;

export function startDetail(given) {
  use = given;
  const dialog = $("detail");
  $("detail-close").addEventListener("click", leave);
  $("detail-like").addEventListener("click", () => leave().then(() => use.like(use.at(row))));
  $("detail-before").addEventListener("click", () => turn(-1));
  $("detail-next").addEventListener("click", () => turn(1));
  dialog.addEventListener("click", (event) => { if (event.target === dialog) leave(); });
  dialog.addEventListener("cancel", (event) => { event.preventDefault(); leave(); });
  if (history.state?.detail) history.replaceState(null, "");
  dialog.addEventListener("close", () => { asking?.abort(); use.turned(row); });
  dialog.addEventListener("keydown", (event) => {
    if (event.target.closest("#look-words") && event.key !== "Escape") return;
    if (event.key === "ArrowRight") turn(1);
    else if (event.key === "ArrowLeft") turn(-1);
  });
}

export function openDetail(which, number) {
  [row, many] = [which, number];
  draw(use.at(row));
  history.pushState({ detail: true }, "");
  $("detail").showModal();
  $("detail-like").focus();
}

// An open picture is a step of the history, so that Back closes it, and closing it goes back.
function leave() {
  return new Promise((done) => {
    addEventListener("popstate", () => setTimeout(done), { once: true });
    history.back();
  });
}

export function closeDetail() {
  const open = $("detail").open;
  $("detail").close();
  return open;
}

function turn(step) {
  if (row + step < 0 || row + step >= many) return;
  row += step;
  draw(use.at(row));
}

function draw(item) {
  const words = headline(item);
  $("detail-score").textContent = item.score === undefined ? "" : `Result ${row + 1} · score ${number(item.score)}`;
  $("detail-caption").textContent = words;
  $("detail-captions").replaceChildren(...item.captions.filter((text) => text !== words).map((text) => el("li", {}, text)));
  const facts = Object.entries(item.metadata).filter(([name]) => !CREDITS.includes(name));
  $("detail-facts").replaceChildren(...[...facts, ["id", item.id]].flatMap(([name, value]) =>
    [el("dt", {}, name), el("dd", {}, typeof value === "string" ? value : JSON.stringify(value))]));
  credit(item.metadata);
  $("detail-before").disabled = row === 0;
  $("detail-next").disabled = row === many - 1;
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

// Parts that lie side by side are lit by how well they fit and all else is dimmed; boxes that overlap are shaded.
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
