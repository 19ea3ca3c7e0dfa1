// Several pictures at once: a click on the circle, a long press, x, or shift and a click; and removing them.
import { $, count, el, sure } from "./dom.js";
import { write } from "./http.js";

const LONG = 450; // milliseconds; a press this long selects
const STAYS = "Removed pictures are no longer found here. Files that were added on this page are deleted. Files in your own folders stay; " +
  "selhn index FOLDER brings them back.";
const selected = new Map();
let use, last = null, pressed = false;

export function startSelecting(given) {
  use = given;
  $("select-none").addEventListener("click", clear);
  $("select-remove").addEventListener("click", () => remove(chosen()));
  $("select-favour").addEventListener("click", () => use.favour(chosen()));
  $("select-album").addEventListener("click", () => use.album(chosen()));
  $("select-favour").hidden = $("select-album").hidden = !use.albums;
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !selected.size || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    clear();
  }, { capture: true });
  const grid = $("grid");
  let timer;
  grid.addEventListener("pointerdown", (event) => {
    const card = event.target.closest(".card[data-id]");
    pressed = false;
    clearTimeout(timer);
    if (card && event.pointerType === "touch") timer = setTimeout(() => { pressed = true; toggle(Number(card.dataset.place)); }, LONG);
  });
  for (const name of ["pointerup", "pointercancel", "pointermove"]) {
    grid.addEventListener(name, (event) => { if (name !== "pointermove" || Math.hypot(event.movementX, event.movementY) > 4) clearTimeout(timer); });
  }
  grid.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !event.target.matches(".open")) return;
    const place = Number(event.target.closest(".card").dataset.place), here = use.shown().item(place);
    if (event.key === "x") toggle(place);
    else if (event.key === "f" && here && use.albums) use.favour(selected.size ? chosen() : [here]);
    else if (event.key === "Delete" && here) remove(selected.size ? chosen() : [here]);
  });
  grid.addEventListener("contextmenu", (event) => { if (pressed) event.preventDefault(); });
}

// A circle on every card, once it is known what the card shows.
export function addCircle(card, place, item) {
  card.append(el("button", { type: "button", class: "circle", tabindex: -1, "aria-label": "Select", "aria-pressed": "false",
    onclick: (event) => choose(place, event.shiftKey) }));
  mark(card, item.id);
}

// And one on every heading, for all pictures below it.
export function addHeadCircle(head, { first, count: number }) {
  head.append(el("button", { type: "button", class: "circle", tabindex: -1, "aria-label": "Select all of these", onclick: () => between(first, first + number - 1) }));
}

const chosen = () => [...selected.values()];

function mark(card, id) {
  card.classList.toggle("chosen", selected.has(id));
  card.querySelector(".circle").setAttribute("aria-pressed", String(selected.has(id)));
}

// Whether a click on a picture selects it instead of opening it.
export function selects(place, event) {
  if (pressed) return true;
  if (!selected.size && !event.shiftKey && !event.ctrlKey && !event.metaKey) return false;
  choose(place, event.shiftKey);
  return true;
}

function choose(place, range) {
  if (range && last !== null) between(last, place);
  else toggle(place);
}

async function between(one, other) {
  const shown = use.shown();
  for (let place = Math.min(one, other); place <= Math.max(one, other); place++) {
    const item = shown.item(place) ?? await shown.load(place).catch(() => null);
    if (item) selected.set(item.id, item);
  }
  last = other;
  draw();
}

// All but the first of each group of almost the same pictures.
export function selectSpare({ items, sections }) {
  for (const { first, count: number } of sections) {
    for (const item of items.slice(first + 1, first + number)) selected.set(item.id, item);
  }
  draw();
}

function toggle(place) {
  const item = use.shown().item(place);
  if (!item) return;
  if (!selected.delete(item.id)) selected.set(item.id, item);
  last = place;
  draw();
}

function clear() {
  selected.clear();
  last = null;
  draw();
}

function draw() {
  for (const card of $("grid").querySelectorAll(".card[data-id]")) mark(card, card.dataset.id);
  $("selection").hidden = !selected.size;
  $("select-count").textContent = `${selected.size.toLocaleString("en")} selected`;
  $("grid").classList.toggle("selecting", selected.size > 0);
}

// Asks first, and says what is removed and what stays.
export async function remove(items) {
  const title = `Remove ${items.length === 1 ? "this picture" : count(items.length, "picture")} from the collection?`;
  if (!await sure(title, STAYS, "Remove")) return false;
  const wrong = [];
  for (const item of items) {
    try {
      await write("DELETE", "/item", { id: item.id });
      selected.delete(item.id);
      draw(); // shows how many are left
    } catch (error) {
      wrong.push(error.message);
    }
  }
  await use.changed(wrong.length ? `${count(wrong.length, "picture")} could not be removed. ${wrong[0]}` : `${count(items.length, "picture")} removed.`);
  return true;
}
