// The pictures in rows. Only rows near the view are in the document; one stop of the Tab key, arrows within.
import { $, clock, count, el, isVideo, number } from "./dom.js";
import { pictureAddress } from "./http.js";
import { lastWhere, layOut } from "./layout.js";

const NEAR = 700; // pixels above and below the view that are drawn too
const FAST = 5; // screens per second; when scrolling faster, nothing is loaded until it stops
const UNKNOWN = 4 / 3;
const EMPTY = { rows: [], heads: [], lefts: [], widths: [], height: 0 };
const MOST_FLYING = 12; // pictures that load at a time
const cards = new Map(), heads = new Map(), waitingPictures = [];
let act, source = null, plan = EMPTY, current = 0, frame = 0, flying = 0, loaded = new Map(), waiting, learning, before = { y: 0, time: 0 };

export function startGrid(actions) {
  act = actions;
  addEventListener("scroll", () => { frame ||= requestAnimationFrame(draw); }, { passive: true });
  new ResizeObserver(() => { if (source && width() !== plan.width) arrange(); }).observe($("grid"));
  addEventListener("resize", () => { frame ||= requestAnimationFrame(draw); });
  $("grid").addEventListener("keydown", keys);
}

export function setSource(shown) {
  const focused = shown?.total && $("grid").contains(document.activeElement) ? Math.min(current, shown.total - 1) : null;
  loaded = new Map([...cards.values()].map((made) => [made.dataset.id, made.querySelector("img.come")]));
  source = shown;
  plan = EMPTY;
  current = 0;
  clear();
  if (source) {
    source.arrived = (first, last) => { for (const place of cards.keys()) if (place >= first && place < last) fill(place); };
    source.failed = () => { if (source === shown) draw(); };
  }
  arrange();
  if (focused !== null) focusCard(focused);
}

const width = () => Math.floor($("grid").clientWidth);
const within = () => -$("grid").getBoundingClientRect().top; // pixels of the grid above the view
const rowOf = (place) => lastWhere(plan.rows, (row) => row.first <= place);

// The first and the last picture that are drawn.
export const drawnPlaces = () => (cards.size ? [Math.min(...cards.keys()), Math.max(...cards.keys())] : []);

// The first picture in view and its position; `returnTo` scrolls back to it.
export function inView() {
  const row = plan.rows[lastWhere(plan.rows, ({ top }) => top <= within() + $("ask").offsetHeight)];
  return row ? { place: row.first, at: row.top - within() } : { place: 0, at: 0 };
}

export function returnTo({ place, at }) {
  if (plan.rows.length) scrollBy(0, plan.rows[rowOf(place)].top - within() - at);
}

function clear() {
  for (const place of [...cards.keys()]) drop(place);
  heads.clear();
  $("grid").replaceChildren();
}

// Lay out everything; the first picture in view stays where it is.
function arrange() {
  if (!source) {
    $("grid").style.height = "";
    return;
  }
  const small = innerWidth < 740, y = within();
  const first = y > 0 && plan.rows.length ? plan.rows[lastWhere(plan.rows, (row) => row.top <= y)] : null;
  const target = small ? 118 : Math.min(250, Math.max(170, width() / 6));
  const lengths = { width: width(), target, gap: small ? 3 : 5, foot: source.foot ?? 0, head: small ? 44 : 52 };
  plan = { ...layOut(source.sections, (place) => source.shape(place) || UNKNOWN, lengths), width: width() };
  $("grid").style.height = `${Math.ceil(plan.height)}px`;
  if (first) scrollBy(0, plan.rows[rowOf(first.first)].top - first.top);
  for (const place of cards.keys()) put(place);
  for (const [key, made] of heads) { made.remove(); heads.delete(key); }
  draw();
  act.arranged(plan);
}

function draw() {
  frame = 0;
  if (!source || $("search-view").hidden) return;
  const y = within(), [from, to] = [y - NEAR, y + innerHeight + NEAR];
  const near = plan.rows.length ? lastWhere(plan.rows, (row) => row.top <= from) : 0;
  let last = near;
  while (last < plan.rows.length && plan.rows[last].top < to) last += 1;
  const [first, end] = last > near ? [plan.rows[near].first, plan.rows[last - 1].last] : [0, 0];
  for (const [place, made] of cards) {
    if ((place < first || place >= end) && !made.contains(document.activeElement)) drop(place);
  }
  if (!cards.has(current) && (current < first || current >= end)) { // the picture where the Tab key stops must be in view
    current = inView().place;
    cards.get(current)?.querySelector(".open").setAttribute("tabindex", 0);
  }
  const made = [];
  for (let place = first; place < end; place++) if (!cards.has(place)) made.push(card(place));
  $("grid").append(...made);
  drawHeads(from, to);
  const now = performance.now(), speed = Math.abs(y - before.y) / innerHeight / Math.max(0.004, (now - before.time) / 1000);
  before = { y, time: now };
  clearTimeout(waiting);
  const ask = () => {
    source?.want(first, end);
    for (const place of cards.keys()) fill(place);
  };
  if (speed > FAST) waiting = setTimeout(ask, 100);
  else ask();
  act.moved();
}

function drawHeads(from, to) {
  for (const [head, made] of heads) if (head.top < from - 100 || head.top > to) { made.remove(); heads.delete(head); }
  for (let at = lastWhere(plan.heads, (head) => head.top <= from); at < plan.heads.length && plan.heads[at].top < to; at++) {
    const head = plan.heads[at];
    if (heads.has(head)) continue;
    const made = el("li", { class: "head", role: "presentation" }, el("h2", {}, head.title), el("span", {}, head.note ?? count(head.count, "picture")));
    made.style.transform = `translateY(${head.top.toFixed(1)}px)`;
    act.headed(made, head);
    heads.set(head, made);
    $("grid").append(made);
  }
}

function drop(place) {
  cards.get(place).remove();
  cards.delete(place);
}

function put(place) {
  const made = cards.get(place), row = plan.rows[rowOf(place)];
  made.style.transform = `translate(${plan.lefts[place].toFixed(1)}px, ${row.top.toFixed(1)}px)`;
  made.style.width = `${plan.widths[place].toFixed(1)}px`;
  made.style.setProperty("--height", `${row.height.toFixed(1)}px`);
}

function card(place) {
  const open = el("button", { type: "button", class: "open", tabindex: place === current ? 0 : -1, onclick: (event) => act.open(place, event) },
    el("span", { class: "frame" }));
  const made = el("li", { class: "card", "data-place": place, "aria-posinset": place + 1, "aria-setsize": source.total }, open);
  cards.set(place, made);
  put(place);
  return made;
}

export const headline = (item) => item.text ?? item.captions[0] ?? item.metadata.file ?? item.id.split(/[\\/]/).at(-1);

// What is known about a picture only after its page has loaded.
function fill(place) {
  const made = cards.get(place), item = source.item(place);
  if (!item || made.dataset.id === item.id) return;
  made.dataset.id = item.id;
  const words = headline(item), open = made.querySelector(".open"), frame = open.firstChild;
  open.setAttribute("aria-label", isVideo(item) ? `${words}, video` : words);
  const there = loaded.get(item.id); // already loaded before the change: it does not flicker
  if (there) {
    loaded.delete(item.id);
    frame.append(there);
    learn(place, there);
  } else if (item.picture) frame.append(picture(place, item, made, frame));
  else none(frame, item.captions[1] ?? words);
  open.append(el("span", { class: "line", "aria-hidden": "true" }, el("span", { class: "caption" }, words),
    item.score === undefined ? null : el("span", { class: "score" }, number(item.score))));
  if (isVideo(item)) open.append(el("span", { class: "play" }, clock(item.metadata.moment ?? item.metadata.duration)));
  if (source.note) open.append(el("span", { class: "note" }, source.note(item)));
  act.filled(made, place, item);
  if (item.fit !== undefined && item.fit !== null) {
    const share = el("i");
    share.style.width = `${Math.max(0, Math.min(1, item.fit)) * 100}%`;
    open.append(el("span", { class: "fit", title: `${Math.round(item.fit * 100)} % likely a match` }, share));
  }
}

function none(frame, words) {
  frame.classList.add("none");
  frame.replaceChildren(words);
}

function learn(place, image) {
  if (source.shape(place)) return;
  source.learn(place, image.naturalWidth / image.naturalHeight);
  clearTimeout(learning);
  learning = setTimeout(arrange, 150);
}

function picture(place, item, made, frame) {
  let again = true;
  const image = el("img", { alt: "", decoding: "async", onload: () => {
    landed();
    image.classList.add("come");
    if (source?.item(place) === item) learn(place, image);
  }, onerror: () => {
    landed();
    if (again) setTimeout(() => wait(made, ask), 1200); // the service may have been busy
    else none(frame, "no picture");
    again = false;
  } });
  const side = Math.max(plan.widths[place], plan.rows[rowOf(place)].height) * Math.min(devicePixelRatio, 2);
  const ask = () => { image.src = pictureAddress(item.id, side > 400 ? 640 : 320); };
  wait(made, ask);
  return image;
}

// Few pictures load at a time; those scrolled past before their turn are skipped.
function wait(made, ask) {
  waitingPictures.push({ made, ask });
  begin();
}

function begin() {
  while (flying < MOST_FLYING && waitingPictures.length) {
    const { made, ask } = waitingPictures.shift();
    if (!made.isConnected) continue;
    flying += 1;
    ask();
  }
}

function landed() {
  flying -= 1;
  begin();
}

export function focusCard(place) {
  if (!source || place < 0 || place >= source.total) return;
  cards.get(current)?.querySelector(".open").setAttribute("tabindex", -1);
  current = place;
  const row = plan.rows[rowOf(place)], y = within(), head = $("ask").offsetHeight;
  if (row.top < y + head || row.top + row.height > y + innerHeight) {
    scrollBy(0, row.top - y - (row.top < y + head ? head + 12 : innerHeight - row.height - 24));
    draw();
  }
  const open = cards.get(place)?.querySelector(".open");
  open?.setAttribute("tabindex", 0);
  open?.focus({ preventScroll: true });
}

function keys(event) {
  if (!event.target.matches(".open") || event.ctrlKey || event.metaKey || event.altKey) return;
  const here = Number(event.target.closest(".card").dataset.place);
  const ends = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: source.total - 1 };
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!(event.key in ends) && !step) return;
  event.preventDefault();
  if (!step) return focusCard(Math.min(Math.max(ends[event.key], 0), source.total - 1));
  const row = plan.rows[rowOf(here) + step];
  if (!row) return step < 0 ? $("text").focus() : undefined;
  const middle = (place) => plan.lefts[place] + plan.widths[place] / 2;
  let best = row.first;
  for (let place = row.first; place < row.last; place++) {
    if (Math.abs(middle(place) - middle(here)) < Math.abs(middle(best) - middle(here))) best = place;
  }
  focusCard(best);
}

// Grey pictures while the first ones load.
export function skeletons() {
  setSource(null);
  const shapes = [1.5, 0.75, 1.33, 1.78, 0.66, 1.33, 1.5, 1, 1.5, 0.75, 1.33, 1.5];
  $("grid").append(...shapes.map((shape) => {
    const made = el("li", { class: "skeleton", "aria-hidden": "true" });
    made.style.aspectRatio = String(shape);
    return made;
  }));
}
