// Follows a page: the server sends what has changed of it, and rows that differ are put in place.
"use strict";

const live = document.getElementById("live");

function isBusy(element) {
  // A row in which somebody types or has chosen something stays as it is.
  return element.contains(document.activeElement) && document.activeElement !== document.body ||
    element.querySelector("input:checked, details[open]") !== null;
}

function putInPlace(before, after) {
  const kept = new Map();
  for (const element of before.querySelectorAll("[id]")) kept.set(element.id, element);
  if (isBusy(before)) {
    // Only what has an id of its own is replaced, where nobody is at work.
    for (const element of after.querySelectorAll("[id]")) {
      const old = kept.get(element.id);
      if (old && !old.querySelector("[id]") && !isBusy(old) && !old.isEqualNode(element)) old.replaceWith(element.cloneNode(true));
    }
  } else if (!before.isEqualNode(after)) {
    before.replaceChildren(...after.childNodes);
  }
  showTimes();
}

if (live && live.dataset.stream) {
  const source = new EventSource(live.dataset.stream);
  source.onmessage = (event) => {
    const made = document.createElement("template");
    made.innerHTML = JSON.parse(event.data);
    const after = document.createElement("div");
    after.append(made.content);
    putInPlace(live, after);
  };
  source.onopen = () => { document.getElementById("followed").hidden = false; };
  source.onerror = () => { document.getElementById("followed").hidden = true; };
}

const zone = document.getElementById("zone");
const inUtc = new WeakMap();  // as the server has written it

function showTimes() {
  const isLocal = localStorage.getItem("zone") === "local";
  zone.hidden = document.querySelector("time[datetime]") === null;
  zone.textContent = isLocal ? "Times in UTC" : "Local times";
  for (const time of document.querySelectorAll("time[datetime]")) {
    const exact = time.querySelector(".exact");
    if (!exact) continue;
    if (!inUtc.has(exact)) inUtc.set(exact, exact.textContent);
    exact.textContent = isLocal ? new Date(time.getAttribute("datetime")).toLocaleString() : inUtc.get(exact);
  }
}

zone.addEventListener("click", () => {
  localStorage.setItem("zone", localStorage.getItem("zone") === "local" ? "utc" : "local");
  showTimes();
});
showTimes();

// On the document, as what follows is put in place of forms and boxes that were there.
document.addEventListener("submit", (event) => {
  const question = event.target.dataset.sure;
  if (question && !confirm(question)) event.preventDefault();
});
document.addEventListener("change", (event) => {
  if (event.target.id !== "all") return;
  for (const one of document.querySelectorAll("input[name=id]")) one.checked = event.target.checked;
});
