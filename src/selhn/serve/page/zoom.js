// Gestures on a picture: wheel, pinch and double tap zoom, dragging moves what is zoomed, a swipe turns the page.
const MOST = 10, DOUBLE = 2.6, TAP = 300;
const AWAY = 60; // pixels; a shorter swipe does not count
const CONTROLS = 90; // height in pixels of a video's own buttons
let stage, figure, use, scale = 1, x = 0, y = 0, tapped = { time: 0, x: 0, y: 0 };
const held = new Map();

export function startZoom(where, what, actions) {
  [stage, figure, use] = [where, what, actions];
  stage.addEventListener("pointerdown", down);
  stage.addEventListener("pointermove", move);
  for (const name of ["pointerup", "pointercancel"]) stage.addEventListener(name, up);
  stage.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoomAt(scale * Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0022)), event.clientX, event.clientY);
  }, { passive: false });
}

export function resetZoom() {
  [scale, x, y] = [1, 0, 0];
  apply();
}

export function zoomBy(factor) {
  const box = stage.getBoundingClientRect();
  zoomAt(scale * factor, box.left + box.width / 2, box.top + box.height / 2);
}

function apply(quickly = false) {
  figure.classList.toggle("gliding", !quickly);
  figure.style.transform = scale === 1 && !x && !y ? "" : `translate(${x}px, ${y}px) scale(${scale})`;
  stage.classList.toggle("zoomed", scale > 1);
}

// The point under the fingers stays under them.
function zoomAt(wanted, clientX, clientY, quickly = true) {
  const box = stage.getBoundingClientRect(), next = Math.max(1, Math.min(MOST, wanted)), factor = next / scale;
  const [px, py] = [clientX - box.left - box.width / 2, clientY - box.top - box.height / 2];
  [x, y, scale] = [px - (px - x) * factor, py - (py - y) * factor, next];
  bound();
  apply(quickly);
  if (scale > 1.2) use.sharper();
}

function bound() {
  const free = (own, space) => Math.max(0, (own * scale - space) / 2);
  const [across, down] = [free(figure.offsetWidth, stage.clientWidth), free(figure.offsetHeight, stage.clientHeight)];
  [x, y] = [Math.max(-across, Math.min(across, x)), Math.max(-down, Math.min(down, y))];
}

function down(event) {
  const video = event.target.closest("video"); // its controls need the mouse, and fingers at its lower edge
  if (event.target.closest("button, a") || event.button) return;
  if (video && (event.pointerType === "mouse" || event.clientY > video.getBoundingClientRect().bottom - CONTROLS)) return;
  if (!video) stage.setPointerCapture(event.pointerId);
  held.set(event.pointerId, { x: event.clientX, y: event.clientY, fromX: event.clientX, fromY: event.clientY });
}

function move(event) {
  const finger = held.get(event.pointerId);
  if (!finger) return;
  const other = [...held.entries()].find(([id]) => id !== event.pointerId)?.[1];
  if (other) {
    const apart = (one) => Math.hypot(one.x - other.x, one.y - other.y) || 1;
    const next = { x: event.clientX, y: event.clientY };
    zoomAt(scale * apart(next) / apart(finger), (next.x + other.x) / 2, (next.y + other.y) / 2);
  } else if (scale > 1) {
    [x, y] = [x + event.clientX - finger.x, y + event.clientY - finger.y];
    bound();
    apply(true);
  } else if (event.pointerType !== "mouse") {
    const [across, along] = [event.clientX - finger.fromX, event.clientY - finger.fromY];
    [x, y] = Math.abs(across) > Math.abs(along) ? [across, 0] : [0, along];
    apply(true);
  }
  Object.assign(finger, { x: event.clientX, y: event.clientY, pinched: finger.pinched || Boolean(other) });
}

function up(event) {
  const finger = held.get(event.pointerId);
  held.delete(event.pointerId);
  if (!finger || held.size || event.type === "pointercancel") return settle();
  const [across, along] = [event.clientX - finger.fromX, event.clientY - finger.fromY];
  if (Math.hypot(across, along) < 8 && !finger.pinched) return tap(event);
  if (scale === 1 && event.pointerType !== "mouse" && !finger.pinched) {
    [x, y] = [0, 0];
    if (Math.abs(across) > Math.max(AWAY, Math.abs(along))) use.turn(across < 0 ? 1 : -1);
    else if (Math.abs(along) > AWAY * 1.5) use[along > 0 ? "close" : "tell"]();
  }
  settle();
}

function settle() {
  bound();
  apply();
}

function tap(event) {
  const now = performance.now(), near = Math.hypot(event.clientX - tapped.x, event.clientY - tapped.y) < 30;
  settle();
  if (near && now - tapped.time < TAP) {
    tapped = { time: 0, x: 0, y: 0 };
    zoomAt(scale > 1 ? 1 : DOUBLE, event.clientX, event.clientY, false);
  } else {
    tapped = { time: now, x: event.clientX, y: event.clientY };
  }
}
