// The question and its answers, and what is shown meanwhile.
import { chooseAlbum, deleteAlbum, favour, hasOwnName, isFavourite, loadAlbums, renameAlbum, startAlbums } from "./albums.js";
import { duplicates } from "./duplicates.js";
import { sections, yearOf } from "./dates.js";
import { $, count, el } from "./dom.js";
import { drawFilters, whereOf } from "./filters.js";
import { drawnPlaces, focusCard, inView, returnTo, setSource, skeletons, startGrid } from "./grid.js";
import { ask, get } from "./http.js";
import { acceptPictures } from "./picture.js";
import { asked, drawChips, isQuestion, readAddress, writeAddress } from "./question.js";
import { addCircle, addHeadCircle, remove, selectSpare, selects, startSelecting } from "./select.js";
import { Found, Listing } from "./source.js";
import { drawTimeline, hideTimeline, moved, startTimeline } from "./timeline.js";
import { add, startUpload } from "./upload.js";
import { closeViewer, drawAlbums, openViewer, startViewer } from "./viewer.js";

const FEW = 24, STEP = 60;
const PAUSE = 280; // milliseconds without typing before a search starts
const LESS = -0.4; // weight of a "less like this" picture, beside a sentence that counts 1
const NONE = { answers: [], fits: null, unknown: [] }; // fits: how many of the answers are matches; null if that is not known
let about, running, timer, shown = null, found = NONE, limit = STEP, pages = 1, days = [], years = null;

export function startSearch(told) {
  about = told;
  readAddress(about.fields);
  const writes = about.can.write && about.can.ask_with_pictures;
  startGrid({
    open: (place, event) => { if (!about.can.write || !selects(place, event)) openViewer(shown, place); },
    filled: (card, place, item) => {
      if (about.can.write) addCircle(card, place, item);
      card.classList.toggle("loved", isFavourite(item));
    },
    headed: about.can.write ? addHeadCircle : () => {}, arranged, moved,
  });
  const tell = async (words) => { await load(true); $("status").textContent = words; };
  const acts = { shown: () => shown, favour, album: chooseAlbum };
  if (about.can.write) startSelecting({ ...acts, albums: about.can.albums, changed: tell });
  if (about.can.albums) startAlbums({ changed: albumsChanged, failed: (words) => ($("detail").open ? alert(words) : tell(words)) });
  if (writes) startUpload(() => load(true));
  startTimeline();
  startViewer({ ...acts, like: moreLike, less: lessLike, text: () => asked.text, can: about.can, shownKinds: about.shown, closed: focusCard, remove });
  if (about.can.ask_with_pictures) {
    $("choose").hidden = false;
    acceptPictures((picture) => change({ picture, like: null }), writes && ((files) => add(files, () => load(true))));
  }
  $("text").maxLength = about.limits.query;
  $("ask").addEventListener("submit", (event) => { event.preventDefault(); typed(true); });
  $("text").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => typed(false), PAUSE); });
  $("more").addEventListener("click", () => {
    if (asked.view) pages += 1;
    else limit = found.fits === null ? limit + STEP : found.answers.length;
    (asked.view ? load : present)();
  });
  $("again").addEventListener("click", () => load());
  history.scrollRestoration = "manual"; // the pictures load later
  addEventListener("popstate", async ({ state }) => {
    if (closeViewer()) return; // Back closes the picture; the question stays
    readAddress(about.fields);
    pages = 1;
    await load();
    scrollTo(0, 0);
    if (state?.left) returnTo(state.left);
  });
  addEventListener("keydown", keys);
  $("show-keys").addEventListener("click", () => $("keys").showModal());
  document.addEventListener("library-changed", () => {
    loadAlbums();
    if (!isQuestion() && !asked.view && scrollY < innerHeight && !document.querySelector("dialog[open]")) load(true);
  });
  addEventListener("click", (event) => {
    for (const open of document.querySelectorAll("details.dates[open]")) if (!event.composedPath().includes(open)) open.open = false;
  });
  load();
  if (!matchMedia("(hover: none)").matches) $("text").focus({ preventScroll: true });
}

function typed(entered) {
  clearTimeout(timer);
  const text = $("text").value.trim();
  if (text !== asked.text) change({ text }, !entered);
  else if (entered) {
    history.replaceState(null, ""); // what is typed from now on is another question
    load();
  }
  if (entered) $("text").blur();
}

function change(parts, typing = false) {
  Object.assign(asked, { view: "" }, parts);
  pages = 1;
  if (!typing) $("text").value = asked.text;
  writeAddress(typing, scrollY > 0 ? inView() : null);
  scrollTo({ top: 0 });
  load();
}

function moreLike(item) {
  change({ text: "", picture: null, like: { id: item.id } });
  $("text").focus({ preventScroll: true });
}

const lessLike = (item) => change({ like: { id: item.id, less: true } });

// `again`: what is shown has changed, and stays until the new state has loaded.
async function load(again = false) {
  running?.abort();
  const mine = running = new AbortController();
  const grid = $("grid");
  drawChips(about.can.show_pictures, change);
  redrawFilters();
  grid.setAttribute("aria-busy", "true");
  $("problem").hidden = $("empty").hidden = true;
  const waiting = setTimeout(() => {
    if (again) return;
    if (shown?.total) grid.classList.add("stale");
    else skeletons();
    $("status").textContent = "Looking …";
  }, 160);
  try {
    await (asked.view === "duplicates" ? compare : isQuestion() ? search : browse)(mine.signal, again);
    clearTimeout(waiting);
    if (!years && !mine.signal.aborted) learnYears(await get("/timeline", {}, mine.signal));
  } catch (error) {
    if (error.name === "AbortError" || mine !== running) return;
    setShown(null);
    $("status").textContent = "";
    $("more").hidden = true;
    $("problem").hidden = false;
    $("reason").textContent = error.message;
    $("again").hidden = error.status >= 400 && error.status < 500; // the same question would get the same answer
  } finally {
    clearTimeout(waiting);
    if (mine === running) {
      grid.classList.remove("stale");
      grid.removeAttribute("aria-busy");
    }
  }
}

async function search(signal) {
  const less = asked.like?.less ? { text_weight: 1, like_weight: LESS } : {};
  const parts = { text: asked.text, like: asked.like?.id, where: whereOf(asked), k: about.limits.answers, ...less };
  const answer = await ask(parts, asked.picture?.bytes ?? null, signal);
  if (signal.aborted) return;
  found = { ...NONE, ...answer };
  limit = found.fits === null ? STEP : found.fits || FEW;
  present();
}

const dateOf = ({ metadata }) => String(metadata.taken ?? metadata.modified ?? "");

// The answers up to the limit: those that are said to fit, or the nearest ones.
function present() {
  const { answers, fits } = found, best = answers.slice(0, limit);
  if (asked.order === "newest") best.sort((one, other) => dateOf(other).localeCompare(dateOf(one)));
  const next = new Found(best);
  next.foot = best.some(({ fit }) => typeof fit === "number") ? 10 : 0;
  setShown(next);
  $("more").hidden = limit >= answers.length;
  $("more").textContent = fits === null ? "Show more" : "Show weaker matches";
  if (!answers.length) return nothing();
  $("status").textContent = said(best.length);
}

function said(number) {
  const { fits, unknown } = found, order = asked.order === "newest" ? "newest first" : "best first";
  const what = [asked.text && `“${asked.text}”`, asked.like && (asked.like.less ? "less like that picture" : "that picture"),
    asked.picture && "your picture"].filter(Boolean).join(" and ");
  const hint = unknown.length ? `The model reads English and hardly knows ${unknown.map((word) => `“${word}”`).join(", ")}. ` : "";
  if (fits === 0) return `${hint}No sure match. The nearest pictures:`;
  if (number === fits) return `${hint}${fits === about.limits.answers ? "The best " : ""}${count(fits, "picture")} for ${what}, ${order}.`;
  return `${hint}The ${count(number, "picture")} closest to ${what}, ${order}.`;
}

async function browse(signal, again) {
  const where = whereOf(asked), order = asked.order || "newest";
  const listed = await get("/timeline", { where, order, layout: true }, signal);
  if (signal.aborted) return;
  if (!where) learnYears(listed);
  const page = (first, number, stop) => get("/items", { first, number, where, order }, stop);
  const next = new Listing(listed, sections(listed.days), page, () => load(true));
  if (again && listed.total) await Promise.all(drawnPlaces().map((place) => next.load(Math.min(place, listed.total - 1)).catch(() => {})));
  if (signal.aborted) return;
  setShown(next, listed.days);
  $("more").hidden = true;
  if (!listed.total) return nothing();
  const mine = shown;
  $("status").replaceChildren(`${count(listed.total, "picture")}${asked.album && ` in ${asked.album}`}. `, ...albumTools());
  if (!where) shown.load(0).then(() => { if (mine === shown) suggest(); }, () => {});
}

const redrawFilters = () => drawFilters(asked, about, years ?? [], change);

// The years to choose from, those of all pictures.
function learnYears({ months }) {
  years = [...new Set(months.map(({ month }) => yearOf(month)).filter(Boolean))];
  redrawFilters();
}

function albumTools() {
  const name = asked.album;
  if (!name || !about.can.write || !hasOwnName(name)) return [];
  const tool = (words, act) => el("button", { type: "button", class: "try", onclick: () => act(name) }, words);
  return [tool("Rename", renameAlbum), " ", tool("Delete album", deleteAlbum)];
}

function albumsChanged(name, now) {
  for (const card of $("grid").querySelectorAll(".card[data-id]")) {
    const item = shown?.item(Number(card.dataset.place));
    if (item) card.classList.toggle("loved", isFavourite(item));
  }
  drawAlbums();
  if (name === undefined || name !== asked.album) redrawFilters();
  else if (now === undefined) load();
  else change({ album: now });
}

async function compare(signal) {
  days = [];
  hideTimeline();
  const told = (share) => { $("status").textContent = `Comparing all pictures … ${Math.round(share * 100)} %`; };
  const { source, words, more } = await duplicates(signal, told, pages);
  if (signal.aborted) return;
  setShown(source);
  const spare = el("button", { type: "button", class: "try", onclick: () => selectSpare(source) }, "Select all but the first of each");
  $("status").replaceChildren(words, ...(about.can.write && source.total ? [" ", spare] : []));
  $("more").hidden = !more;
  $("more").textContent = "Show more";
}

// `dates`: days with their numbers of pictures, for the timeline beside the pictures.
function setShown(next, dates = []) {
  [shown, days] = [next, dates];
  if (!days.length) hideTimeline();
  setSource(next);
}

const arranged = (plan) => { if (days.length) drawTimeline(days, plan); };

function nothing() {
  $("status").textContent = "";
  const filtered = whereOf(asked) !== "";
  const hint = filtered ? "No picture matches these filters." :
    about.items ? "Try other words." : document.body.hasAttribute("data-indexing") ?
      "They appear here as they are indexed." : `Add some with selhn photos FOLDER${about.can.write ? ", or drop them here" : ""}.`;
  const clear = el("button", { type: "button", onclick: () => change({ filters: {}, where: "", album: "", from: "", to: "" }) }, "Remove the filters");
  $("empty").replaceChildren(el("strong", {}, filtered || about.items ? "Nothing fits" : "No pictures yet"), el("p", {}, hint), ...(filtered ? [clear] : []));
  $("empty").hidden = false;
}

// Suggested questions: short captions from the collection, so that each has an answer.
function suggest() {
  const some = Array.from({ length: Math.min(24, shown.total) }, (_, place) => shown.item(place)).filter(Boolean);
  const short = some.flatMap((item) => item.captions.slice(1)).map((text) => text.trim().replace(/[.!]+$/, ""))
    .filter((text) => text.length > 12 && text.length < 44 && text !== text.toUpperCase());
  const every = Math.max(1, Math.floor(short.length / 3));
  const words = [0, 1, 2].map((row) => short[row * every]).filter(Boolean).map((text) => text.toLowerCase());
  if (words.length) $("status").append(" Try ", ...words.flatMap((text, row) => [row ? (row === words.length - 1 ? " or " : ", ") : "",
    el("button", { class: "try", type: "button", onclick: () => change({ text }) }, text)]));
}

function keys(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || $("search-view").hidden) return;
  if (document.querySelector("dialog[open]")) return;
  const writing = event.target.matches("input, select, textarea");
  if (event.key === "/" && !writing) {
    event.preventDefault();
    $("text").select();
    $("text").focus();
  } else if (event.key === "?" && !writing) {
    $("keys").showModal();
  } else if (event.key === "ArrowDown" && event.target === $("text")) {
    event.preventDefault();
    focusCard(0);
  } else if (event.key === "Escape") {
    if (event.target !== $("text")) $("text").focus();
    else if ($("text").value) change({ text: "" });
    else if (asked.picture || asked.like) change({ picture: null, like: null });
  }
}
