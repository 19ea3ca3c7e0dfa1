// The API: JSON in and out, the token where one is needed, and pictures that need it too.
import { $ } from "./dom.js";

const KEPT = "selhn-token";
let token = sessionStorage.getItem(KEPT) ?? "";
let asking = null;

const handed = /^#token=(.+)$/.exec(location.hash);
if (handed) {
  keep(decodeURIComponent(handed[1]));
  history.replaceState(null, "", location.pathname + location.search);
}

function keep(value) {
  token = value;
  sessionStorage.setItem(KEPT, value);
}

// One question to the person, however many requests wait for the answer.
function askForToken() {
  asking ??= new Promise((resolve) => {
    const dialog = $("login");
    dialog.addEventListener("close", () => {
      keep($("token").value.trim());
      $("token").value = "";
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

class Problem extends Error {
  constructor(reason, status) {
    super(reason.charAt(0).toUpperCase() + reason.slice(1));
    this.status = status;
  }
}

async function send(path, options = {}) {
  const headers = { ...(options.headers ?? {}), ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let answer;
  try {
    answer = await fetch(`/api/v1${path}`, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The service does not answer. Is it still running?", 0);
  }
  if (answer.status === 401) {
    await askForToken();
    return send(path, options);
  }
  if (!answer.ok) {
    const told = await answer.json().catch(() => ({}));
    throw new Problem(told.error ?? `The service answered ${answer.status}.`, answer.status);
  }
  return answer;
}

const query = (parameters) => {
  const pairs = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return pairs.length ? `?${new URLSearchParams(pairs)}` : "";
};

export const get = async (path, parameters = {}, signal) => (await send(path + query(parameters), { signal })).json();

export const ask = async (parameters, picture, signal) =>
  (await send(`/search${query(parameters)}`, picture === null ? { signal } : {
    method: "POST", body: picture, headers: { "Content-Type": picture.type || "image/jpeg" }, signal,
  })).json();

export const write = async (method, path, parameters, body = null, kind = "application/json") =>
  send(path + query(parameters), { method, body, headers: body === null ? {} : { "Content-Type": kind } });

// An image element cannot send a token; with one, its bytes are fetched and shown from memory.
export async function show(image, id, size, keep = false) {
  const path = `/picture${query({ id, size })}`;
  if (!token) {
    image.src = `/api/v1${path}`;
    return;
  }
  try {
    const address = URL.createObjectURL(await (await send(path)).blob());
    const free = () => setTimeout(() => URL.revokeObjectURL(address), keep ? 20_000 : 0);
    image.addEventListener("load", free, { once: true });
    image.addEventListener("error", free, { once: true });
    image.src = address;
  } catch {
    image.dispatchEvent(new Event("error"));
  }
}

// A video element cannot send a token either; the file is then fetched whole.
export async function play(video, item, seconds) {
  const path = `/original${query({ id: item.id })}`;
  video.src = (token ? URL.createObjectURL(await (await send(path)).blob()) : `/api/v1${path}`) + `#t=${seconds}`;
}

// The file itself, in a new tab or as a download: a link, or with a token a copy in memory.
export function linkOriginal(link, item, download) {
  const path = `/original${query({ id: item.id, download: download || "" })}`;
  link.href = `/api/v1${path}`;
  link.onclick = !token ? null : async (event) => {
    if (link.href.startsWith("blob:")) return;
    event.preventDefault();
    link.href = URL.createObjectURL(await (await send(path)).blob());
    if (download) link.download = item.metadata.file ?? "picture";
    link.click();
  };
}
