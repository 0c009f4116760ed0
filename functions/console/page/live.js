import { failureNotice } from "./failures.js";
import { announce, h, hasSelection, replaceContent } from "./dom.js";
import { formatTime } from "./format.js";

const REFRESH_KEY = "grantwire-refresh";
const MAX_DELAY_FACTOR = 6;

/** Whether pages refresh by themselves, when the last refresh was, and who wants to know. */
export const refreshing = {
  paused: sessionStorage.getItem(REFRESH_KEY) === "paused",
  active: false,
  at: 0,
  failed: false,
  changed: () => {},
  toggle() {
    this.paused = !this.paused;
    sessionStorage.setItem(REFRESH_KEY, this.paused ? "paused" : "live");
    this.changed();
    if (this.paused) current?.pause();
    else current?.refresh();
  },
};

let current = null;

/** Stop the refreshes of the page that is shown. */
export function stopLive() {
  current?.stop();
  current = null;
  Object.assign(refreshing, { active: false, at: 0, failed: false });
}

/**
 * Show what `load` returns with `render`, and again every `every` milliseconds while the tab is visible. If a refresh
 * fails, the last content stays and a notice says since when. A refresh waits while text in it is selected.
 */
export function showLive(container, load, render, { every = 5000, scope = null } = {}) {
  const failure = h("div", { class: "live-failure" });
  const content = h("div", { class: "live-content" }, h("p", { class: "loading", role: "status" }, "Loading…"));
  container.append(failure, content);
  refreshing.active = true;
  refreshing.changed();
  let timer = 0;
  let stopped = false;
  let shownAt = 0;
  let failures = 0;
  let newest = 0;
  let isOver = false;

  async function refresh() {
    clearTimeout(timer);
    newest += 1;
    const number = newest;
    // A response is not drawn if its page was left, or if a newer refresh has begun meanwhile.
    const isObsolete = () => stopped || number !== newest;
    try {
      const data = await load();
      if (isObsolete()) return;
      show(data);
    } catch (error) {
      if (isObsolete()) return;
      fail(error);
    }
    plan();
  }

  function show(data) {
    refreshing.failed = false;
    refreshing.changed();
    if (shownAt && hasSelection(content)) return; // the notice and the time stay those of what is shown
    const isRecovery = failures > 0;
    failures = 0;
    isOver = false;
    refreshing.at = Date.now();
    refreshing.changed();
    failure.replaceChildren();
    content.classList.remove("stale");
    replaceContent(content, render(data));
    shownAt = Date.now();
    if (isRecovery) announce("The connection works again.");
  }

  function fail(error) {
    failures += 1;
    refreshing.failed = true;
    refreshing.changed();
    const isTransient = error.part === "api" || error.part === "database" || error.part === "limit";
    isOver = error.part === "token"; // it does not become valid again
    const keeps = shownAt > 0 && (isTransient || isOver);
    const old =
      keeps && h("p", { class: "strong" }, `Below is the state of ${formatTime(new Date(shownAt).toISOString())}.`);
    const retry =
      isTransient && h("button", { type: "button", class: "button", "data-key": "retry", onclick: refresh }, "Try now");
    replaceContent(failure, failureNotice(error, scope, { more: [old, retry] }));
    if (keeps) content.classList.add("stale");
    else content.replaceChildren();
  }

  function plan() {
    clearTimeout(timer);
    if (!stopped && !isOver && !refreshing.paused && !document.hidden) {
      timer = setTimeout(refresh, every * Math.min(1 + failures, MAX_DELAY_FACTOR));
    }
  }

  function onVisibility() {
    if (document.hidden) clearTimeout(timer);
    else if (!refreshing.paused && !isOver) refresh();
  }

  document.addEventListener("visibilitychange", onVisibility);
  current = {
    refresh,
    pause: () => clearTimeout(timer),
    stop() {
      stopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisibility);
    },
  };
  refresh();
  return refresh;
}

/** Show the current state of the page without waiting for the next refresh. Return whether the page has one. */
export function refreshNow() {
  current?.refresh();
  return current !== null;
}
