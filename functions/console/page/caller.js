import { get } from "./api.js";
import { announce, h } from "./dom.js";

let caller = null;
let newest = 0;

/** Return the client of the token, as the API describes it; null while it is not known. */
export function currentCaller() {
  return caller;
}

/** Ask whose token this is, then enable the actions that its scopes allow. If the API does not say, all are enabled. */
export async function loadCaller() {
  newest += 1;
  const number = newest;
  caller = null;
  let found = null;
  try {
    found = await get("/v1/me");
  } catch {
    // The API decides about each action anyway, and says which scope is missing.
  }
  if (number !== newest) return; // another token was given meanwhile
  caller = found;
  document.querySelectorAll("[data-scope]").forEach(applyScope);
}

/** Return whether the token has a scope, as far as it is known. */
export function hasScope(scope) {
  return caller === null || caller.scopes.includes(scope);
}

/**
 * Return a button, which is disabled with the reason if the token lacks a scope. It keeps the focus, so that a keyboard
 * reaches it and a screen reader says why.
 */
export function needsScope(scope, button) {
  button.dataset.scope = scope;
  applyScope(button);
  return button;
}

/** Return a visible explanation, which is hidden if the token has the scope. */
export function scopeNote(scope, what) {
  const note = h(
    "p",
    { class: "scope-note", "data-scope": scope, "data-scope-note": "" },
    `${what} ${what.includes(" and ") ? "need" : "needs"} the scope `,
    h("code", {}, scope),
    ", which your token does not have.",
  );
  applyScope(note);
  return note;
}

function applyScope(element) {
  const isAllowed = hasScope(element.dataset.scope);
  if ("scopeNote" in element.dataset) {
    element.hidden = isAllowed;
    return;
  }
  const reason = `It needs the scope ${element.dataset.scope}, which your token does not have.`;
  for (const [name, value] of [
    ["aria-disabled", "true"],
    ["aria-description", reason],
    ["title", reason],
  ]) {
    if (isAllowed) element.removeAttribute(name);
    else element.setAttribute(name, value);
  }
}

// Before the listeners of the buttons.
document.addEventListener(
  "click",
  (event) => {
    const button = event.target.closest?.('[data-scope][aria-disabled="true"]');
    if (!button) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    announce(button.title);
  },
  true,
);
