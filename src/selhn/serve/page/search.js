// The question and its answers: what is asked, from where, and what is shown meanwhile.
import { closeDetail, openDetail, startDetail } from "./detail.js";
import { $, count, el } from "./dom.js";
import { addCards, focusCard, skeletons, startGrid } from "./grid.js";
import { ask, get, show } from "./http.js";
import { acceptPictures } from "./picture.js";

const PAGE = 24;
const PAUSE = 280; // milliseconds of quiet before what is typed is asked
const asked = { text: "", like: null, picture: null, filters: {}, where: "" };
let about, running, timer, shown = [], total = 0;

export function startSearch(told) {
  about = told;
  readAddress();
  drawFilters();
  startGrid({ open: openAt, like: moreLike });
  startDetail({ like: moreLike, text: () => asked.text, can: about.can, at: (row) => shown[row], turned: focusCard });
  if (about.can.ask_with_pictures) {
    $("choose").hidden = false;
    acceptPictures((picture) => change({ picture, like: null }));
  }
  $("text").maxLength = about.limits.query;
  $("ask").addEventListener("submit", (event) => { event.preventDefault(); typed(true); });
  $("text").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => typed(false), PAUSE); });
  $("more").addEventListener("click", () => load(shown.length));
  $("again").addEventListener("click", () => load(0));
  addEventListener("popstate", () => {
    if (closeDetail()) return; // Back closes the picture; the question stays
    readAddress(); drawFilters(); load(0);
  });
  addEventListener("keydown", keys);
  drawChips();
  load(0);
  if (!matchMedia("(hover: none)").matches) $("text").focus({ preventScroll: true });
}

function typed(entered) {
  clearTimeout(timer);
  const text = $("text").value.trim();
  if (text !== asked.text) change({ text }, !entered);
  else if (entered) load(0);
  if (entered) $("text").blur();
}

function change(parts, typing = false) {
  Object.assign(asked, parts);
  if (!typing) $("text").value = asked.text;
  writeAddress(typing);
  drawChips();
  load(0);
}

function moreLike(item) {
  if (asked.picture) URL.revokeObjectURL(asked.picture.address);
  change({ text: "", picture: null, like: { id: item.id, picture: item.picture } });
  scrollTo({ top: 0 });
  $("text").focus({ preventScroll: true });
}

// The address holds the question, but for a picture from this machine, which nobody else has.
function writeAddress(typing) {
  const pairs = [["text", asked.text], ["like", asked.like?.id ?? ""], ["where", asked.where]];
  for (const [name, value] of Object.entries(asked.filters)) pairs.push([`is.${name}`, JSON.stringify(value)]);
  const words = new URLSearchParams(pairs.filter(([, value]) => value !== "")).toString();
  history[typing ? "replaceState" : "pushState"](null, "", words ? `?${words}` : location.pathname);
}

function readAddress() {
  const words = new URLSearchParams(location.search);
  const like = words.get("like");
  const filters = {};
  for (const [name, value] of words) {
    if (!name.startsWith("is.") || !(name.slice(3) in about.fields)) continue;
    try { filters[name.slice(3)] = JSON.parse(value); } catch { /* not written by this page */ }
  }
  Object.assign(asked, { text: words.get("text") ?? "", like: like ? { id: like, picture: true } : null, filters, where: words.get("where") ?? "" });
  $("text").value = asked.text;
  drawChips();
}

const where = () => [...(asked.where ? [`(${asked.where})`] : []), ...Object.entries(asked.filters)
  .map(([name, value]) => `${quoted(name)} = ${typeof value === "string" ? quoted(value) : value}`)].join(" and ");
const quoted = (words) => `"${words.replace(/(["\\])/g, "\\$1")}"`;

async function load(first) {
  running?.abort();
  const mine = running = new AbortController();
  const question = Boolean(asked.text || asked.like || asked.picture);
  const grid = $("grid");
  grid.setAttribute("aria-busy", "true");
  $("problem").hidden = $("empty").hidden = true;
  $("more").disabled = true;
  const waiting = setTimeout(() => {
    if (first) return;
    if (shown.length) grid.classList.add("stale");
    else grid.replaceChildren(...skeletons(12));
    $("status").textContent = "Looking …";
  }, 160);
  try {
    const found = question ? await search(first, mine.signal) : await browse(first, mine.signal);
    if (mine !== running) return;
    if (!first) { grid.replaceChildren(); shown = []; }
    const best = question ? found.find((hit) => hit.score > 0)?.score ?? 1 : null;
    addCards(question && first ? found.slice(shown.length) : found, best, shown.length);
    shown = question ? found : [...shown, ...found];
    told(question);
  } catch (error) {
    if (error.name === "AbortError" || mine !== running) return;
    if (!first) { grid.replaceChildren(); shown = []; }
    $("status").textContent = "";
    $("more").hidden = true;
    $("problem").hidden = false;
    $("reason").textContent = error.message;
    $("again").hidden = error.status >= 400 && error.status < 500; // the same question gets the same answer
  } finally {
    clearTimeout(waiting);
    if (mine === running) {
      grid.classList.remove("stale");
      grid.removeAttribute("aria-busy");
      $("more").disabled = false;
    }
  }
}

async function search(first, signal) {
  const k = Math.min(first + PAGE, about.limits.answers);
  const parts = { text: asked.text, like: asked.like?.id, where: where(), k };
  const { answers } = await ask(parts, asked.picture?.bytes ?? null, signal);
  total = answers.length < k || k === about.limits.answers ? answers.length : Infinity;
  return answers;
}

async function browse(first, signal) {
  const answer = await get("/items", { first, number: PAGE, where: where() }, signal);
  total = answer.total;
  return answer.items;
}

function told(question) {
  $("more").hidden = shown.length >= total;
  if (!shown.length) {
    $("status").textContent = "";
    const filtered = where() !== "";
    const hint = filtered ? "No picture passes these filters. Take one off." :
      about.items ? "Ask in other words." : "This index is empty. Add pictures with selhn index FOLDER.";
    $("empty").replaceChildren(el("strong", {}, filtered || about.items ? "Nothing fits" : "No pictures yet"), hint);
    $("empty").hidden = false;
  } else if (question) {
    const what = [asked.text && `“${asked.text}”`, asked.like && "that picture", asked.picture && "your picture"]
      .filter(Boolean).join(" and ");
    $("status").textContent = `The ${count(shown.length, "picture")} closest to ${what}, best first`;
  } else {
    const words = suggestions();
    $("status").replaceChildren(`${count(total, "picture")}.`, ...(words.length ? [" Try "] : []),
      ...words.flatMap((text, row) => [row ? (row === words.length - 1 ? " or " : ", ") : "",
        el("button", { class: "try", type: "button", onclick: () => change({ text }) }, text)]));
  }
}

// Short captions of pictures that are there make questions that have an answer.
function suggestions() {
  const short = shown.flatMap((item) => item.captions.slice(1)).map((text) => text.trim().replace(/[.!]+$/, ""))
    .filter((text) => text.length > 12 && text.length < 44 && text !== text.toUpperCase());
  const every = Math.max(1, Math.floor(short.length / 3));
  return [0, 1, 2].map((row) => short[row * every]).filter(Boolean).map((text) => text.toLowerCase());
}

function drawFilters() {
  const own = asked.where ? [el("button", { type: "button", class: "set", "aria-label": `Remove the filter ${asked.where}`,
    onclick: () => { change({ where: "" }); drawFilters(); } }, el("span", {}, asked.where), " ×")] : [];
  $("filters").replaceChildren(...own, ...Object.entries(about.fields).map(([name, values]) => {
    const chosen = values.findIndex(({ value }) => value === asked.filters[name]);
    const options = values.map(({ value, count }, row) => el("option", { value: row, selected: row === chosen }, `${value}  (${count})`));
    const every = el("option", { value: "" }, `${name}: any`);
    return el("select", { "aria-label": `Filter by ${name}`, class: chosen < 0 ? "" : "set", onchange: (event) => {
      const row = event.target.value;
      const { [name]: _, ...others } = asked.filters;
      change({ filters: row === "" ? others : { ...others, [name]: values[row].value } });
      event.target.classList.toggle("set", row !== "");
    } }, every, ...options);
  }));
}

function drawChips() {
  const chips = [];
  if (asked.like) chips.push(chip("Like this", asked.like.id, () => change({ like: null })));
  if (asked.picture) chips.push(chip("Your picture", null, () => change({ picture: null })));
  $("chips").replaceChildren(...chips);
  $("text").placeholder = chips.length ? "… and with words" : "Describe a picture";
}

function chip(words, id, remove) {
  const image = el("img", { alt: "", onerror: () => image.remove() });
  if (id === null) image.src = asked.picture.address;
  else if (about.can.show_pictures) show(image, id, 160);
  const button = el("button", { type: "button", "aria-label": `Remove: ${words}`, onclick: () => { remove(); $("text").focus(); } }, "×");
  return el("span", { class: "chip" }, image, el("span", {}, words), button);
}

function openAt(row) {
  openDetail(row, shown.length);
}

function keys(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || $("search-view").hidden) return;
  if (document.querySelector("dialog[open]")) return;
  const writing = event.target.matches("input, select, textarea");
  if (event.key === "/" && !writing) {
    event.preventDefault();
    $("text").select();
    $("text").focus();
  } else if (event.key === "ArrowDown" && event.target === $("text")) {
    event.preventDefault();
    focusCard(0);
  } else if (event.key === "Escape") {
    if (event.target !== $("text")) $("text").focus();
    else if ($("text").value) change({ text: "" });
    else if (asked.picture || asked.like) change({ picture: null, like: null });
  }
}
