// The question, and how the address of the page states it.
import { $, el } from "./dom.js";
import { pictureAddress } from "./http.js";

const NOTHING = { text: "", like: null, picture: null, filters: {}, where: "", album: "", from: "", to: "", order: "", view: "" };
export const asked = { ...NOTHING };

export const isQuestion = () => !asked.view && Boolean(asked.text || asked.picture || (asked.like && !asked.like.less));

// The address holds the question, except a picture from this machine, which nobody else has. What is typed until Enter
// is one step of the history.
export function writeAddress(typing, left) {
  const { text, like, where, album, from, to, order, view } = asked;
  const pairs = Object.entries({ text, [like?.less ? "unlike" : "like"]: like?.id ?? "", where, album, from, to, order, view });
  for (const [name, value] of Object.entries(asked.filters)) pairs.push([`is.${name}`, JSON.stringify(value)]);
  const words = new URLSearchParams(pairs.filter(([, value]) => value !== "")).toString();
  const goesOn = typing && history.state?.typing;
  if (!goesOn) history.replaceState({ ...history.state, left }, ""); // where Back returns to
  history[goesOn ? "replaceState" : "pushState"]({ typing }, "", words ? `?${words}` : location.pathname);
}

// `fields`: the ones to filter by.
export function readAddress(fields) {
  const words = new URLSearchParams(location.search);
  const id = words.get("like") ?? words.get("unlike");
  const filters = {};
  for (const [name, value] of words) {
    if (!name.startsWith("is.") || !(name.slice(3) in fields)) continue;
    try { filters[name.slice(3)] = JSON.parse(value); } catch { /* not written by this page */ }
  }
  const plain = ["text", "where", "album", "from", "to", "order", "view"].map((name) => [name, words.get(name) ?? ""]);
  Object.assign(asked, NOTHING, Object.fromEntries(plain), { like: id ? { id, less: words.has("unlike") } : null, filters });
  $("text").value = asked.text;
}

// The pictures of the question, before its words; `shows`: whether pictures can be seen.
export function drawChips(shows, change) {
  const chips = [];
  if (asked.like) chips.push(chip(asked.like.less ? "Less like this" : "Like this", shows && pictureAddress(asked.like.id, 160),
    () => change({ like: null })));
  if (asked.picture) chips.push(chip("Your picture", asked.picture.address, () => change({ picture: null })));
  $("chips").replaceChildren(...chips);
  $("text").placeholder = chips.length ? "… and with words" : "Describe a picture";
}

function chip(words, address, remove) {
  const image = el("img", { alt: "", src: address, onerror: () => image.remove() });
  const button = el("button", { type: "button", "aria-label": `Remove: ${words}`, onclick: () => { remove(); $("text").focus(); } }, "×");
  return el("span", { class: "chip" }, image, el("span", {}, words), button);
}
