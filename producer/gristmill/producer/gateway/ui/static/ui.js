// The page of the gateway: the theme, and live content by server-sent events. Without it, the page works; reload by hand.
"use strict";

const THEMES = ["auto", "light", "dark"];

function storedTheme() {
  try {
    const found = localStorage.getItem("gristmill-theme");
    return THEMES.includes(found) ? found : "auto";
  } catch {
    return "auto"; // no storage in this browser: the theme lasts for a page
  }
}

function applyTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

applyTheme(storedTheme()); // before the body shows

function startThemeButton() {
  const button = document.getElementById("theme");
  if (!button) return;
  let theme = storedTheme();
  const show = () => { button.textContent = `Theme: ${theme}`; };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    applyTheme(theme);
    try { localStorage.setItem("gristmill-theme", theme); } catch { /* see storedTheme */ }
    show();
  });
  button.hidden = false;
  show();
}

// Make `old` equal to `fresh` and keep every element that is in both, so that focus, selection and open details stay.
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) {
    const isState = name === "open" && old.nodeName === "DETAILS"; // the reader's choice
    if (!isState && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  morphChildren(old, fresh);
}

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.dataset.key : undefined);

// An element that moves loses its focus. So what stands before it and is gone is removed, and only a new order moves it.
function morphChildren(old, fresh) {
  const children = [...fresh.childNodes];
  const freshKeys = new Set(children.map(keyOf).filter(Boolean));
  const byKey = new Map([...old.childNodes].filter(keyOf).map((child) => [keyOf(child), child]));
  let next = old.firstChild;
  const removeNext = () => {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  };
  for (const child of children) {
    const key = keyOf(child);
    const same = key ? byKey.get(key) : unkeyedLike(child, next);
    if (!same) {
      old.insertBefore(child, next);
      continue;
    }
    while (next && next !== same && !freshKeys.has(keyOf(next))) removeNext();
    if (same === next) next = next.nextSibling;
    else old.insertBefore(same, next);
    morph(same, child);
  }
  while (next) removeNext();
}

// Return the first node without a key that has the name of `child`, from `next` on and before any node with a key.
function unkeyedLike(child, next) {
  for (let node = next; node && !keyOf(node); node = node.nextSibling) {
    if (node.nodeName === child.nodeName) return node;
  }
  return undefined;
}

function startLive() {
  const live = document.getElementById("live");
  const connection = document.getElementById("connection");
  const status = document.getElementById("status");
  const first = live && live.querySelector("[data-summary]");
  if (!first || !window.EventSource) return;
  let summary = first.dataset.summary;

  const tell = (text, isLive) => {
    if (connection.textContent === text) return;
    connection.hidden = false;
    connection.textContent = text;
    connection.classList.toggle("live", isLive);
  };
  const events = new EventSource(location.href);
  events.addEventListener("page", (event) => {
    const holder = document.createElement("template");
    holder.innerHTML = JSON.parse(event.data);
    morphChildren(live, holder.content);
    tell("Live", true);
    const now = live.querySelector("[data-summary]").dataset.summary;
    if (now !== summary) status.textContent = summary = now; // a screen reader hears what matters, not each number
  });
  events.addEventListener("trouble", (event) => tell(JSON.parse(event.data), false));
  events.addEventListener("ended", () => {
    events.close();
    tell("Signed out; load the page again", false);
  });
  events.addEventListener("error", () => {
    const isOver = events.readyState === EventSource.CLOSED;
    tell(isOver ? "Not live; load the page again" : "Connecting again", false);
  });
  addEventListener("pagehide", () => events.close());
}

document.addEventListener("DOMContentLoaded", () => {
  startThemeButton();
  startLive();
});
