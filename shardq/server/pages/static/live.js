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

function showTimes() {
  const isLocal = localStorage.getItem("zone") === "local";
  zone.textContent = isLocal ? "Times in UTC" : "Local times";
  for (const time of document.querySelectorAll("time[datetime]")) {
    const exact = time.querySelector(".exact");
    if (!exact) continue;
    const at = new Date(time.getAttribute("datetime"));
    exact.textContent = isLocal ? at.toLocaleString() : at.toISOString().replace("T", " ");
  }
}

zone.hidden = false;
zone.addEventListener("click", () => {
  localStorage.setItem("zone", localStorage.getItem("zone") === "local" ? "utc" : "local");
  showTimes();
});
showTimes();

for (const form of document.querySelectorAll("form[data-sure]")) {
  form.addEventListener("submit", (event) => { if (!confirm(form.dataset.sure)) event.preventDefault(); });
}
const all = document.getElementById("all");
if (all) all.addEventListener("change", () => {
  for (const one of document.querySelectorAll("input[name=id]")) one.checked = all.checked;
});
