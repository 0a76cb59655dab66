// While an editor is open, this reports it to the server. While another user has one open, this
// polls the server until that edit is over. Each answer contains the time of the next request.
// Without scripts an edit counts as over after a while, and the notice stays until the page is
// opened again.
"use strict";

const notice = document.getElementById("editing");
const time = notice.querySelector("time");
const lease = document.querySelector("input[name=lease]"); // of an editor; a waiting window has none
const SLOWEST = 60; // seconds, while the server does not answer

let timer;
let pause = 1;
let saving = false;

async function ask() {
  const said = lease && { method: "POST", body: new URLSearchParams({ lease: lease.value }) };
  const answer = await fetch(notice.dataset.address, said ?? {});
  if (!answer.ok) throw new Error(answer.statusText);
  return answer.json();
}

function hear(answer) {
  if (lease) lease.value = answer.lease;
  else if (answer.since === null) location.reload(); // it becomes the editor
  notice.hidden = answer.since === null;
  if (answer.since !== null) {
    time.dateTime = answer.since;
    time.textContent = answer.said;
  }
}

async function beat() {
  clearTimeout(timer);
  if (!lease && document.hidden) return; // no visible window waits
  try {
    const answer = await ask();
    hear(answer);
    pause = answer.again;
  } catch {
    pause = Math.min(2 * pause, SLOWEST);
  }
  // Not all at the same moment, if many wait.
  timer = setTimeout(beat, 1000 * pause * (0.8 + 0.2 * Math.random()));
}

function leave() {
  clearTimeout(timer);
  if (!lease?.value || saving) return; // a save ends the lease
  const body = new URLSearchParams({ lease: lease.value });
  navigator.sendBeacon(`${notice.dataset.address}/end`, body);
}

// Of a save by another user the editor is told at once. The tag in its form names what it has seen,
// so nothing is missed while the window is hidden, and a hidden one needs no connection.
const changed = document.getElementById("changed");
let events;

function follow() {
  events?.close();
  if (!changed || document.hidden || saving) return;
  const { value: seen } = lease.form.elements.tag;
  events = new EventSource(`${changed.dataset.address}?${new URLSearchParams({ seen })}`);
  events.onmessage = ({ data }) => {
    const { by, deleted } = JSON.parse(data);
    const what = deleted ? "deleted" : "changed";
    changed.querySelector("strong").textContent = `${by ?? "Somebody"} has ${what} this page just now.`;
    changed.hidden = false;
  };
}

lease?.form.addEventListener("submit", () => {
  saving = true;
  clearTimeout(timer);
  events?.close();
});
addEventListener("pagehide", () => {
  leave();
  events?.close();
});
addEventListener("pageshow", () => {
  saving = false;
  follow();
  // What was reloaded was perhaps our own editor, whose end is still on its way.
  timer = setTimeout(beat, lease ? 0 : 1000);
});
document.addEventListener("visibilitychange", () => {
  if (!lease && !document.hidden) beat();
  follow();
});
for (const text of document.querySelectorAll("[data-with-script]")) text.hidden = false;

// In the box of a conflict, from one place that is still open to the next.
const box = document.getElementById("body");
let at = -1;

document.getElementById("next")?.addEventListener("click", () => {
  const places = [...box.value.matchAll(/^<<<<<<< yours, not saved[^]*?^>>>>>>> end$/gm)];
  const place = places.find((one) => one.index > at) ?? places[0];
  if (!place) return;
  at = place.index;
  box.blur();
  box.setSelectionRange(at, at);
  box.focus(); // scrolls to it
  box.setSelectionRange(at, at + place[0].length);
});
