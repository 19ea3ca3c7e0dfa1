// Filters below the question: fields with few values, dates, a filter from the address, and the order.
import { albumSizes } from "./albums.js";
import { $, el } from "./dom.js";

const HIDDEN = new Set(["width", "height", "taken", "modified", "bytes", "latitude", "longitude", "duration"]);
const quoted = (words) => `"${words.replace(/(["\\])/g, "\\$1")}"`;

// The filter of a question, in the language of the service.
export function whereOf({ where, filters, album, from, to }) {
  const parts = Object.entries(filters).map(([name, value]) => `${quoted(name)} = ${typeof value === "string" ? quoted(value) : value}`);
  if (where) parts.unshift(`(${where})`);
  if (album) parts.push(`album = ${quoted(album)}`);
  if (from) parts.push(`date >= ${quoted(from)}`);
  if (to) parts.push(`date <= ${quoted(to)}`);
  return parts.join(" and ");
}

export function drawFilters(asked, { fields, can }, years, change) {
  const made = [dates(asked, years, change), albums(asked, change)];
  for (const [name, values] of Object.entries(fields)) if (!HIDDEN.has(name)) made.push(field(name, values, asked, change));
  if (asked.where) made.unshift(el("button", { type: "button", class: "set", "aria-label": `Remove the filter ${asked.where}`,
    onclick: () => change({ where: "" }) }, el("span", {}, asked.where), " ×"));
  if (years.length) made.push(order(asked, change));
  if (can.duplicates) made.push(el("button", { type: "button", class: asked.view ? "set" : "", "aria-pressed": String(Boolean(asked.view)),
    onclick: () => change({ view: asked.view ? "" : "duplicates" }) }, "Duplicates"));
  const kept = made.find((one) => one?.isConnected); // if it were moved, it would lose the focus
  for (const old of [...$("filters").children]) if (old !== kept) old.remove();
  const there = made.filter(Boolean), at = there.indexOf(kept);
  if (at < 0) $("filters").append(...there);
  else { kept.before(...there.slice(0, at)); kept.after(...there.slice(at + 1)); }
}

function field(name, values, asked, change) {
  const chosen = values.findIndex(({ value }) => value === asked.filters[name]);
  const options = values.map(({ value, count }, row) => el("option", { value: row, selected: row === chosen }, `${value}  (${count})`));
  return el("select", { "aria-label": `Filter by ${name}`, class: chosen < 0 ? "" : "set", onchange: (event) => {
    const row = event.target.value;
    const { [name]: _, ...others } = asked.filters;
    change({ filters: row === "" ? others : { ...others, [name]: values[row].value } });
  } }, el("option", { value: "" }, `${name}: any`), ...options);
}

function albums(asked, change) {
  const known = albumSizes();
  if (asked.album && !known.some(([name]) => name === asked.album)) known.push([asked.album, 0]);
  if (!known.length) return null;
  return el("select", { "aria-label": "Album", class: asked.album ? "set" : "", onchange: (event) => change({ album: event.target.value }) },
    el("option", { value: "" }, "album: any"),
    ...known.map(([name, size]) => el("option", { value: name, selected: name === asked.album }, `${name}  (${size})`)));
}

function order(asked, change) {
  const question = asked.text || asked.like || asked.picture;
  const orders = question ? [["", "best first"], ["newest", "newest first"]] : [["", "newest first"], ["oldest", "oldest first"]];
  return el("select", { "aria-label": "Order", onchange: (event) => change({ order: event.target.value }) },
    ...orders.map(([value, words]) => el("option", { value, selected: value === asked.order }, words)));
}

// From and to, or a year with one click. It is not redrawn while it is open, so that nothing typed is lost.
function dates(asked, years, change) {
  if (!years.length) return null;
  const { from, to } = asked, set = Boolean(from || to), whole = (year) => from === year && to === year;
  const words = !set ? "any date" : whole(from) && from.length === 4 ? from : [from && `from ${from}`, to && `to ${to}`].filter(Boolean).join(" ");
  const input = (name, label) => el("label", {}, label, el("input", { type: "date", name, min: "1826-01-01", max: "2199-12-31",
    onchange: (event) => change({ [name]: event.target.value }) }));
  const made = $("filters").querySelector("details.dates[open]") ?? el("details", { class: "dates", onkeydown: closeOnEscape, ontoggle: place }, el("summary"),
    el("div", { class: "sheet" }, el("div", { class: "years" }), el("div", { class: "span" }, input("from", "From"), input("to", "To")),
      el("button", { type: "button", class: "any", onclick: () => change({ from: "", to: "" }) }, "Any date")));
  const [summary, sheet] = made.children;
  summary.textContent = words;
  summary.className = set ? "pill set" : "pill";
  summary.setAttribute("aria-label", `Dates: ${words}`);
  sheet.querySelector(".years").replaceChildren(...years.map((year) => el("button", { type: "button", "aria-pressed": String(whole(year)),
    onclick: () => change(whole(year) ? { from: "", to: "" } : { from: year, to: year }) }, year)));
  for (const field of sheet.querySelectorAll("input")) if (field !== document.activeElement) field.value = full(asked[field.name], field.name);
  sheet.querySelector(".any").hidden = !set;
  return made;
}

// On a phone the row of filters scrolls, and would cut off a menu below it.
function place({ currentTarget: { firstChild, lastChild } }) {
  lastChild.style.setProperty("--under", `${firstChild.getBoundingClientRect().bottom + 6}px`);
}

function closeOnEscape(event) {
  if (event.key !== "Escape") return;
  event.stopPropagation();
  event.currentTarget.open = false;
  event.currentTarget.firstChild.focus();
}

const full = (date, name) => (date.length === 4 ? `${date}-${name === "from" ? "01-01" : "12-31"}` : date);
