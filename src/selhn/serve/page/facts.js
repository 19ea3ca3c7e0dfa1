// What is known about a picture, in everyday words.
import { clock, el, fileOf, outside } from "./dom.js";
import { timeWords } from "./dates.js";

const TOLD = new Set("license license_url source folder file modified bytes taken camera width height latitude longitude duration moment moments".split(" "));
const decimals = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits });

function bytesWords(bytes) {
  const steps = ["bytes", "KB", "MB", "GB"];
  const step = Math.min(3, Math.max(0, Math.floor(Math.log10(Math.max(1, bytes)) / 3)));
  return `${decimals(bytes / 1000 ** step, step > 1 ? 1 : 0)} ${steps[step]}`;
}

const side = (degrees, [positive, negative]) => `${decimals(Math.abs(degrees), 5)}° ${degrees < 0 ? negative : positive}`;

export function sizeWords({ width, height, bytes }) {
  const parts = [];
  if (typeof bytes === "number") parts.push(bytesWords(bytes));
  if (width > 0 && height > 0) parts.push(`${width} × ${height}`);
  if (width * height >= 1e6) parts.push(`${decimals(width * height / 1e6, 1)} megapixels`);
  return parts.join(", ");
}

export function facts(item, albums) {
  const { metadata } = item;
  const { taken, modified, camera, folder, latitude, longitude } = metadata;
  const place = Number.isFinite(latitude) && Number.isFinite(longitude) ?
    outside(`https://www.openstreetmap.org/?mlat=${latitude}&mlon=${longitude}#map=14/${latitude}/${longitude}`, // only if it is clicked
      `${side(latitude, "NS")}, ${side(longitude, "EW")}`) : "";
  const rows = [
    ["Taken", taken ? timeWords(String(taken)) : ""],
    ["File changed", !taken && modified ? timeWords(String(modified)) : ""],
    ["Length", metadata.duration ? clock(metadata.duration) : ""],
    ["Size", sizeWords(metadata)],
    ["Camera", camera],
    ["Folder", folder === "." ? "" : folder],
    ["Place", place],
    ["Albums", albums.join(", ")],
    ...Object.entries(metadata).filter(([name]) => !TOLD.has(name)),
    ["Path", fileOf(item)],
  ];
  return rows.filter(([, value]) => value !== "" && value !== undefined && value !== null).flatMap(([name, value]) =>
    [el("dt", {}, name), el("dd", {}, typeof value === "string" || value instanceof Node ? value : JSON.stringify(value))]);
}

export async function copy(words, button) {
  const done = (told) => {
    const before = button.dataset.words ??= button.textContent;
    button.textContent = told;
    setTimeout(() => { button.textContent = before; }, 1500);
  };
  try {
    await navigator.clipboard.writeText(words); // only works on localhost or https
    done("Copied");
  } catch {
    const field = el("textarea", { class: "away" }, words);
    button.after(field);
    field.select();
    done(document.execCommand("copy") ? "Copied" : "Not allowed");
    field.remove();
    button.focus();
  }
}
