import { openDeadLetterAction } from "./actions.js";
import { get } from "./api.js";
import {
  KIND_NAMES,
  badge,
  card,
  copyButton,
  definitions,
  emptyState,
  field,
  idWithCopy,
  jsonText,
  link,
  notice,
  pageHead,
  select,
  table,
  timeOf,
} from "./components.js";
import { announce, h, replaceContent } from "./dom.js";
import { asSentence, capitalized, countOf, formatCount, formatName, formatTime, shortId } from "./format.js";
import { showLive } from "./live.js";
import { groupHash } from "./overview.js";
import { traceTimeline } from "./trace.js";

const KINDS = [["", "All kinds"], ...Object.entries(KIND_NAMES)];
const KIND_TEXTS = {
  outbox: "could not be published",
  nats: "could not be recorded from the stream",
  notification: "could not be sent to the receiver",
};
const MAX_IDS = 400; // as the API allows for one command

/** Show the open dead letters in groups by cause. */
export function showGroups(main) {
  main.append(
    pageHead(
      "Dead letters",
      "Messages that were given up, grouped by cause. Remove the cause first, then redrive the group.",
      link("#/dead-letters/list", "Show as list"),
    ),
  );
  showLive(main, () => get("/v1/ops/dead-letters/groups"), renderGroups, { every: 5000, scope: "ops:read" });
}

function renderGroups({ open, capped, groups }) {
  announce(`${countOf(open, "open dead letter", "open dead letters", capped)}.`);
  if (groups.length === 0) {
    return card(
      "Groups",
      emptyState(
        "No open dead letters",
        "Everything was processed. A message that cannot be processed appears here with its cause.",
        link("#/dead-letters/list?state=closed", "Show closed ones"),
      ),
    );
  }
  return card(
    "Groups",
    table(
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
    ),
    {
      flush: true,
      aside: h("span", { class: "quiet" }, countOf(open, "open dead letter", "open dead letters", capped)),
    },
  );
}

function groupActions(group) {
  const act = (action) => () =>
    openDeadLetterAction(
      action,
      { kind: group.kind, filter: { cause: group.cause } },
      `All dead letters of this group: ${KIND_NAMES[group.kind]}, “${group.cause}”.`,
    );
  const name = `${group.kind} ${group.cause}`;
  return [
    h(
      "button",
      {
        type: "button",
        class: "button small",
        "data-key": `redrive ${name}`,
        "aria-label": `Redrive the group ${group.cause}`,
        onclick: act("redrive"),
      },
      "Redrive…",
    ),
    h(
      "button",
      {
        type: "button",
        class: "button small",
        "data-key": `discard ${name}`,
        "aria-label": `Discard the group ${group.cause}`,
        onclick: act("discard"),
      },
      "Discard…",
    ),
  ];
}

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
      h("input", { name: "since", type: "datetime-local", value: filters.since ? localTime(filters.since) : "" }),
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
      given.map(([name, value]) => [name, name === "since" ? new Date(value).toISOString() : value]),
    );
    location.hash = `#/dead-letters/list?${query}`;
  });
  return form;
}

function localTime(time) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return ""; // the API says what is allowed
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
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
    return card(
      "List",
      emptyState(
        "No dead letters",
        isFiltered
          ? "None matches these filters. It may have been redriven or discarded: look at closed ones."
          : "Nothing waits for a decision.",
        link("#/dead-letters/list?state=closed", "Show closed ones"),
      ),
    );
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
      { label: "State", of: (dead) => badge(dead.state) },
    ],
    list,
  );
  const first = content.querySelector("th");
  first.replaceChildren(all);
  return card(
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
}

function renderSelection(bar, list, selected) {
  const chosen = list.filter((dead) => selected.has(dead.dead_letter_id));
  const ids = chosen.map((dead) => dead.dead_letter_id);
  const text = `${countOf(ids.length, "selected dead letter")} of the kind ${chosen[0]?.kind}.`;
  const button = (action, name) =>
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

/** Show one dead letter with its message and its trace. */
export function showDeadLetter(main, kind, id) {
  const head = h("div");
  main.append(head);
  showLive(
    main,
    async () => {
      const dead = await get(`/v1/ops/dead-letters/${encodeURIComponent(kind)}/${encodeURIComponent(id)}`);
      const trace = dead.event_id ? await get("/v1/ops/trace", { event_id: dead.event_id }) : null;
      return { dead, trace };
    },
    ({ dead, trace }) => {
      replaceContent(head, deadLetterHead(dead));
      return renderDeadLetter(dead, trace);
    },
    { every: 5000, scope: "ops:read" },
  );
}

function deadLetterHead(dead) {
  const selection = { kind: dead.kind, ids: [dead.dead_letter_id] };
  const text = `This dead letter: ${dead.cause}.`;
  const actions = dead.state === "OPEN" && [
    h(
      "button",
      {
        type: "button",
        class: dead.message.problem ? "button" : "button primary",
        "data-key": "redrive",
        onclick: () => openDeadLetterAction("redrive", selection, text),
      },
      "Redrive…",
    ),
    h(
      "button",
      {
        type: "button",
        class: "button",
        "data-key": "discard",
        onclick: () => openDeadLetterAction("discard", selection, text),
      },
      "Discard…",
    ),
  ];
  return h(
    "div",
    {},
    h(
      "nav",
      { "aria-label": "Breadcrumb", class: "crumbs" },
      link("#/dead-letters", "Dead letters"),
      " / ",
      link(groupHash(dead), "Group"),
      " / ",
      h("span", { "aria-current": "page" }, shortId(dead.dead_letter_id)),
    ),
    pageHead(
      capitalized(dead.cause),
      `${KIND_NAMES[dead.kind]}: this message ${KIND_TEXTS[dead.kind]}.`,
      actions || [],
    ),
  );
}

function renderDeadLetter(dead, trace) {
  announce(`The dead letter is ${dead.state.toLowerCase()}.`);
  const facts = definitions([
    ["State", [badge(dead.state), dead.closed_at && [" ", timeOf(dead.closed_at)]]],
    ["Since", timeOf(dead.since, formatTime)],
    ["Error", dead.error === dead.cause ? null : dead.error],
    ["Attempts", dead.attempts === null || dead.attempts === undefined ? null : formatCount(dead.attempts)],
    ["User", dead.user_id && link(`#/users/${encodeURIComponent(dead.user_id)}`, dead.user_id)],
    ["Stock keeping unit", dead.stock_keeping_unit],
    ["Event type", dead.event_type],
    [
      "Event",
      dead.event_id && [idWithCopy(dead.event_id, "event id"), " ", link(`#/trace?event_id=${dead.event_id}`, "Trace")],
    ],
    ["Dead letter", idWithCopy(dead.dead_letter_id, "dead letter id")],
    ["Trace id", dead.trace_id && idWithCopy(dead.trace_id, "trace id")],
  ]);
  return [
    !dead.has_copy &&
      dead.state === "OPEN" &&
      notice(
        "warn",
        "The message was not kept",
        "It was no longer in the stream when it was recorded, so it cannot be redriven from here. Its event may " +
          "still be in the outbox; see the trace.",
      ),
    h("div", { class: "columns" }, card("Facts", facts), card("Message", messageContent(dead.message))),
    card(
      "Trace",
      trace
        ? traceTimeline(trace)
        : emptyState(
            "No event id",
            "The message has no readable event id, so its path is not known. It may come from another publisher.",
          ),
    ),
    dead.actions.length > 0 && card("Actions of operators", actionsTable(dead.actions), { flush: true }),
  ];
}

function messageContent(message) {
  const facts = definitions([
    ["Format", message.format === "none" ? "no copy" : message.format],
    ["Size", message.size === null || message.size === undefined ? null : countOf(message.size, "byte")],
    ["Subject", message.subject],
    ["Stream", message.stream && `${message.stream}, sequence ${message.stream_sequence}`],
  ]);
  return h(
    "div",
    { class: "message" },
    facts,
    message.problem &&
      notice(
        "warn",
        "It could not be decoded",
        asSentence(message.problem),
        "A redrive fails in the same way until the bridge can decode it. If it comes from another publisher, stop " +
          "that one and discard the message.",
      ),
    message.decoded !== null && message.decoded !== undefined && jsonText(message.decoded),
    readableBytes(message),
    message.base64 &&
      h(
        "details",
        { "data-key": "base64" },
        h("summary", {}, "Bytes as base64"),
        h("p", {}, copyButton(message.base64, "Copy the bytes as base64", "Copy")),
        h("pre", { class: "json", tabindex: "0", "aria-label": "Bytes as base64" }, message.base64),
      ),
    message.headers && h("details", { "data-key": "headers" }, h("summary", {}, "Headers"), jsonText(message.headers)),
  );
}

/** Return the beginning of a message that cannot be decoded, as text or as hexadecimal digits. */
function readableBytes({ text, hex }) {
  const content = text ?? hex;
  if (!content) return null;
  const label = text ? "Text of the message" : "First bytes of the message, hexadecimal";
  return [
    h("p", { class: "quiet" }, label),
    h("pre", { class: text ? "json text" : "json hex", tabindex: "0", "aria-label": label }, content),
  ];
}

function actionsTable(actions) {
  return table(
    "Actions of operators",
    [
      {
        label: "Action",
        of: (each) => [
          h("span", { class: "strong" }, formatName(each.action)),
          each.dry_run && h("span", { class: "quiet" }, " (dry run)"),
        ],
      },
      { label: "Actor", of: (each) => each.actor },
      { label: "Reason", kind: "wide", of: (each) => each.reason },
      { label: "Source", of: (each) => each.source },
      { label: "Time", of: (each) => timeOf(each.at) },
    ],
    actions,
  );
}
