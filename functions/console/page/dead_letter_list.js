import { openDeadLetterAction } from "./actions.js";
import { get } from "./api.js";
import { needsScope, scopeNote } from "./caller.js";
import { KIND_NAMES, badge, card, emptyState, field, link, pageHead, select, table, timeOf } from "./components.js";
import { h } from "./dom.js";
import { countOf, formatCount } from "./format.js";
import { showLive } from "./live.js";
import { lastActionText, recentActions } from "./recent.js";
import { fromField, toField } from "./zone.js";

const KINDS = [["", "All kinds"], ...Object.entries(KIND_NAMES)];
const MAX_IDS = 400; // as the API allows for one command
const FILTERS = ["kind", "state", "cause", "user_id", "stock_keeping_unit", "since"];

/** Show dead letters as a list with filters, newest first. */
export function showList(main, query) {
  const filters = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]));
  const selected = new Set();
  const pages = { count: 1 };
  main.append(
    pageHead(
      "Dead letters",
      filters.cause ? `With the cause “${filters.cause}”.` : "Newest first.",
      link("#/dead-letters", "Show groups"),
    ),
    scopeNote("ops:write", "Redrive and discard"),
    filterForm(filters),
  );
  const more = () => {
    pages.count += 1;
    refresh();
  };
  const refresh = showLive(
    main,
    () => loadPages(filters, pages.count),
    (data) => renderList(data, { filters, selected, more }),
    { every: 8000, scope: "ops:read" },
  );
}

function filterForm(filters) {
  const form = h(
    "form",
    { class: "filters", "aria-label": "Filters" },
    field("Kind", select("kind", KINDS, filters.kind)),
    field(
      "State",
      select(
        "state",
        [
          ["", "Open"],
          ["closed", "Closed"],
        ],
        filters.state === "open" ? "" : filters.state,
      ),
    ),
    field("Cause", h("input", { name: "cause", value: filters.cause, autocomplete: "off" })),
    field("User", h("input", { name: "user_id", value: filters.user_id, autocomplete: "off" })),
    field(
      "Stock keeping unit",
      h("input", { name: "stock_keeping_unit", value: filters.stock_keeping_unit, autocomplete: "off" }),
    ),
    field(
      "Since",
      h("input", { name: "since", type: "datetime-local", value: filters.since ? toField(filters.since) : "" }),
    ),
    h(
      "div",
      { class: "filter-actions" },
      h("button", { type: "submit", class: "button primary" }, "Filter"),
      link("#/dead-letters/list", "Clear"),
    ),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = FILTERS.map((name) => [name, form.elements[name].value.trim()]).filter(([, value]) => value);
    const query = new URLSearchParams(
      given.map(([name, value]) => [name, name === "since" ? fromField(value) : value]),
    );
    location.hash = `#/dead-letters/list?${query}`;
  });
  return form;
}

async function loadPages(filters, count) {
  const list = [];
  let cursor = "";
  for (let page = 0; page < count; page += 1) {
    const data = await get("/v1/ops/dead-letters", { ...filters, limit: 50, cursor });
    list.push(...data.dead_letters);
    cursor = data.next_cursor ?? "";
    if (!cursor) break;
  }
  return { list, cursor };
}

function renderList({ list, cursor }, { filters, selected, more }) {
  const known = new Set(list.map((each) => each.dead_letter_id));
  for (const id of selected) if (!known.has(id)) selected.delete(id);
  if (list.length === 0) {
    const isFiltered = FILTERS.some((name) => filters[name]);
    const empty = card(
      "List",
      emptyState(
        "No dead letters",
        isFiltered
          ? "None matches these filters. It may have been redriven or discarded: look at closed ones."
          : "Nothing waits for a decision.",
        link("#/dead-letters/list?state=closed", "Show closed ones"),
      ),
    );
    return [recentActions(), empty];
  }
  const bar = h("div", { class: "selection-bar", role: "group", "aria-label": "Actions for the selection" });
  const boxes = [];
  const update = () => renderSelection(bar, list, selected);
  const all = h("input", {
    type: "checkbox",
    "aria-label": "Select all of the first kind",
    "data-key": "all",
    onchange: (event) => {
      for (const box of boxes) {
        box.checked = event.target.checked && !box.disabled;
        if (box.checked) selected.add(box.value);
        else selected.delete(box.value);
      }
      limitToKind();
      update();
    },
  });
  const kindOf = Object.fromEntries(list.map((each) => [each.dead_letter_id, each.kind]));
  const limitToKind = () => {
    const kind = kindOf[[...selected][0]];
    for (const box of boxes) {
      if (kind && kindOf[box.value] !== kind) {
        box.checked = false;
        selected.delete(box.value);
      }
    }
  };
  const choose = (dead) => {
    const box = h("input", {
      type: "checkbox",
      value: dead.dead_letter_id,
      checked: selected.has(dead.dead_letter_id),
      disabled: dead.state !== "OPEN",
      "data-key": dead.dead_letter_id,
      "aria-label": `Select ${dead.kind} ${dead.dead_letter_id}`,
      onchange: () => {
        if (box.checked && selected.size && kindOf[[...selected][0]] !== dead.kind) selected.clear();
        if (box.checked) selected.add(dead.dead_letter_id);
        else selected.delete(dead.dead_letter_id);
        for (const other of boxes) other.checked = selected.has(other.value);
        update();
      },
    });
    boxes.push(box);
    return box;
  };
  update();
  const content = table(
    "Dead letters",
    [
      { label: "Select", hidden: true, kind: "narrow", of: choose },
      {
        label: "Cause",
        kind: "wide",
        of: (dead) => [
          h("a", { href: `#/dead-letters/${dead.kind}/${dead.dead_letter_id}`, class: "strong" }, dead.cause),
          h("p", { class: "quiet" }, `${KIND_NAMES[dead.kind]}${dead.event_type ? `, ${dead.event_type}` : ""}`),
        ],
      },
      {
        label: "User",
        of: (dead) => (dead.user_id ? link(`#/users/${encodeURIComponent(dead.user_id)}`, dead.user_id) : "–"),
      },
      { label: "SKU", of: (dead) => dead.stock_keeping_unit ?? "–" },
      { label: "Since", of: (dead) => timeOf(dead.since) },
      {
        label: "State",
        of: (dead) => [
          badge(dead.state),
          dead.last_action &&
            h("p", { class: "quiet", title: dead.last_action.reason }, lastActionText(dead.last_action)),
        ],
      },
    ],
    list,
  );
  const first = content.querySelector("th");
  first.replaceChildren(all);
  const shown = card(
    "List",
    [
      bar,
      content,
      cursor
        ? h(
            "p",
            { class: "table-more" },
            h("button", { type: "button", class: "button", "data-key": "more", onclick: more }, "Show more"),
          )
        : null,
    ],
    { flush: true, aside: h("span", { class: "quiet" }, `${formatCount(list.length)}${cursor ? "+" : ""} shown`) },
  );
  return [recentActions(), shown];
}

function renderSelection(bar, list, selected) {
  const chosen = list.filter((dead) => selected.has(dead.dead_letter_id));
  const ids = chosen.map((dead) => dead.dead_letter_id);
  const text = `${countOf(ids.length, "selected dead letter")} of the kind ${chosen[0]?.kind}.`;
  const button = (action, name) =>
    needsScope(
      "ops:write",
      h(
        "button",
        {
          type: "button",
          class: "button small",
          disabled: ids.length === 0 || ids.length > MAX_IDS,
          "data-key": `${action} selection`,
          onclick: () => openDeadLetterAction(action, { kind: chosen[0].kind, ids }, text),
        },
        name,
      ),
    );
  bar.replaceChildren(
    h("span", { role: "status" }, selectionText(ids.length)),
    button("redrive", "Redrive…"),
    button("discard", "Discard…"),
  );
}

function selectionText(count) {
  if (count === 0) return "Select dead letters of one kind to redrive or discard them.";
  const selected = `${countOf(count, "dead letter")} selected`;
  if (count <= MAX_IDS) return selected;
  return `${selected}. A command takes at most ${MAX_IDS}: select fewer, or act on the whole group.`;
}
