import { openDeadLetterAction } from "./actions.js";
import { get } from "./api.js";
import { needsScope, scopeNote } from "./caller.js";
import { KIND_NAMES, card, emptyState, link, pageHead, table, timeOf } from "./components.js";
import { KIND_TEXTS } from "./dead_letter.js";
import { announce, h } from "./dom.js";
import { countOf, formatCount } from "./format.js";
import { showLive } from "./live.js";
import { groupHash } from "./overview.js";
import { recentActions } from "./recent.js";

/** Show the open dead letters in groups by cause. */
export function showGroups(main) {
  main.append(
    pageHead(
      "Dead letters",
      "Messages that were given up, grouped by cause. Remove the cause first, then redrive the group.",
      link("#/dead-letters/list", "Show as list"),
    ),
    scopeNote("ops:write", "Redrive and discard"),
  );
  showLive(main, () => get("/v1/ops/dead-letters/groups"), renderGroups, { every: 5000, scope: "ops:read" });
}

function renderGroups({ open, capped, groups }) {
  announce(`${countOf(open, "open dead letter", "open dead letters", capped)}.`);
  return [recentActions(), groups.length === 0 ? noGroups() : groupsCard({ open, capped, groups })];
}

function noGroups() {
  return card(
    "Groups",
    emptyState(
      "No open dead letters",
      "Everything was processed. A message that cannot be processed appears here with its cause.",
      link("#/dead-letters/list?state=closed", "Show closed ones"),
    ),
  );
}

function groupsCard({ open, capped, groups }) {
  const content = table(
    "Groups of dead letters",
    [
      {
        label: "Cause",
        kind: "wide",
        of: (group) => [
          h("a", { href: groupHash(group), class: "strong" }, group.cause),
          h("p", { class: "quiet" }, `${KIND_NAMES[group.kind]}: ${KIND_TEXTS[group.kind]}`),
        ],
      },
      { label: "Count", kind: "number", of: (group) => h("span", { class: "big-number" }, formatCount(group.count)) },
      { label: "First", of: (group) => timeOf(group.first_at) },
      { label: "Last", of: (group) => timeOf(group.last_at) },
      { label: "Actions", hidden: true, kind: "row-actions", of: groupActions },
    ],
    groups,
  );
  return card("Groups", [kindsBar(groups), content], {
    flush: true,
    aside: h("span", { class: "quiet" }, countOf(open, "open dead letter", "open dead letters", capped)),
  });
}

/** Return one button for each kind that has several groups: one command redrives all of them. */
function kindsBar(groups) {
  const kinds = Object.keys(KIND_NAMES)
    .map((kind) => ({ kind, groups: groups.filter((group) => group.kind === kind) }))
    .filter((each) => each.groups.length > 1);
  if (kinds.length === 0) return null;
  return h(
    "div",
    { class: "selection-bar", role: "group", "aria-label": "Actions for all groups of a kind" },
    h("span", {}, "Several groups with one command:"),
    kinds.map((each) => kindButton(each)),
  );
}

function kindButton({ kind, groups }) {
  const text = `All open dead letters of the kind ${KIND_NAMES[kind]}, in ${countOf(groups.length, "group")}.`;
  const button = h(
    "button",
    {
      type: "button",
      class: "button small",
      "data-key": `redrive all ${kind}`,
      onclick: () => openDeadLetterAction("redrive", { kind, all: true }, text),
    },
    `Redrive all ${countOf(groups.length, "group")} of ${KIND_NAMES[kind]}…`,
  );
  return needsScope("ops:write", button);
}

function groupActions(group) {
  const selection = { kind: group.kind, filter: { cause: group.cause } };
  const text = `All dead letters of this group: ${KIND_NAMES[group.kind]}, “${group.cause}”.`;
  const button = (action, name) =>
    needsScope(
      "ops:write",
      h(
        "button",
        {
          type: "button",
          class: "button small",
          "data-key": `${action} ${group.kind} ${group.cause}`,
          "aria-label": `${name} the group ${group.cause}`,
          onclick: () => openDeadLetterAction(action, selection, text),
        },
        `${name}…`,
      ),
    );
  return [button("redrive", "Redrive"), button("discard", "Discard")];
}
