import { get } from "./api.js";
import { KIND_NAMES, link, notice } from "./components.js";
import { h } from "./dom.js";
import { countOf, formatAgo, formatCount } from "./format.js";

const RECENT_MILLISECONDS = 10 * 60_000;
const MAX_SHOWN = 3;
const DONE = { redrive: "redrove", discard: "discarded" };

// The commands that were found last. A page shows them at once, and again when the next response is there.
let known = [];

/** Return the commands on dead letters of the last ten minutes, newest first; none if the API does not say. */
export async function loadRecent() {
  try {
    const { commands } = await get("/v1/ops/commands", { limit: 50 });
    const isRecent = (command) => Date.now() - Date.parse(command.created_at) < RECENT_MILLISECONDS;
    known = commands.filter((command) => command.kind.startsWith("dead_letters.") && isRecent(command));
  } catch {
    known = []; // the page is complete without it
  }
  return known;
}

/** Return what operators did with dead letters in the last ten minutes, for those who see the same ones. */
export function recentActions() {
  const container = h("ul", { class: "recent", "aria-label": "Recent actions of operators" });
  const show = (commands) => container.replaceChildren(...commands.slice(0, MAX_SHOWN).map(recentAction));
  show(known);
  loadRecent().then((commands) => container.isConnected && show(commands));
  return container;
}

function recentAction(command) {
  return h(
    "li",
    {},
    h("strong", {}, sentence(command, describe(command.arguments))),
    " ",
    h("span", { class: "quiet" }, progress(command), " “", command.reason, "” "),
    link(`#/commands/${command.command_id}`, "Open"),
  );
}

/** Return a notice for each command of the last ten minutes that selects the same dead letters, except the own one. */
export function noticesAbout(selection, commands, ownId = null) {
  return commands
    .filter((command) => command.command_id !== ownId && overlaps(selection, command.arguments))
    .slice(0, MAX_SHOWN)
    .map((command) => {
      const which = covers(selection, command.arguments) ? "them" : describe(command.arguments);
      return notice(
        "warn",
        sentence(command, which),
        `${progress(command)} The reason was: ${command.reason}`,
        h("p", {}, link(`#/commands/${command.command_id}`, "Open the command")),
      );
    });
}

/** Return who changed a dead letter last, and when: `alice redrove it 2 s ago`. */
export function lastActionText(last) {
  return `${last.actor} ${DONE[last.action]} it ${formatAgo(last.at)}`;
}

function sentence(command, which) {
  const action = command.kind.split(".")[1];
  const verb = command.status === "DONE" ? DONE[action] : `asked to ${action}`;
  return `${command.actor} ${verb} ${which} ${formatAgo(command.created_at)}`;
}

function progress({ status, progress: { selected, done } }) {
  const count = `${formatCount(done)} of ${formatCount(selected)} processed`;
  if (status === "DONE") return `Done: ${count}.`;
  if (status === "FAILED") return `It failed: ${count}.`;
  return status === "RUNNING" ? `Running: ${count}.` : "It waits for its worker.";
}

/** Return which dead letters a command selects. */
function describe({ kind, ids, filter, limit }) {
  const name = KIND_NAMES[kind];
  const atMost = limit ? `at most ${formatCount(limit)} of ` : "";
  if (ids) return `${atMost}${countOf(ids.length, "selected dead letter")} of the kind ${name}`;
  if (filter?.cause) return `${atMost}the group ${name}, “${filter.cause}”,`;
  return filter ? `some dead letters of the kind ${name}` : `${atMost}all of the kind ${name}`;
}

/** Return whether a command may have changed a part of a selection. */
function overlaps(selection, { kind, ids, filter }) {
  if (kind !== selection.kind) return false;
  if (ids && selection.ids) return selection.ids.some((id) => ids.includes(id));
  if (filter?.cause && selection.filter) return filter.cause === selection.filter.cause;
  return true;
}

/** Return whether a command selects all of a selection. */
function covers(selection, { ids, filter, limit }) {
  if (limit) return false;
  if (ids) return Boolean(selection.ids?.every((id) => ids.includes(id)));
  if (filter) return filter.cause === selection.filter?.cause && Object.keys(filter).length === 1;
  return true;
}
