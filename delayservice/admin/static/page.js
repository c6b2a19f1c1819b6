// What the page does beyond being read: it stays fresh, times are local and tick, text is copied.
// It never draws: the node sends the same HTML as always, and what differs is put into place.

const POLL_MS = 1000;
const ANSWER_MS = 8000;
const root = document.documentElement;

let aheadMs = Number(root.dataset.nowMs) - Date.now(); // of the node's clock before this one
let freshMs = Number(root.dataset.nowMs); // when the node said what is shown
let isStale = false;
let isAsking = false;

const nodeMs = () => Date.now() + aheadMs;

// --- times ----------------------------------------------------------------------------------------

const STEPS = [[86400000, "d"], [3600000, "h"], [60000, "min"], [1000, "s"]];

function span(ms) {
  let left = Math.floor(Math.abs(ms) / 1000) * 1000;
  const parts = [];
  for (const [size, unit] of STEPS) {
    if (left >= size) parts.push(`${Math.floor(left / size).toLocaleString("en")} ${unit}`);
    else if (parts.length) break;
    left %= size;
    if (parts.length === 2) break;
  }
  return parts.join(" ") || "0 s";
}

const two = (number, width = 2) => String(number).padStart(width, "0");
const zoneOf = new Intl.DateTimeFormat("en", { timeZoneName: "short" });

function zone(at) {
  return zoneOf.formatToParts(at).find((part) => part.type === "timeZoneName").value;
}

function local(ms, form) {
  const at = new Date(ms);
  const minute = `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (form === "minute") return minute;
  const clock = `${minute}:${two(at.getSeconds())}`;
  if (form === "clock") return clock;
  const day = `${two(at.getFullYear(), 4)}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${clock}.${two(at.getMilliseconds(), 3)} ${zone(at)}`;
}

function relative(ms) {
  const ahead = ms - nodeMs();
  return ahead >= 0 ? `in ${span(ahead)}` : `${span(ahead)} ago`;
}

const write = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

function localise(within) {
  for (const time of within.querySelectorAll("time[data-ms]")) {
    const ms = Number(time.dataset.ms);
    if (Number.isNaN(new Date(ms).getTime())) continue;
    write(time, time.dataset.form === "relative" ? relative(ms) : local(ms, time.dataset.form));
  }
  for (const mark of within.querySelectorAll(".zone")) mark.textContent = ` ${zone(new Date())}`;
}

function tick() {
  for (const time of document.querySelectorAll('time[data-form="relative"]')) {
    write(time, relative(Number(time.dataset.ms)));
  }
  if (isStale) write(document.getElementById("gone-age"), `Figures are ${span(nodeMs() - freshMs)} old.`);
}

// --- staying fresh --------------------------------------------------------------------------------

function prepare(within) {
  localise(within);
  for (const node of within.querySelectorAll("[data-scripted]")) node.hidden = false;
}

const hasChild = (parent, id) => [...parent.children].some((child) => child.id === id);

function removeUpTo(place, id) {
  while (place !== null && place.id !== id) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
  return place;
}

// Makes `old` like `fresh`, and keeps every node that can be kept: focus, selection and scroll
// positions stay where they are. Whether details are open is the reader's business.
function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  for (const { name } of [...old.attributes]) {
    if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  let place = old.firstChild;
  for (const node of [...fresh.childNodes]) {
    // What has an id stays where it is, when something before it has gone or come.
    if (node.id && hasChild(old, node.id)) place = removeUpTo(place, node.id);
    const next = place?.nextSibling ?? null;
    if (place === null) old.append(node);
    else if (place.nodeName !== node.nodeName || place.id !== node.id) {
      if (place.id && hasChild(fresh, place.id)) {
        old.insertBefore(node, place);
        continue;
      }
      place.replaceWith(node);
    } else if (node.nodeType === Node.ELEMENT_NODE) morph(place, node);
    else if (place.data !== node.data) place.data = node.data;
    place = next;
  }
  removeUpTo(place, null);
}

function adopt(fresh) {
  const nowMs = Number(fresh.documentElement.dataset.nowMs);
  aheadMs = nowMs - Date.now();
  freshMs = nowMs;
  prepare(fresh);
  const focused = document.activeElement;
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    if (other !== null) morph(part, other);
  }
  // What had the focus may be gone with its record.
  if (!focused.isConnected) document.getElementById("record-title")?.focus();
  const reading = document.querySelector(".reading.held");
  if (reading !== null) reading.textContent = reading.dataset.held;
}

function tellGone(what) {
  isStale = what !== "";
  root.classList.toggle("stale", isStale);
  document.getElementById("gone").hidden = !isStale;
  write(document.getElementById("gone-what"), what);
  tick();
}

async function ask() {
  let answer;
  try {
    answer = await fetch(root.dataset.poll, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
  } catch (error) {
    const slow = error.name === "TimeoutError";
    return slow ? "The node has not answered for 8 s; retrying every second." : "The node does not answer; retrying every second.";
  }
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (answer.ok) {
    adopt(fresh);
    return "";
  }
  if (answer.status === 401) return "The node requires authentication: reload the page.";
  const detail = fresh.getElementById("error-detail")?.textContent ?? `status ${answer.status}`;
  return `The node can’t report its state: ${detail}`;
}

async function refresh() {
  if (isAsking || document.hidden) return;
  isAsking = true;
  try {
    tellGone(await ask());
  } catch (error) {
    tellGone(`The connection broke: ${error.message}`);
  } finally {
    isAsking = false;
  }
}

// --- small helps ----------------------------------------------------------------------------------

function tell(text) {
  const told = document.getElementById("told");
  told.textContent = text;
  clearTimeout(tell.timer);
  tell.timer = setTimeout(() => { told.textContent = ""; }, 2500);
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    tell("Copied.");
  } catch {
    tell("The browser blocked the copy: select the text and copy it manually.");
  }
}

function readBar(bar) {
  const reading = document.querySelector("#timeline .reading");
  if (reading === null) return;
  reading.classList.toggle("held", bar !== null);
  const { from, to, count } = bar?.dataset ?? {};
  reading.dataset.held = bar && `${count} due from ${local(Number(from), "clock")} to ${local(Number(to), "clock")}; click to list them`;
  reading.textContent = bar ? reading.dataset.held : `${reading.dataset.reading}.`;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button !== null) copy(button);
  const bar = event.target.closest(".bars g");
  if (bar !== null) location.assign(`/pending?from=${bar.dataset.from}&to=${bar.dataset.to}`);
});
document.addEventListener("pointerover", (event) => {
  const bar = event.target.closest?.(".bars g") ?? null;
  if (bar !== null || document.querySelector(".reading.held") !== null) readBar(bar);
});
document.addEventListener("visibilitychange", refresh);

// The token is typed once. It is in this tab's memory, and in the forms of changes, nowhere else.
const TOKEN = "delayservice-token";
const token = document.getElementById("token");
if (token !== null) {
  if (token.hasAttribute("aria-invalid")) sessionStorage.removeItem(TOKEN);
  token.value = sessionStorage.getItem(TOKEN) ?? "";
  // What can be done by mistake is not what Enter does first.
  if (token.value && document.activeElement === token) document.getElementById("back").focus();
  token.form.addEventListener("submit", () => sessionStorage.setItem(TOKEN, token.value));
}

root.classList.add("scripted");
prepare(document);
setInterval(() => { if (!document.hidden) tick(); }, 1000);
setInterval(refresh, POLL_MS);
