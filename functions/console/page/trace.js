import { get } from "./api.js";
import {
  badge,
  card,
  code,
  definitions,
  emptyState,
  field,
  idWithCopy,
  link,
  notice,
  pageHead,
  select,
  table,
  timeOf,
} from "./components.js";
import { announce, h, replaceContent } from "./dom.js";
import { failureNotice } from "./failures.js";
import { countOf, formatName, formatOffset, formatSeconds, formatTime, shortId } from "./format.js";

const WAYS = [
  ["", "Any id"],
  ["user_id", "User and SKU"],
  ["purchase_id", "Purchase"],
  ["event_id", "Event"],
  ["notification_id", "Notification"],
  ["idempotency_key", "Idempotency key"],
  ["key_fingerprint", "Key fingerprint"],
  ["trace_id", "Trace id"],
  ["correlation_id", "Correlation id"],
];
const UUID = /^[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}$/i;
const TRACE = /^(?:1-[0-9a-f]{8}-[0-9a-f]{24}|[0-9a-f]{32}|[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})$/i;
const FINGERPRINT = /^[0-9a-f]{12}$/;

/** Return the ways to look an id up, the likely ones first. */
export function waysFor(id) {
  if (TRACE.test(id)) return ["trace_id", "purchase_id", "idempotency_key"];
  if (UUID.test(id)) return ["event_id", "notification_id", "correlation_id", "idempotency_key", "purchase_id"];
  if (FINGERPRINT.test(id)) return ["key_fingerprint", "purchase_id", "idempotency_key"];
  return ["purchase_id", "idempotency_key"];
}

/** Show the search for a trace, and the trace that the address names. */
export function showTrace(main, query) {
  const way = WAYS.map(([name]) => name).find((name) => name && query.has(name)) ?? "";
  const id = query.get(way || "id") ?? "";
  const result = h("div", { "aria-live": "off" });
  main.append(
    pageHead("Trace", "Everything that happened to a change, from the request to the receiver."),
    searchForm(way, id, query.get("stock_keeping_unit") ?? ""),
    result,
  );
  if (id) search(result, way, id, query.get("stock_keeping_unit") ?? "");
  else {
    result.append(
      card(
        "Result",
        emptyState(
          "Enter an id",
          "A purchase, an idempotency key or its fingerprint, an event, a notification, the correlation id of a " +
            "request, or a trace id of X-Ray or W3C. “Any id” finds out which it is.",
        ),
      ),
    );
  }
}

function searchForm(way, id, sku) {
  const ways = select("way", WAYS, way);
  const unit = field(
    "Stock keeping unit",
    h("input", { name: "sku", value: sku, autocomplete: "off", spellcheck: "false" }),
  );
  const form = h(
    "form",
    { class: "filters search", role: "search", "aria-label": "Trace" },
    field("Search by", ways),
    h(
      "div",
      { class: "grow" },
      field("Id", h("input", { name: "id", value: id, required: true, autocomplete: "off", spellcheck: "false" })),
    ),
    unit,
    h("div", { class: "filter-actions" }, h("button", { type: "submit", class: "button primary" }, "Trace")),
  );
  const update = () => {
    unit.hidden = ways.value !== "user_id";
    unit.querySelector("input").required = ways.value === "user_id";
    form.querySelector('label[for="field-id"]').textContent = ways.value === "user_id" ? "User" : "Id";
  };
  ways.addEventListener("change", update);
  update();
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const parameters = new URLSearchParams({ [ways.value || "id"]: form.elements.id.value.trim() });
    if (ways.value === "user_id") parameters.set("stock_keeping_unit", form.elements.sku.value.trim());
    const hash = `#/trace?${parameters}`;
    if (location.hash === hash) dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = hash;
  });
  return form;
}

async function search(result, way, id, sku) {
  result.replaceChildren(h("p", { class: "loading", role: "status" }, "Searching…"));
  try {
    const { trace, found } = await lookUp(way, id, sku);
    if (!result.isConnected) return;
    announce(trace.timeline.length ? `${countOf(trace.timeline.length, "entry", "entries")} found.` : "Nothing found.");
    const text =
      found && !way
        ? h("p", { class: "quiet found" }, `Found as ${WAYS.find(([name]) => name === found)[1].toLowerCase()}.`)
        : null;
    replaceContent(result, text, changesCard(trace), card("Timeline", traceTimeline(trace)));
  } catch (error) {
    result.replaceChildren(failureNotice(error, "ops:read"));
  }
}

async function lookUp(way, id, sku) {
  if (way) {
    return {
      trace: await get("/v1/ops/trace", way === "user_id" ? { user_id: id, stock_keeping_unit: sku } : { [way]: id }),
      found: way,
    };
  }
  let trace = null;
  for (const each of waysFor(id)) {
    trace = await get("/v1/ops/trace", { [each]: id });
    if (trace.timeline.length || trace.changes.length) return { trace, found: each };
  }
  return { trace, found: null };
}

function changesCard(trace) {
  if (trace.changes.length === 0) return null;
  const content = table(
    "Changes",
    [
      { label: "State", of: (change) => badge(change.state) },
      {
        label: "Change",
        of: (change) => [
          h("span", { class: "strong" }, formatName(change.operation.toLowerCase())),
          change.version !== null && h("span", { class: "quiet" }, ` version ${change.version}`),
          change.outcome !== "APPLIED" && h("p", { class: "quiet" }, formatName(change.outcome.toLowerCase())),
        ],
      },
      { label: "User", of: (change) => link(`#/users/${encodeURIComponent(change.user_id)}`, change.user_id) },
      { label: "SKU", of: (change) => change.stock_keeping_unit },
      { label: "Purchase", of: (change) => change.purchase_id ?? "–" },
      { label: "Event", of: (change) => idWithCopy(change.event_id, "event id") },
      { label: "Time", of: (change) => timeOf(change.at, formatTime) },
    ],
    trace.changes,
  );
  return card(
    "Changes",
    [
      trace.truncated &&
        notice(
          "warn",
          "There are more changes or steps",
          "Only the newest 50 changes are shown, and 2,000 steps. Search by a purchase or an event to see an older one.",
        ),
      content,
    ],
    { flush: true },
  );
}

const STAGE_TONES = {
  request: "calm",
  change: "calm",
  outbox: "calm",
  published: "calm",
  inbox: "calm",
  read_model: "calm",
  notification: "calm",
  attempt: "warn",
  sent: "good",
  dead_letter: "bad",
  closed: "mute",
  operator_action: "warn",
};

/** Return the timeline of a trace. */
export function traceTimeline(trace) {
  if (trace.timeline.length === 0 && trace.removed.length === 0) {
    return emptyState(
      "Nothing is known about it",
      "No change, event or notification has this id. Check the id, and that it belongs to this environment. The " +
        "audit may have been deleted by retention.",
    );
  }
  const several = trace.changes.length > 1;
  const last = trace.changes.length === 1 ? trace.changes[0] : null;
  return [
    last &&
      h(
        "p",
        { class: "trace-summary" },
        badge(last.state),
        ` ${STATE_TEXTS[last.state]} `,
        h(
          "span",
          { class: "quiet" },
          trace.timeline.length > 1
            ? `${formatSeconds(trace.timeline.at(-1).offset_ms / 1000)} from the first to the last entry.`
            : "",
        ),
      ),
    h(
      "ol",
      { class: "timeline" },
      trace.removed.map(removedEntry),
      trace.timeline.map((entry, index) => timelineEntry(entry, trace.timeline[index - 1], several, index)),
    ),
  ];
}

const STATE_TEXTS = {
  REFUSED: "The request changed nothing.",
  PENDING: "The event waits in the outbox.",
  PUBLISHED: "NATS has the event, the inbox does not have it yet.",
  RECORDED: "The notification waits to be sent.",
  SENT: "The receiver has the notification.",
  DEAD_LETTER: "It waits for an operator.",
  DISCARDED: "An operator gave it up.",
  UNKNOWN: "Retention has deleted the later stages.",
};

function timelineEntry(entry, before, several, index) {
  const gap = before ? entry.offset_ms - before.offset_ms : 0;
  const detail = Object.entries(entry.detail ?? {}).filter(([, value]) => value !== null && value !== "");
  return h(
    "li",
    { class: STAGE_TONES[entry.stage] ?? "mute", "data-stage": entry.stage },
    h(
      "div",
      { class: "entry-time" },
      h(
        "span",
        { class: "offset", title: gap >= 1 ? `${formatSeconds(gap / 1000)} after the entry before` : null },
        formatOffset(entry.offset_ms),
      ),
      timeOf(entry.at, formatTime),
    ),
    h(
      "div",
      { class: "entry" },
      h(
        "p",
        { class: "entry-title" },
        h("span", { class: "stage" }, formatName(entry.stage)),
        several && entry.event_id && h("span", { class: "quiet" }, " ", code(shortId(entry.event_id), entry.event_id)),
      ),
      h("p", {}, entry.summary),
      detail.length > 0 &&
        h(
          "details",
          { "data-key": `${entry.stage} ${index}` },
          h("summary", {}, "Details"),
          definitions(
            detail.map(([name, value]) => [formatName(name), detailValue(name, value)]),
            "rows",
          ),
        ),
    ),
  );
}

function detailValue(name, value) {
  if (name === "dead_letter_id" || name === "command_id") return code(String(value));
  return typeof value === "object" ? code(JSON.stringify(value)) : String(value);
}

function removedEntry(removed) {
  return h(
    "li",
    { class: "removed", "data-stage": "removed" },
    h("div", { class: "entry-time" }, h("span", { class: "offset" }, "–")),
    h(
      "div",
      { class: "entry" },
      h("p", { class: "entry-title" }, h("span", { class: "stage" }, formatName(removed.stage))),
      h("p", { class: "quiet" }, `No longer known: ${removed.reason}`),
    ),
  );
}
