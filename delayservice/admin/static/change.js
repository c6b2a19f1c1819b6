// Cancel, fire, reschedule: asks first, then says what the log says was done.
// The token is asked for once. It is in this tab's memory (sessionStorage) and in the header of
// changes, nowhere else.

const TOKEN = "delayservice-token";
const WORDS = {
  cancel: {
    title: "Cancel this record?",
    what: "It will not be delivered. That can’t be undone.",
    go: "Cancel the record",
  },
  fire: {
    title: "Deliver this record now?",
    what: "It goes to its target at once, before it is due. That can’t be undone.",
    go: "Deliver it now",
  },
  reschedule: {
    title: "Reschedule this record?",
    what: "A copy with the new time replaces it, at an offset of its own.",
    go: "Reschedule it",
  },
};
const UNITS_MS = { ms: 1, s: 1000, m: 60000, h: 3600000, d: 86400000, w: 604800000 };
const WAIT_MS = 20000;

const dialog = document.getElementById("change");
const part = (name) => document.getElementById(`change-${name}`);

let button = null; // that opened the dialog
let wish = {}; // what it asked for then: a live page may make another button of it meanwhile
let afterwards = () => {};
let isDone = false;

export function openChange(opener, local, relative) {
  button = opener;
  isDone = false;
  wish = { ...button.dataset };
  const { change, id, encoding, target, dueMs } = wish;
  const words = WORDS[change];
  part("title").textContent = words.title;
  part("what").textContent = words.what;
  part("id").textContent = encoding === "base64" ? `base64 ${id}` : shown(id);
  part("target").textContent = shown(target);
  part("due").textContent = `${relative(Number(dueMs))}, ${local(Number(dueMs), "full")}`;
  part("time").hidden = change !== "reschedule";
  part("do").textContent = words.go;
  part("do").hidden = false;
  part("do").disabled = false;
  part("do").classList.toggle("danger", change === "cancel");
  part("close").textContent = "Close without changes";
  part("token").value = "";
  part("after").value = "";
  part("at").value = "";
  say("", "");
  askToken(sessionStorage.getItem(TOKEN) === null);
  dialog.showModal();
  firstField(change).focus();
}

// What can be done by mistake is not what Enter does first.
function firstField(change) {
  if (change === "reschedule") return part("after");
  return part("token-field").hidden ? part("close") : part("token");
}

// As on the page: what would change how text around it looks is written as its code point.
function shown(text) {
  const cut = text.length > 200 ? `${text.slice(0, 200)}…` : text;
  return cut.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu, (char) => {
    return `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
  });
}

function askToken(isWanted) {
  part("token-field").hidden = !isWanted;
}

function say(error, result, isDoubtful = false) {
  part("error").textContent = error;
  part("result").textContent = result;
  part("result").classList.toggle("doubtful", isDoubtful);
}

function newTime() {
  const after = part("after").value.trim().toLowerCase();
  const at = part("at").value;
  if (Boolean(after) === Boolean(at)) throw new Error("Enter one of the two times.");
  if (at) return { at_ms: new Date(at).getTime() };
  const parts = [...after.matchAll(/(\d+(?:\.\d+)?)(ms|[smhdw])/g)];
  if (parts.length === 0 || parts.map((found) => found[0]).join("") !== after.replace(/\s/g, "")) {
    throw new Error("Enter a delay such as 30s, 10m or 1h30m.");
  }
  return { after_ms: Math.round(parts.reduce((sum, [, number, unit]) => sum + number * UNITS_MS[unit], 0)) };
}

function question() {
  const { change, id, encoding, topic, partition } = wish;
  const asked = { id, encoding, topic, partition: Number(partition) };
  return change === "reschedule" ? { ...asked, ...newTime() } : asked;
}

async function send(asked, token) {
  const answer = await fetch(`/v1/records/${wish.change}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
    body: JSON.stringify(asked),
    signal: AbortSignal.timeout(WAIT_MS),
  });
  return { status: answer.status, said: await answer.json() };
}

async function go() {
  const typed = part("token").value.trim();
  const token = part("token-field").hidden ? sessionStorage.getItem(TOKEN) : typed;
  if (!token) {
    say("Changes need the token.", "");
    part("token").focus();
    return;
  }
  let asked;
  try {
    asked = question();
  } catch (error) {
    say(error.message, "");
    part("after").focus();
    return;
  }
  say("", "");
  part("do").disabled = true;
  try {
    tellAnswer(await send(asked, token), token);
  } catch (error) {
    const why = error.name === "TimeoutError" ? "The node has not answered for 20 s" : "The node does not answer";
    say(`${why}: it is unknown whether the change was made. Check the record before you retry.`, "");
  } finally {
    part("do").disabled = false;
  }
}

function tellAnswer({ status, said }, token) {
  if (status === 401) {
    sessionStorage.removeItem(TOKEN);
    askToken(true);
    say("The token is wrong. Nothing was changed.", "");
    part("token").select();
    part("token").focus();
    return;
  }
  sessionStorage.setItem(TOKEN, token);
  askToken(false);
  if (status !== 200) {
    say([`Not done: ${said.detail}`, ...(said.errors ?? [])].join(" "), "");
    return;
  }
  isDone = true;
  part("do").hidden = true;
  part("time").hidden = true;
  part("close").textContent = "Close";
  part("close").focus();
  const doubtful = said.outcome === null || said.outcome === "not_pending";
  say("", `${said.outcome ?? "Not known yet"}: ${said.detail}. Written as ${said.written.join(", ")}.`, doubtful);
}

// The button may be gone with its record: then the focus goes to what names it.
function giveBackFocus() {
  const row = button.closest("tr");
  if (isDone) row?.querySelector(".row-buttons").replaceChildren(mark());
  const next = button.isConnected ? button : row?.querySelector("a");
  (next ?? document.getElementById("record-title"))?.focus();
  afterwards();
}

function mark() {
  const tag = document.createElement("span");
  tag.className = "tag";
  tag.textContent = part("result").textContent.split(":")[0];
  return tag;
}

export function bringIn(refresh) {
  afterwards = refresh;
  if (dialog === null) return;
  part("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!part("do").disabled && !part("do").hidden) go();
  });
  part("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", giveBackFocus);
}
