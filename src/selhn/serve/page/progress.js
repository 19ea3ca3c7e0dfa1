// How far indexing is: a strip above the pictures, only while there is something to say.
import { $, count, el } from "./dom.js";
import { get } from "./http.js";

const OFTEN = 1500, SELDOM = 8000; // milliseconds between two requests, while pictures are indexed and otherwise
let about, state = "idle", said = "", heard = "";

export function startProgress(served) {
  about = served;
  const files = el("button", { type: "button", id: "progress-files", class: "try", hidden: true, onclick: showFiles });
  const bar = el("span", { class: "progress-bar", "aria-hidden": "true" }, el("i", { id: "progress-done" }));
  const close = el("button", { type: "button", id: "progress-close", class: "try", onclick: () => { said = ""; strip.hidden = true; } }, "Close");
  const strip = el("div", { id: "progress", class: "progress", hidden: true },
    bar, el("p", { role: "status" }, el("span", { id: "progress-words" }), " ", files, " ", close), el("ul", { id: "progress-list", hidden: true }));
  $("main").before(strip);
  look();
}

async function look() {
  let told = null;
  if (!document.hidden) {
    try { told = await get("/progress"); } catch { /* the next request says so */ }
  }
  if (told) await draw(told);
  setTimeout(look, state === "idle" ? SELDOM : OFTEN);
}

async function draw(told) {
  const ended = state !== "idle" && told.state === "idle", began = state === "idle" && told.state !== "idle";
  if (ended) told = await get("/progress", { files: true }).catch(() => told); // the last files count too
  state = told.state;
  const left = told.files?.length ?? told.left_out;
  if (told.message !== heard || ended || state !== "idle") said = told.message || (left ? `${count(told.items, "picture")} indexed.` : "");
  document.body.toggleAttribute("data-indexing", state === "indexing");
  $("progress").hidden = !said;
  heard = told.message;
  $("progress-close").hidden = state !== "idle";
  $("progress").classList.toggle("still", state !== "indexing");
  $("progress").classList.toggle("wrong", state !== "indexing" && Boolean(told.message));
  if ($("progress-words").textContent !== said) $("progress-words").textContent = said;
  if (state !== "idle" || ended) {
    $("progress-files").hidden = !left;
    $("progress-files").textContent = `${count(left, "file")} left out`;
  }
  $("progress").classList.toggle("busy", state === "indexing" && !told.total);
  $("progress-done").style.width = told.total ? `${100 * told.done / told.total}%` : state === "indexing" ? "" : "0";
  if (told.items !== about.items || (began && !about.items)) {
    Object.assign(about, await get("/about").catch(() => ({})), { items: told.items });
    document.dispatchEvent(new CustomEvent("library-changed"));
  }
}

async function showFiles() {
  const list = $("progress-list");
  list.hidden = !list.hidden;
  if (list.hidden) return;
  const { files } = await get("/progress", { files: true });
  list.replaceChildren(...files.map(({ file, why }) => el("li", {}, el("b", {}, file), ` ${why}`)));
}
