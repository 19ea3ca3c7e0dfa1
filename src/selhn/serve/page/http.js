// The API: JSON in and out, and the token if one is needed.
import { $ } from "./dom.js";

const KEPT = "selhn-token";
const RENEW = 15 * 60_000; // milliseconds; the cookie lasts an hour
const AGAIN = 1000;
let token = sessionStorage.getItem(KEPT) ?? "";
let asking = null, renewed = 0;

const handed = /^#token=(.+)$/.exec(location.hash);
if (handed) {
  keep(decoded(handed[1]));
  history.replaceState(null, "", location.pathname + location.search);
}

function decoded(words) {
  try {
    return decodeURIComponent(words);
  } catch {
    return words; // typed by hand, with a % that stands for itself
  }
}

function keep(value) {
  [token, renewed] = [value, 0];
  sessionStorage.setItem(KEPT, value);
}

// Ask the person only once, however many requests wait for the answer.
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
  if (token && Date.now() - renewed > RENEW) await renew();
  return answer;
}

// Image and video elements cannot send a token; a cookie opens pictures and original files to them.
async function renew() {
  renewed = Date.now();
  await send("/cookie", { method: "POST" }).catch(() => { renewed = 0; });
}

// A service that was started again does not know the cookie: renewed before the picture is asked for a second time.
addEventListener("error", ({ target }) => {
  if (token && target instanceof HTMLImageElement && Date.now() - renewed > AGAIN) renew();
}, true);

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

// For image and video elements, and for links.
export const pictureAddress = (id, size) => `/api/v1/picture${query({ id, size })}`;
export const originalAddress = (id, download = "") => `/api/v1/original${query({ id, download })}`;
