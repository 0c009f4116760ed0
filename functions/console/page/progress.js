import { ApiError, get } from "./api.js";
import { badge, definitions, link, notice } from "./components.js";
import { announce, h } from "./dom.js";
import { failureNotice } from "./failures.js";
import { countOf, formatCount, formatName } from "./format.js";
import { refreshNow } from "./live.js";
import { loadRecent, noticesAbout } from "./recent.js";

const FOLLOW_MILLISECONDS = 1000;

/** Return the list of skipped counts by reason, or null if there are none. */
export function skippedList(skipped) {
  const entries = Object.entries(skipped ?? {});
  if (entries.length === 0) return null;
  return h(
    "div",
    {},
    h("p", { class: "quiet" }, "Skipped:"),
    h(
      "ul",
      { class: "skipped" },
      entries.map(([reason, count]) => h("li", {}, h("strong", {}, formatCount(count)), ` ${reason}`)),
    ),
  );
}

/**
 * Follow a command in an element until it has ended. If it changed less than it selected, commands of others on the same
 * `selection` are shown below it.
 */
export function follow(body, commandId, close, selection = null) {
  const state = h("div", { class: "stack", tabindex: "-1", "data-command": commandId });
  const footer = h(
    "div",
    { class: "dialog-actions" },
    link(`#/commands/${commandId}`, "Open the command"),
    h("button", { type: "button", class: "button", onclick: close }, "Close"),
  );
  footer.querySelector("a").addEventListener("click", close);
  body.replaceChildren(
    state,
    footer,
    h("p", { class: "quiet" }, "You can close this. The command goes on without the console."),
  );
  state.focus();
  const started = Date.now();
  (async function poll() {
    try {
      const command = await get(`/v1/ops/commands/${commandId}`);
      state.replaceChildren(...commandProgress(command));
      if (command.status === "DONE" || command.status === "FAILED") {
        if (selection && command.progress.done < Math.max(command.progress.selected, 1)) {
          state.append(...noticesAbout(selection, await loadRecent(), commandId));
        }
        announce(`The command is ${command.status === "DONE" ? "done" : "failed"}.`);
        refreshNow();
        return;
      }
      if (Date.now() - started > 90_000 && command.status === "PENDING") {
        state.append(
          notice(
            "warn",
            "No worker has started the command",
            "Check run_operator_commands in the table of workers. The command stays stored and runs when the worker " +
              "does.",
          ),
        );
      }
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      state.replaceChildren(
        failureNotice(error, "ops:read", { more: [h("p", {}, "The command is stored and goes on by itself.")] }),
      );
    }
    if (body.isConnected) setTimeout(poll, FOLLOW_MILLISECONDS);
  })();
}

/** Return what a command has done so far. */
export function commandProgress(command) {
  const { selected, done, skipped } = command.progress;
  const skippedCount = Object.values(skipped).reduce((sum, count) => sum + count, 0);
  const isEnded = command.status === "DONE" || command.status === "FAILED";
  const counted = command.kind.startsWith("dead_letters");
  return [
    h("p", { class: "progress-state" }, badge(command.status), ` ${formatName(command.kind)}`),
    counted &&
      h("progress", {
        max: Math.max(selected, 1),
        value: isEnded ? Math.max(selected, 1) : done + skippedCount,
        "aria-label": "Progress",
      }),
    command.status === "PENDING" && h("p", {}, "It waits for its worker, which normally takes it within seconds."),
    command.status !== "PENDING" &&
      counted &&
      h(
        "p",
        {},
        h("strong", {}, formatCount(done)),
        ` of ${countOf(selected, "dead letter")} processed`,
        skippedCount > 0 && `, ${formatCount(skippedCount)} skipped`,
        ".",
      ),
    skippedList(skipped),
    command.error &&
      notice(
        command.status === "FAILED" ? "bad" : "warn",
        command.status === "FAILED" ? "The command failed" : "The last attempt failed, it is repeated",
        command.error,
      ),
    command.result && !counted && resultDefinitions(command.result),
  ].filter(Boolean);
}

/** Return the result of a verification or a rebuild. */
export function resultDefinitions(result) {
  const found = Object.entries(result.found ?? {}).map(([name, value]) => [formatName(name), formatCount(value)]);
  const done = ["repaired", "removed", "summaries"]
    .filter((name) => name in result)
    .map((name) => [formatName(name), formatCount(result[name])]);
  return definitions([...found, ...done], "grid");
}
