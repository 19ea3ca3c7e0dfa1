// Elements from names, properties and children; strings become text, never markup.
export const $ = (id) => document.getElementById(id);

export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Asks in a dialog; true if the answer is yes.
export async function sure(title, words, verb) {
  const dialog = $("sure");
  $("sure-title").textContent = title;
  $("sure-words").textContent = words;
  $("sure-yes").textContent = verb;
  dialog.returnValue = "";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  return dialog.returnValue === "yes";
}

// A link from the metadata of a collection: only to the web, and without a referrer.
export function outside(address, words) {
  const safe = /^https?:\/\//i.test(String(address));
  return safe ? el("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, words) : el("span", {}, words);
}

// A video is an item of its own; its moments are items too, whose ids add the seconds: clip.mp4#t=12.5.
export const isVideo = ({ metadata }) => metadata.duration > 0 || metadata.moment >= 0;
export const fileOf = ({ id, metadata }) => (metadata.moment >= 0 ? id.replace(/#t=[\d.]+$/, "") : id);
export const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds) % 60).padStart(2, "0")}`;

export const number = (value, digits = 3) =>
  value === null || value === undefined || !Number.isFinite(value) ? "–" : value.toFixed(digits);

export const count = (value, one, many = `${one}s`) => `${value.toLocaleString("en")} ${value === 1 ? one : many}`;
